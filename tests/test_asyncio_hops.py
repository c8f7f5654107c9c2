"""asyncio's hops carry the whole context by themselves, and with it what otelctx binds; on its own loop and uvloop's.

Nothing of asyncio is patched. What is tested is that nothing has to be: each hop hands on the key, the entry in baggage
and the span of whoever asked for it, a context that is given by hand stays its giver's, and no alert is false.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, NamedTuple, Protocol, TypeAlias

import pytest
import uvloop
from opentelemetry import baggage, trace

import otelctx
from otelctx import Mismatch, metrics

KEY: ContextVar[str] = ContextVar(f"{__name__}:KEY")
app = trace.get_tracer("app")


class Seen(NamedTuple):
    """What a piece of work sees: the application's variable, the key, its entry in baggage, and the span."""

    variable: str | None
    key: str | None
    entry: object
    span: int


NOTHING = Seen(None, None, None, 0)


def look() -> Seen:
    span = trace.get_current_span().get_span_context().span_id
    return Seen(KEY.get(None), otelctx.get("session"), baggage.get_baggage("otelctx.session"), span)


@contextmanager
def turn(key: str) -> Iterator[Seen]:
    """A turn of session `key`, and what its work should see."""
    token = KEY.set(key)
    try:
        with otelctx.bind(session=key), app.start_as_current_span("turn") as span:
            yield Seen(key, key, key, span.get_span_context().span_id)
    finally:
        KEY.reset(token)


class Install(Protocol):
    def __call__(self, **settings: Any) -> None: ...


Work: TypeAlias = Callable[[], Seen]
Hop: TypeAlias = Callable[[Work], Awaitable[Seen]]

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        yield runner


@pytest.fixture
def on(install: Install, alerts: list[Mismatch]) -> Iterator[Install]:
    """Turns otelctx on in a mode; at the end it has said nothing: neither an alert nor a fault of its own."""
    before = metrics.error_counts()
    yield lambda **settings: install(keys=KEYS, spans="never", **settings)
    assert alerts == []
    assert metrics.error_counts() == before


KEYS = {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}]}}


# --- the hops --------------------------------------------------------------------------------------------------------


async def coroutine(work: Work) -> Seen:
    first = work()
    await asyncio.sleep(0)
    assert work() == first  # after a suspension as before it
    return first


async def by_create_task(work: Work) -> Seen:
    return await asyncio.create_task(coroutine(work))


async def by_ensure_future(work: Work) -> Seen:
    return await asyncio.ensure_future(coroutine(work))


async def by_gather(work: Work) -> Seen:
    (seen,) = set(await asyncio.gather(coroutine(work), coroutine(work)))
    return seen


async def by_wait_for(work: Work) -> Seen:
    return await asyncio.wait_for(coroutine(work), 10)


async def by_shield(work: Work) -> Seen:
    return await asyncio.shield(coroutine(work))


async def by_task_group(work: Work) -> Seen:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(coroutine(work))
    return task.result()


async def by_to_thread(work: Work) -> Seen:
    return await asyncio.to_thread(work)


def called(schedule: Callable[[asyncio.AbstractEventLoop, Callable[[], None]], object]) -> Hop:
    """A hop by a callback that `schedule` hands to the loop."""

    async def hop(work: Work) -> Seen:
        loop = asyncio.get_running_loop()
        seen: asyncio.Future[Seen] = loop.create_future()
        schedule(loop, lambda: seen.set_result(work()))
        return await seen

    return hop


by_call_soon = called(lambda loop, fn: loop.call_soon(fn))
by_call_soon_threadsafe = called(lambda loop, fn: loop.call_soon_threadsafe(fn))
by_call_later = called(lambda loop, fn: loop.call_later(0.001, fn))
by_call_at = called(lambda loop, fn: loop.call_at(loop.time() + 0.001, fn))
by_a_thread_that_calls_the_loop = called(
    lambda loop, fn: threading.Thread(target=loop.call_soon_threadsafe, args=(fn,)).start()
)
by_a_timer_that_calls_the_loop = called(
    lambda loop, fn: threading.Timer(0.001, loop.call_soon_threadsafe, args=(fn,)).start()
)


async def by_a_pool_that_calls_the_loop(work: Work) -> Seen:
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[Seen] = loop.create_future()
    await loop.run_in_executor(None, loop.call_soon_threadsafe, lambda: seen.set_result(work()))
    return await seen


