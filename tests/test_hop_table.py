"""The table of hops, cell by cell: what the work sees of a declared variable, and of baggage, behind each hop.

Every row is a program in which a session **A** was there first (it made the pool, it was the first to submit, it ran in
that worker) and **B** departs. Behind the hop the work is to see B, or nothing where the row says so, and A never.
"""

from __future__ import annotations

import _thread
import asyncio
import multiprocessing
import os
import queue
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pytest
from opentelemetry import baggage
from opentelemetry import context as otel_context

import otelctx
from tests import process_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otelctx import Mismatch
    from tests.conftest import Install

# Processes forked beside threads are some of the rows.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

KEY = process_work.KEY  # in a module that child processes can import
TIMEOUT: Final = 20.0


class Seen(NamedTuple):
    """What a piece of work sees: the application's variable, otelctx's own entry in baggage, and another's."""

    variable: object
    entry: object
    baggage: object


def look(*_: object, **__: object) -> Seen:
    return Seen(KEY.get(None), baggage.get_baggage("otelctx.session"), baggage.get_baggage("who"))


B: Final = Seen("B", "B", "B")
A: Final = Seen("A", "A", "A")
NOTHING: Final = Seen(None, None, None)
KEPT: Final = Seen("B", None, "B")
"""Where B's own context is kept: there the key is not in baggage, since B has set it in a variable of its own."""


@contextmanager
def acting_as(who: str) -> Iterator[None]:
    """A turn of `who`, as an application has it: in a variable of its own, and in baggage."""
    variable = KEY.set(who)
    token = otel_context.attach(baggage.set_baggage("who", who))
    try:
        yield
    finally:
        otel_context.detach(token)
        KEY.reset(variable)


@contextmanager
def warm_pool(initializer: Callable[[], object] | None = None) -> Iterator[ThreadPoolExecutor]:
    """A pool with one worker, which A's first submit has started."""
    with ThreadPoolExecutor(1, initializer=initializer) as pool:
        with acting_as("A"):
            pool.submit(look).result(TIMEOUT)
        yield pool


# --- what each row does: B departs, and what its work saw is returned ------------------------------------------------


def in_thread(start: Callable[[Callable[[], None]], threading.Thread]) -> list[Seen]:
    seen: list[Seen] = []
    with acting_as("B"):
        thread = start(lambda: seen.append(look()))
        thread.start()
    thread.join(TIMEOUT)
    return seen


class OwnRun(threading.Thread):
    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self.work = work

    def run(self) -> None:
        self.work()


class OwnTimer(threading.Timer):
    def run(self) -> None:
        self.finished.wait(self.interval)
        self.function()


def thread() -> list[Seen]:
    return in_thread(lambda work: threading.Thread(target=work))


def timer() -> list[Seen]:
    return in_thread(partial(threading.Timer, 0.001))


def thread_with_a_run_of_its_own() -> list[Seen]:
    return in_thread(OwnRun)


def timer_with_a_run_of_its_own() -> list[Seen]:
    return in_thread(partial(OwnTimer, 0.001))


def submit() -> list[Seen]:
    with warm_pool() as pool, acting_as("B"):
        return [pool.submit(look).result(TIMEOUT)]


def map_() -> list[Seen]:
    with warm_pool() as pool, acting_as("B"):
        return list(pool.map(look, range(3)))


def run_in_executor() -> list[Seen]:
    async def turn(pool: ThreadPoolExecutor) -> Seen:
        return await asyncio.get_running_loop().run_in_executor(pool, look)

    with warm_pool() as pool, acting_as("B"):
        return [asyncio.run(turn(pool))]


def initializer() -> list[Seen]:
    seen: list[Seen] = []
    with ThreadPoolExecutor(1, initializer=lambda: seen.append(look())) as pool, acting_as("B"):
        pool.submit(look).result(TIMEOUT)
    return seen


def done_callback_in_a_warm_worker() -> list[Seen]:
    seen: list[Seen] = []
    go = threading.Event()
    with warm_pool() as pool:
        with acting_as("A"):
            future: Future[Any] = pool.submit(go.wait, TIMEOUT)
        with acting_as("B"):
            future.add_done_callback(lambda _: seen.append(look()))
        go.set()
    return seen