async def by_done_callback(work: Work) -> Seen:
    loop = asyncio.get_running_loop()
    done, seen = loop.create_future(), loop.create_future()
    done.add_done_callback(lambda _: seen.set_result(work()))
    with turn("whoever resolves it"):
        done.set_result(None)
    result: Seen = await seen
    return result


async def by_tasks_done_callback(work: Work) -> Seen:
    seen: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()
    with turn("whose task it is"):
        task = asyncio.create_task(asyncio.sleep(0))
    task.add_done_callback(lambda _: seen.set_result(work()))
    return await seen


async def by_run_coroutine_threadsafe_from_to_thread(work: Work) -> Seen:
    loop = asyncio.get_running_loop()
    return await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(coroutine(work), loop).result(10))


async def by_run_coroutine_threadsafe_from_a_thread(work: Work) -> Seen:
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[Seen] = loop.create_future()

    def hand_over() -> None:
        result = asyncio.run_coroutine_threadsafe(coroutine(work), loop).result(10)
        loop.call_soon_threadsafe(seen.set_result, result)

    thread = threading.Thread(target=hand_over)
    thread.start()
    result = await seen
    thread.join()
    return result


async def by_run_coroutine_threadsafes_done_callback(work: Work) -> Seen:
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[Seen] = loop.create_future()
    handed = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)
    handed.add_done_callback(lambda _: seen.set_result(work()))
    return await seen


def settle(future: asyncio.Future[Seen], work: Work) -> None:
    """Readiness may be told more than once."""
    if not future.done():
        future.set_result(work())


async def by_reader(work: Work) -> Seen:
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[Seen] = loop.create_future()
    ours, other = socket.socketpair()
    with ours, other:
        ours.setblocking(False)
        loop.add_reader(ours, lambda: settle(seen, work))
        with turn("who writes"):
            other.send(b".")
        try:
            return await seen
        finally:
            loop.remove_reader(ours)


async def by_writer(work: Work) -> Seen:
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[Seen] = loop.create_future()
    ours, other = socket.socketpair()
    with ours, other:
        ours.setblocking(False)
        loop.add_writer(ours, lambda: settle(seen, work))
        try:
            return await seen
        finally:
            loop.remove_writer(ours)


async def by_signal_handler(work: Work) -> Seen:
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[Seen] = loop.create_future()
    loop.add_signal_handler(signal.SIGUSR1, lambda: seen.set_result(work()))
    try:
        with turn("who is interrupted"):
            os.kill(os.getpid(), signal.SIGUSR1)
        return await seen
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


async def by_generator(work: Work) -> Seen:
    async def generator() -> AsyncIterator[Seen]:
        yield work()
        await asyncio.sleep(0)
        yield work()

    (seen,) = {found async for found in generator()}
    return seen


async def by_queue_and_task(work: Work) -> Seen:
    """A consumer is a task of its own: what it sees is whose task it is, and not who puts."""
    queue: asyncio.Queue[Work] = asyncio.Queue()

    async def consume() -> Seen:
        return (await queue.get())()

    task = asyncio.create_task(consume())
    await asyncio.sleep(0)
    with turn("who puts"):
        await queue.put(work)
    return await task


HOPS = {name.removeprefix("by_"): hop for name, hop in dict(globals()).items() if name.startswith("by_")}

WITH_OUR_HELP = {
    "a_thread_that_calls_the_loop",
    "a_timer_that_calls_the_loop",
    "a_pool_that_calls_the_loop",
    "run_coroutine_threadsafe_from_a_thread",
    "run_coroutine_threadsafes_done_callback",
}
"""Hops with a thread, a pool or a done-callback on the way; the others are asyncio's alone."""


@pytest.mark.parametrize(
    "mode, hop",
    [
        (mode, hop)
        for mode in ("observe", "repair", "enforce")
        for hop in HOPS
        if mode != "observe" or hop not in WITH_OUR_HELP
    ],
)
def test_work_that_an_asyncio_hop_takes_along_sees_its_authors_key_and_span(
    runner: asyncio.Runner, on: Install, mode: str, hop: str
) -> None:
    on(mode=mode)

    async def main() -> None:
        for _ in range(2):  # on cold workers, and on warm ones
            for key in ("A", "B"):
                with turn(key) as expected:
                    assert await HOPS[hop](look) == expected
            assert await HOPS[hop](look) == NOTHING

    runner.run(main())