def done_callback_after_completion() -> list[Seen]:
    seen: list[Seen] = []
    with warm_pool() as pool:
        with acting_as("A"):
            future = pool.submit(look)
            future.result(TIMEOUT)
        with acting_as("B"):
            future.add_done_callback(lambda _: seen.append(look()))
    return seen


def thread_pool(call: Callable[[Any], list[Seen]]) -> list[Seen]:
    with acting_as("A"):
        pool = ThreadPool(1)
        pool.apply(look)
    with pool, acting_as("B"):
        return call(pool)


def thread_pool_apply() -> list[Seen]:
    return thread_pool(lambda pool: [pool.apply(look)])


def thread_pool_map() -> list[Seen]:
    return thread_pool(lambda pool: pool.map(look, range(3)))


def thread_pool_imap_unordered() -> list[Seen]:
    return thread_pool(lambda pool: [*pool.imap_unordered(look, range(3))])


def queue_and_hand_written_worker() -> list[Seen]:
    """The queue is not declared: the worker is whoever's started it."""
    return through(queue.Queue())


def adopting_queue_and_hand_written_worker() -> list[Seen]:
    return through(otelctx.adopting(queue.Queue()))


def adopting_simple_queue_and_hand_written_worker() -> list[Seen]:
    return through(otelctx.adopting(queue.SimpleQueue()))


def adopting_asyncio_queue_and_hand_written_worker() -> list[Seen]:
    seen: list[Seen] = []

    async def work(items: asyncio.Queue[Any]) -> None:
        while (item := await items.get()) is not None:
            item()

    async def turn() -> None:
        items = otelctx.adopting(asyncio.Queue[Any]())
        with acting_as("A"):
            worker = asyncio.create_task(work(items))
            await asyncio.sleep(0)
        with acting_as("B"):
            await items.put(lambda: seen.append(look()))
        await items.put(None)
        await worker

    asyncio.run(turn())
    return seen


def through(items: Any) -> list[Seen]:
    seen: list[Seen] = []

    def work() -> None:
        while (item := items.get()) is not None:
            item()

    with acting_as("A"):
        worker = threading.Thread(target=work)
        worker.start()
    with acting_as("B"):
        items.put(lambda: seen.append(look()))
    items.put(None)
    worker.join(TIMEOUT)
    return seen


def process_pool(method: str) -> list[Seen]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        with acting_as("A"):
            pool.submit(process_work.add, 1).result(TIMEOUT)
        with acting_as("B"):
            return [in_child(pool.submit(process_work.seen).result(TIMEOUT))]


def process(method: str) -> list[Seen]:
    context: Any = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    child = context.Process(target=process_work.put_seen, args=(answers,))
    with acting_as("B"):
        child.start()
    seen = in_child(answers.get())
    child.join(TIMEOUT)
    return [seen]


def in_child(seen: process_work.Seen) -> Seen:
    return Seen(seen.variable, seen.entry, seen.baggage)


def process_pool_fork() -> list[Seen]:
    return process_pool("fork")


def process_pool_spawn() -> list[Seen]:
    return process_pool("spawn")


def process_pool_forkserver() -> list[Seen]:
    return process_pool("forkserver")


def process_fork() -> list[Seen]:
    return process("fork")


def process_spawn() -> list[Seen]:
    return process("spawn")


def to_thread() -> list[Seen]:
    async def turn() -> Seen:
        with acting_as("B"):
            return await asyncio.to_thread(look)

    return [asyncio.run(turn())]


def create_task() -> list[Seen]:
    async def child() -> Seen:
        return look()

    async def turn() -> Seen:
        with acting_as("B"):
            task = asyncio.create_task(child())
        with acting_as("A"):
            return await task

    return [asyncio.run(turn())]


def call_soon() -> list[Seen]:
    async def turn() -> Seen:
        loop = asyncio.get_running_loop()
        seen: asyncio.Future[Seen] = loop.create_future()
        with acting_as("B"):
            loop.call_soon(lambda: seen.set_result(look()))
        with acting_as("A"):
            return await seen

    return [asyncio.run(turn())]


def beside_a_loop(depart: Callable[[asyncio.AbstractEventLoop], Any]) -> list[Seen]:
    """A loop that A's thread runs, and B outside of it."""
    loop = asyncio.new_event_loop()
    with acting_as("A"):
        runner = threading.Thread(target=loop.run_forever)
        runner.start()
    try:
        with acting_as("B"):
            return [depart(loop)]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        runner.join(TIMEOUT)
        loop.close()


def run_coroutine_threadsafe() -> list[Seen]:
    async def child() -> Seen:
        return look()

    return beside_a_loop(lambda loop: asyncio.run_coroutine_threadsafe(child(), loop).result(TIMEOUT))


def thread_that_calls_a_loop() -> list[Seen]:
    def depart(loop: asyncio.AbstractEventLoop) -> Seen:
        seen: Future[Seen] = Future()
        caller = threading.Thread(target=loop.call_soon_threadsafe, args=(lambda: seen.set_result(look()),))
        caller.start()
        caller.join(TIMEOUT)
        return seen.result(TIMEOUT)

    return beside_a_loop(depart)


def below_threading() -> list[Seen]:
    seen: list[Seen] = []
    done = threading.Event()

    def work() -> None:
        seen.append(look())
        done.set()

    with acting_as("B"):
        _thread.start_new_thread(work, ())
    assert done.wait(TIMEOUT)
    return seen


Row: TypeAlias = "Callable[[], list[Seen]]"

ROWS: Final[dict[Row, Seen]] = {
    thread: B,
    timer: B,
    thread_with_a_run_of_its_own: B,
    timer_with_a_run_of_its_own: B,
    submit: B,
    map_: B,
    run_in_executor: B,
    initializer: NOTHING,
    done_callback_in_a_warm_worker: B,
    done_callback_after_completion: KEPT,
    thread_pool_apply: B,
    thread_pool_map: B,
    thread_pool_imap_unordered: B,
    queue_and_hand_written_worker: A,
    adopting_queue_and_hand_written_worker: B,
    adopting_simple_queue_and_hand_written_worker: B,
    adopting_asyncio_queue_and_hand_written_worker: B,
    process_pool_fork: B,
    process_pool_spawn: B,
    process_pool_forkserver: B,
    process_fork: B,
    process_spawn: B,
    to_thread: KEPT,
    create_task: KEPT,
    call_soon: KEPT,
    run_coroutine_threadsafe: KEPT,
    thread_that_calls_a_loop: B,
    below_threading: NOTHING,
}
"""What the work of each row is to see."""

KEYS: Final = process_work.SESSION


class Ran(NamedTuple):
    """What came of a row."""

    seen: list[Seen]
    left: Seen
    """What the caller's context has afterwards."""
    alerts: list[Mismatch]


_ran: dict[Row, Ran] = {}


@pytest.fixture(params=ROWS, ids=lambda row: row.__name__.strip("_"))
def row(request: pytest.FixtureRequest) -> Row:
    chosen: Row = request.param
    return chosen


@pytest.fixture
def ran(row: Row, install: Install, alerts: list[Mismatch]) -> Ran:
    """The row, which is run once for all that is asked of it: some of them start processes."""
    if row not in _ran:
        install(keys=KEYS)
        _ran[row] = Ran(row(), look(), alerts)
    return _ran[row]


def test_the_work_sees_of_the_applications_variable_what_the_table_owes(row: Row, ran: Ran) -> None:
    assert {work.variable for work in ran.seen} == {ROWS[row].variable}


def test_the_work_sees_of_baggage_what_the_table_owes(row: Row, ran: Ran) -> None:
    assert {(work.entry, work.baggage) for work in ran.seen} == {(ROWS[row].entry, ROWS[row].baggage)}


def test_the_hop_is_no_mismatch_and_leaves_nothing_with_the_caller(ran: Ran) -> None:
    assert ran.alerts == []
    assert ran.left == NOTHING


def test_a_function_given_by_its_name_gives_the_standard_librarys_own_error(install: Install) -> None:
    def refused() -> str:
        with ThreadPoolExecutor(1) as pool, pytest.raises(TypeError) as error:
            pool.submit(fn=look)  # type: ignore[call-arg]
        return str(error.value)

    expected = refused()
    install(keys=KEYS)
    assert refused() == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_sees_what_its_parents_context_had(install: Install) -> None:
    install(keys=KEYS)
    reader, writer = os.pipe()
    with acting_as("B"):
        child = os.fork()
        if child == 0:
            os.write(writer, repr(tuple(look())).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert answer.read() == repr(tuple(KEPT))
    os.waitpid(child, 0)