# --- a context that is given by hand ---------------------------------------------------------------------------------

GIVEN: dict[str, Callable[[Work, Context], Awaitable[Seen]]] = {
    "create_task": lambda work, context: asyncio.create_task(coroutine(work), context=context),
    "TaskGroup": lambda work, context: in_group(work, context),
    "call_soon": lambda work, context: called(lambda loop, fn: loop.call_soon(fn, context=context))(work),
    "call_soon_threadsafe": lambda work, context: called(
        lambda loop, fn: loop.call_soon_threadsafe(fn, context=context)
    )(work),
    "call_later": lambda work, context: called(lambda loop, fn: loop.call_later(0.001, fn, context=context))(work),
    "call_at": lambda work, context: called(lambda loop, fn: loop.call_at(loop.time(), fn, context=context))(work),
    "add_done_callback": lambda work, context: called(
        lambda loop, fn: done(loop).add_done_callback(lambda _: fn(), context=context)
    )(work),
    "call_soon from a thread": lambda work, context: called(
        lambda loop, fn: threading.Thread(
            target=loop.call_soon_threadsafe, args=(fn,), kwargs={"context": context}
        ).start()
    )(work),
    "to_thread(context.run)": lambda work, context: asyncio.to_thread(context.run, work),
    "run_in_executor(context.run)": lambda work, context: asyncio.get_running_loop().run_in_executor(
        None, context.run, work
    ),
}


async def in_group(work: Work, context: Context) -> Seen:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(coroutine(work), context=context)
    return task.result()


def done(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    future: asyncio.Future[None] = loop.create_future()
    future.set_result(None)
    return future


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("mode", ["repair", "enforce"])
def test_a_context_that_is_given_by_hand_is_what_the_work_sees(
    runner: asyncio.Runner, install: Install, given: str, mode: str
) -> None:
    install(mode=mode, keys=KEYS, spans="never")
    with turn("A") as of_a:
        context = copy_context()

    async def main() -> None:
        with turn("B"):
            assert await GIVEN[given](look, context) == of_a
            assert await GIVEN[given](look, Context()) == NOTHING
        assert await GIVEN[given](look, context) == of_a

    runner.run(main())


def test_a_runner_keeps_one_context_for_all_of_its_runs_and_a_given_one_is_the_givers(
    runner: asyncio.Runner, on: Install
) -> None:
    on()
    with turn("A") as of_a:
        given = copy_context()
    with turn("B"):
        first = runner.run(coroutine(look))
        second = runner.run(coroutine(look), context=given)
    with turn("C") as of_c, asyncio.Runner() as another:
        third = another.run(coroutine(look))
    assert [first, second, third] == [NOTHING, of_a, of_c]  # the fixture entered it where nothing was bound


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
def test_an_eager_task_sees_its_authors_key_and_span_before_and_after_it_is_suspended(
    runner: asyncio.Runner, on: Install
) -> None:
    if (3, 13) <= sys.version_info < (3, 13, 3) and "uvloop" in type(runner.get_loop()).__module__:
        pytest.skip("uvloop passes eager_start on, which the eager task factory of 3.13 takes since 3.13.3")
    on()

    async def bound_within(work: Work) -> Seen:
        with turn("within"):
            await asyncio.sleep(0)
        return work()

    async def main() -> None:
        eager: Any = asyncio.eager_task_factory  # type: ignore[attr-defined]
        asyncio.get_running_loop().set_task_factory(eager)
        for key in ("A", "B"):
            with turn(key) as expected:
                assert await by_create_task(look) == expected
                assert await by_task_group(look) == expected
                task = asyncio.create_task(bound_within(look))
                assert look() == expected  # what the eager part bound is the task's
                assert await task == expected
        assert await by_create_task(look) == NOTHING

    runner.run(main())


@pytest.mark.parametrize("make", LOOPS)
def test_a_loop_whose_thread_was_started_in_a_session_runs_what_another_session_hands_to_it_as_that_one(
    make: str, on: Install
) -> None:
    on()
    loop = LOOPS[make]()
    with turn("A") as of_a:
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
    try:
        with turn("B") as of_b:
            assert asyncio.run_coroutine_threadsafe(coroutine(look), loop).result(10) == of_b
            assert asyncio.run_coroutine_threadsafe(by_to_thread(look), loop).result(10) == of_b
        assert asyncio.run_coroutine_threadsafe(coroutine(look), loop).result(10) == NOTHING
        with turn("A") as of_a:
            assert asyncio.run_coroutine_threadsafe(coroutine(look), loop).result(10) == of_a
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def test_a_signal_handler_sees_the_session_that_it_interrupts(on: Install) -> None:
    on()
    seen: list[Seen] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(look()))
    try:
        with turn("A") as of_a:
            signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [of_a, NOTHING]


def test_an_async_generator_bound_under_a_and_closed_by_the_loops_shutdown_leaves_no_complaint(
    runner: asyncio.Runner, on: Install
) -> None:
    on()
    complaints: list[dict[str, Any]] = []
    kept: list[AsyncIterator[Seen]] = []

    async def generator() -> AsyncIterator[Seen]:
        with otelctx.bind(session="A"):
            yield look()
            yield look()

    async def begin() -> Seen:
        kept.append(generator())
        return await anext(kept[0])

    async def main() -> Seen:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        first = await asyncio.create_task(begin())
        assert look() == NOTHING
        return first

    assert runner.run(main()).key == "A"
    with turn("B") as of_b:
        runner.close()
        assert look() == of_b
    assert complaints == []
    assert look() == NOTHING


class Caller:
    async def __call__(self) -> Seen:
        await asyncio.sleep(0)
        return look()


async def look_later() -> Seen:
    await asyncio.sleep(0)
    return look()


async def raise_later() -> Seen:
    await asyncio.sleep(0)
    raise LookupError(look())


async def look_in_a_task() -> Seen:
    return await asyncio.create_task(look_later())


@pytest.mark.parametrize("work", [look_later, look_in_a_task, Caller(), functools.partial(look_later)])
@pytest.mark.parametrize("way", ["run", "wrap", "run what returns it"])
def test_what_is_awaited_as_a_snapshot_is_the_capturers_whoever_awaits_it(
    runner: asyncio.Runner, on: Install, way: str, work: Callable[[], Awaitable[Seen]]
) -> None:
    on()
    with turn("A") as of_a:
        snapshot = otelctx.capture()
    ways: dict[str, Callable[[], Awaitable[Seen]]] = {
        "run": lambda: snapshot.run(work),
        "wrap": snapshot.wrap(work),
        "run what returns it": lambda: snapshot.run(lambda: work()),
    }

    async def main() -> tuple[Seen, Seen, Seen]:
        with turn("B") as of_b:
            found = await ways[way]()
            assert look() == of_b
        return found, await ways[way](), look()

    assert runner.run(main()) == (of_a, of_a, NOTHING)


def test_what_is_wrapped_is_a_coroutine_function_where_it_was_one_and_its_exception_is_its_own(
    runner: asyncio.Runner, on: Install
) -> None:
    on()
    with turn("A") as of_a:
        wrapped = otelctx.capture().wrap(raise_later)
    assert inspect.iscoroutinefunction(wrapped)
    with turn("B") as of_b, pytest.raises(LookupError) as raised:
        runner.run(wrapped())
    assert raised.value.args == (of_a,)
    assert of_b != of_a


def test_an_undeclared_variable_that_a_captured_coroutine_sets_is_its_awaiters(
    runner: asyncio.Runner, on: Install
) -> None:
    on()
    undeclared: ContextVar[str] = ContextVar(f"{__name__}:undeclared", default="unset")

    async def set_it() -> str:
        found = undeclared.get()
        undeclared.set("by the work")
        return found

    async def main() -> tuple[str, str]:
        undeclared.set("by the awaiter")
        return await otelctx.capture().run(set_it), undeclared.get()

    assert runner.run(main()) == ("by the awaiter", "by the work")


def test_a_captured_coroutine_may_be_cancelled_and_timed_out(runner: asyncio.Runner, on: Install) -> None:
    on()
    with turn("A") as of_a:
        snapshot = otelctx.capture()
    ended: list[Seen] = []

    async def forever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(look())

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(snapshot.run(forever), 0.01)

    with turn("B"):
        runner.run(main())
    assert ended == [of_a]


def test_a_generator_function_cannot_be_wrapped() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def asynchronous() -> AsyncIterator[int]:
        yield 1

    for fn in (generator, asynchronous):
        with pytest.raises(TypeError, match="a generator function cannot be wrapped"):
            otelctx.capture().wrap(fn)
