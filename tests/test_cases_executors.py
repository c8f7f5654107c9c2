"""Executors, pools and callbacks: whose work a worker sees, in the cases that people reported."""

from __future__ import annotations

import asyncio
import decimal
import gc
import inspect
import json
import logging
import operator
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context

import otelctx
from otelctx import metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otelctx import Mismatch
    from tests.conftest import Install

KEY: ContextVar[Any] = ContextVar("KEY")
UNDECLARED: ContextVar[Any] = ContextVar("UNDECLARED")
KEYS = {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}, {"env": "CASES_SESSION"}]}}

TIMEOUT = 20.0

before_3_14 = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="3.14's own worker has the arguments in a frame of the exception's traceback"
)
needs_3_14 = pytest.mark.skipif(sys.version_info < (3, 14), reason="needs Python 3.14")


@pytest.fixture(params=["carried", "recorded", "enforced"])
def on(request: pytest.FixtureRequest, install: Install) -> Iterator[None]:
    """Otelctx on, for each way that work can arrive: the hot path, a hop with a span, and enforce."""
    install(mode="enforce" if request.param == "enforced" else "repair", keys=KEYS)
    if request.param == "recorded":
        with trace.get_tracer(__name__).start_as_current_span("turn"):
            yield
    else:
        yield


@contextmanager
def acting_as(who: str | None) -> Iterator[None]:
    """A turn of `who`: bound by otelctx and set in the application's own variable; None is nobody's code."""
    if who is None:
        yield
        return
    token = KEY.set(who)
    try:
        with otelctx.bind(session=who):
            yield
    finally:
        KEY.reset(token)


def whose(*_: object, **__: object) -> object:
    """Whose work the calling code is; a set where its sources do not agree."""
    answers = {otelctx.get("session"), KEY.get(None), baggage.get_baggage("otelctx.session")}
    return answers.pop() if len(answers) == 1 else answers


def plainly(pool: ThreadPoolExecutor, fn: Callable[[], Any]) -> Any:
    """What `fn` sees in the pool's own thread, with nothing of otelctx in between."""
    submit: Any = inspect.unwrap(ThreadPoolExecutor.submit)
    return submit(pool, fn).result(TIMEOUT)


def submit_as(pool: ThreadPoolExecutor, who: str | None, fn: Callable[..., Any], *args: Any) -> Any:
    with acting_as(who):
        return pool.submit(fn, *args).result(TIMEOUT)


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether `holds` within the deadline: a result is there an instant before its worker lets go of the task."""
    deadline = time.monotonic() + 3
    while not holds():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.001)
    return True


# --- 1: two callers, one warm pool ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on")
def test_each_of_two_callers_at_once_finds_its_own_key_in_the_workers_of_one_warm_pool() -> None:
    with ThreadPoolExecutor(2) as pool:
        wait([pool.submit(threading.Event().wait, 0.01) for _ in range(4)])  # warm
        both = threading.Barrier(2)
        found: dict[str, set[object]] = {}

        def caller(who: str) -> None:
            with acting_as(who):
                both.wait(TIMEOUT)
                found[who] = {future.result(TIMEOUT) for future in [pool.submit(whose) for _ in range(200)]}

        callers = [threading.Thread(target=caller, args=(who,)) for who in ("A", "B")]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join(TIMEOUT)

        assert found == {"A": {"A"}, "B": {"B"}}
        assert pool.submit(whose).result(TIMEOUT) is None
        assert {plainly(pool, whose) for _ in range(4)} == {None}


@pytest.mark.parametrize("home", ["binding", "variable"])
@pytest.mark.usefixtures("on")
def test_a_key_arrives_in_the_source_that_it_departed_from_and_in_no_other(home: str) -> None:
    def sources() -> tuple[object, object]:
        return otelctx.get("session"), KEY.get("absent")

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(sources).result(TIMEOUT) == (None, "absent")
        if home == "binding":
            with otelctx.bind(session="A"):
                assert pool.submit(sources).result(TIMEOUT) == ("A", "absent")
        else:
            token = KEY.set("A")
            assert pool.submit(sources).result(TIMEOUT) == ("A", "A")
            KEY.reset(token)
        assert pool.submit(sources).result(TIMEOUT) == (None, "absent")


@pytest.mark.usefixtures("on")
def test_the_value_that_clears_a_source_arrives_as_cleared_and_not_as_absent() -> None:
    token = KEY.set("")
    try:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: KEY.get("absent")).result(TIMEOUT) == ""
    finally:
        KEY.reset(token)


# --- 2: whoever starts a worker does not stay in it -------------------------------------------------------------------


@pytest.mark.usefixtures("on")
def test_a_worker_that_a_started_is_nobodys_when_nothing_is_bound() -> None:
    def current_span() -> trace.Span:
        return trace.get_current_span()

    with ThreadPoolExecutor(1) as pool:
        with trace.get_tracer(__name__).start_as_current_span("starter"):
            assert submit_as(pool, "A", whose) == "A"
        assert pool.submit(whose).result(TIMEOUT) is None
        assert plainly(pool, whose) is None
        assert plainly(pool, current_span) is trace.INVALID_SPAN


@pytest.mark.usefixtures("on")
def test_the_initializer_of_a_worker_sees_no_key_whoever_submits_first() -> None:
    seen: list[object] = []
    with ThreadPoolExecutor(1, initializer=lambda: seen.append(whose())) as pool:
        submit_as(pool, "A", whose)
    with acting_as("A"), ThreadPoolExecutor(1, initializer=lambda: seen.append(whose())) as pool:
        list(pool.map(whose, range(2)))
    with acting_as("A"), ThreadPool(1, initializer=lambda: seen.append(whose())) as threads:
        threads.apply(whose)
    assert seen == [None, None, None]


INHERITING = """
import json, sys, threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from multiprocessing.pool import ThreadPool
import otelctx
from opentelemetry import baggage

KEY = ContextVar("KEY")
OTHER = ContextVar("OTHER")
if "on" in sys.argv:
    otelctx.install({}, keys={"session": {"sources": [{"contextvar": "__main__:KEY"}]}})

def whose(*_):
    return [KEY.get(None), otelctx.get("session"), baggage.get_baggage("otelctx.session")]

seen, initial = {}, []
with ThreadPoolExecutor(1, initializer=lambda: initial.append(whose())) as pool:
    token = KEY.set("A")
    OTHER.set("inherited")
    with otelctx.bind(session="A"):
        seen["first"] = pool.submit(whose).result()
        threads = ThreadPool(1)
        thread = threading.Thread(target=lambda: seen.update(thread=whose(), undeclared=OTHER.get(None)))
        thread.start()
        thread.join()
    KEY.reset(token)
    seen["nothing bound"] = pool.submit(whose).result()
    seen["thread pool"] = threads.apply(whose)
    thread = threading.Thread(target=lambda: seen.update(thread_after=whose()))
    thread.start()
    thread.join()
    with otelctx.bind(session="B"):
        seen["other"] = pool.submit(whose).result()
threads.terminate()
print(json.dumps(seen | {"initializer": initial[0]}))
"""


def inheriting(*arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-X", "thread_inherit_context=1", "-c", INHERITING, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs_3_14
def test_workers_are_nobodys_also_where_threads_inherit_the_context() -> None:
    a, nobody = ["A", "A", "A"], [None, None, None]

    assert inheriting()["nothing bound"][0] == "A", "the interpreter alone does not show the fault"
    assert inheriting("on") == {
        "first": a,
        "thread": a,
        "undeclared": "inherited",
        "nothing bound": nobody,
        "thread pool": nobody,
        "thread_after": nobody,
        "other": [None, "B", "B"],
        "initializer": nobody,
    }


# --- 3: what a task leaves behind -------------------------------------------------------------------------------------


def leave_behind() -> None:
    KEY.set("X")
    otelctx.attach(session="X")
    otel_context.attach(baggage.set_baggage("otelctx.session", "X"))


def leave_something_else_too() -> None:
    UNDECLARED.set("kept")
    leave_behind()


@pytest.mark.parametrize("leave", [leave_behind, leave_something_else_too])
@pytest.mark.parametrize("first", [None, "A"])
@pytest.mark.usefixtures("on")
def test_a_key_that_a_task_sets_and_never_resets_is_not_the_next_tasks(
    leave: Callable[[], None], first: str | None
) -> None:
    with ThreadPoolExecutor(1) as pool:
        for following in (None, "B", None, "A"):
            submit_as(pool, first, leave)
            assert submit_as(pool, following, whose) == following
            assert plainly(pool, whose) is None


@pytest.mark.usefixtures("on")
def test_a_key_that_a_task_left_in_the_worker_before_otelctx_was_on_is_not_the_next_tasks(
    install: Install, alerts: list[Mismatch]
) -> None:
    otelctx.uninstall()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(KEY.set, "X").result(TIMEOUT)
        install(keys=KEYS)
        assert submit_as(pool, None, whose) is None
        assert submit_as(pool, "A", whose) == "A"
    assert [(alert.reason, alert.expected, alert.observed, alert.action) for alert in alerts] == [
        ("leaked", None, "X", "repaired"),
        ("foreign", "A", "X", "repaired"),
    ]


@pytest.mark.usefixtures("on")
def test_a_key_that_an_initializer_sets_is_not_the_tasks_key() -> None:
    with ThreadPoolExecutor(1, initializer=KEY.set, initargs=("worker",)) as pool:
        assert submit_as(pool, None, whose) is None
        assert submit_as(pool, "A", whose) == "A"
        assert submit_as(pool, None, whose) is None


@pytest.mark.usefixtures("on")
def test_a_key_that_a_callback_sets_and_never_resets_is_not_the_next_tasks() -> None:
    with ThreadPoolExecutor(1) as pool:
        hold = threading.Event()
        future = pool.submit(hold.wait, TIMEOUT)
        future.add_done_callback(lambda _: leave_behind())
        hold.set()
        assert pool.submit(whose).result(TIMEOUT) is None
        assert submit_as(pool, "A", whose) == "A"


# --- 4: wrong calls, and keywords that look like ours -----------------------------------------------------------------


def echo(*args: object, **kwargs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    return args, kwargs


WRONG_CALLS: list[Callable[[ThreadPoolExecutor, ThreadPool], object]] = [
    lambda pool, threads: pool.submit(fn=echo),  # type: ignore[call-arg]
    lambda pool, threads: pool.submit(),  # type: ignore[call-arg]
    lambda pool, threads: pool.map(),  # type: ignore[call-arg]
    lambda pool, threads: pool.map(echo, [1], unknown=1),  # type: ignore[call-arg]
    lambda pool, threads: pool.map(echo, 1),  # type: ignore[arg-type]
    lambda pool, threads: Future[object]().add_done_callback(),  # type: ignore[call-arg]
    lambda pool, threads: Future[object]().add_done_callback(echo, 2),  # type: ignore[call-arg]
    lambda pool, threads: Future[object]().add_done_callback(unknown=echo),  # type: ignore[call-arg]
    lambda pool, threads: threads.apply_async(),  # type: ignore[call-arg]
    lambda pool, threads: threads.apply_async(echo, (), {}, echo, echo, 6),  # type: ignore[call-arg]
    lambda pool, threads: threads.apply_async(echo, unknown=1),  # type: ignore[call-arg]
    lambda pool, threads: threads.map(echo),  # type: ignore[call-arg]
    lambda pool, threads: threads.imap(echo),  # type: ignore[call-arg]
    lambda pool, threads: threads.imap_unordered(echo, [1], 1, 2),  # type: ignore[call-arg]
    lambda pool, threads: threading.Thread().start(1),  # type: ignore[call-arg]
    lambda pool, threads: threading.Thread.start(),  # type: ignore[call-arg]
]


@pytest.mark.parametrize("number", range(len(WRONG_CALLS)))
def test_a_wrong_call_gives_the_standard_librarys_own_type_error(install: Install, number: int) -> None:
    def complaint(pool: ThreadPoolExecutor, threads: ThreadPool) -> str:
        with pytest.raises(TypeError) as raised:
            WRONG_CALLS[number](pool, threads)
        return str(raised.value)

    with ThreadPoolExecutor(1) as pool, ThreadPool(1) as threads:
        plain = complaint(pool, threads)
        install(keys=KEYS)
        assert complaint(pool, threads) == plain


@pytest.mark.usefixtures("on")
def test_a_task_gets_keywords_that_are_named_like_the_librarys_own() -> None:
    names = {"fn": 3, "self": 4, "func": 5, "snapshot": 6, "kind": 7, "args": 8, "kwargs": 9, "captured": 10}
    with ThreadPoolExecutor(1) as pool, ThreadPool(1) as threads, acting_as("A"):
        assert pool.submit(echo, 1, **names).result(TIMEOUT) == ((1,), names)
        assert pool.submit(partial(echo, 1), **names).result(TIMEOUT) == ((1,), names)
        assert threads.apply(echo, (1,), names) == ((1,), names)
        assert threads.apply_async(func=echo, args=(1,), kwds=names, callback=None).get(TIMEOUT) == ((1,), names)


@pytest.mark.usefixtures("on")
def test_what_the_library_takes_by_keyword_is_still_taken_by_keyword() -> None:
    with ThreadPoolExecutor(1) as pool, acting_as("A"):
        assert list(pool.map(fn=whose)) == []
        assert list(pool.map(whose, [1, 2], timeout=TIMEOUT, chunksize=2)) == ["A", "A"]
        hold = threading.Event()
        future, seen = pool.submit(hold.wait, TIMEOUT), Future[object]()
        future.add_done_callback(fn=lambda _: seen.set_result(whose()))
        hold.set()
        assert seen.result(TIMEOUT) == "A"


def test_patched_methods_keep_their_signature_name_and_docstring(install: Install) -> None:
    methods = (
        (ThreadPoolExecutor, "submit"),
        (ThreadPoolExecutor, "map"),
        (Future, "add_done_callback"),
        (ThreadPool, "apply_async"),
        (ThreadPool, "imap"),
        (threading.Thread, "start"),
        (threading.Timer, "start"),
    )

    def looks() -> list[tuple[object, ...]]:
        found = [getattr(owner, name) for owner, name in methods]
        return [(inspect.signature(f), f.__name__, f.__qualname__, f.__module__, f.__doc__) for f in found]

    plain = looks()
    install(keys=KEYS)
    assert looks() == plain


# --- 5: map -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on")
def test_every_item_of_a_map_is_the_callers_whoever_consumes_it() -> None:
    def items() -> Iterator[object]:
        for _ in range(20):
            yield whose()  # the generator runs in the caller's context

    with ThreadPoolExecutor(2) as pool:
        submit_as(pool, "X", whose)
        with acting_as("A"):
            results = pool.map(lambda item: (item, whose()), items())
        with acting_as("B"):
            assert list(results) == [("A", "A")] * 20
            assert list(pool.map(whose, range(3))) == ["B"] * 3
        assert list(pool.map(whose, range(3))) == [None] * 3


@needs_3_14
@pytest.mark.usefixtures("on")
def test_items_that_a_bounded_map_submits_while_b_consumes_it_are_still_as() -> None:
    with ThreadPoolExecutor(1) as pool:
        with acting_as("A"):
            results = pool.map(whose, iter(range(20)), buffersize=1)  # type: ignore[call-arg,unused-ignore]
        with acting_as("B"):
            assert [next(results) for _ in range(10)] == ["A"] * 10
        assert list(results) == ["A"] * 10

        nobodys: Iterable[object] = pool.map(whose, range(5), buffersize=1)  # type: ignore[call-arg,unused-ignore]
        with acting_as("B"):
            assert list(nobodys) == [None] * 5


@pytest.mark.usefixtures("on")
def test_a_map_over_a_function_that_raises_raises_it_and_leaves_the_pool_in_order() -> None:
    with ThreadPoolExecutor(1) as pool, acting_as("A"):
        with pytest.raises(ZeroDivisionError):
            list(pool.map(operator.truediv, [1], [0]))
        assert list(pool.map(whose, [1])) == ["A"]


# --- 9: done-callbacks ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on")
def test_a_callback_that_a_added_runs_as_a_in_a_worker_that_b_used_last() -> None:
    with ThreadPoolExecutor(1) as pool:
        start, seen = threading.Event(), Future[object]()

        def work() -> None:
            start.wait(TIMEOUT)
            leave_behind()

        with acting_as("B"):
            future = pool.submit(work)
        with acting_as("A"):
            future.add_done_callback(lambda _: seen.set_result(whose()))
        start.set()
        assert seen.result(TIMEOUT) == "A"


@pytest.mark.usefixtures("on")
def test_a_callback_that_a_adds_to_a_finished_future_runs_as_a() -> None:
    with ThreadPoolExecutor(1) as pool, acting_as("B"):
        future = pool.submit(whose)
        wait([future])
    seen: list[object] = []
    with acting_as("A"):
        future.add_done_callback(lambda _: seen.append(whose()))
    assert seen == ["A"]


@pytest.mark.usefixtures("on")
def test_each_callback_of_one_future_is_that_of_whoever_added_it() -> None:
    future: Future[object] = Future()
    seen: list[object] = []

    def note(_: object) -> None:
        seen.append(whose())

    for who in ("A", None, "B"):
        with acting_as(who):
            future.add_done_callback(note)  # one function, three times
    with acting_as("C"):
        future.set_result(None)
        assert whose() == "C"
    assert seen == ["A", None, "B"]


@pytest.mark.usefixtures("on")
def test_a_callback_of_a_future_that_b_cancels_runs_as_a_and_leaves_b_alone() -> None:
    future: Future[object] = Future()
    seen: list[object] = []
    with acting_as("A"):
        future.add_done_callback(lambda _: seen.append(whose()))
    with acting_as("B"):
        future.cancel()
        assert whose() == "B"
    assert seen == ["A"]


@pytest.mark.usefixtures("on")
def test_a_callback_that_raises_is_logged_by_the_library_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    future: Future[object] = Future()
    seen: list[object] = []
    with acting_as("A"):
        future.add_done_callback(lambda _: operator.truediv(1, 0))
        future.add_done_callback(lambda done: seen.append((done, whose())))
    future.set_result(None)
    assert seen == [(future, "A")]
    assert [record.name for record in caplog.records] == ["concurrent.futures"]


def test_a_callback_in_a_caller_that_has_a_key_of_its_own_is_no_alert(install: Install, alerts: list[Mismatch]) -> None:
    install(keys=KEYS)
    future: Future[object] = Future()
    future.add_done_callback(whose)
    with acting_as("B"):
        future.set_result(None)
    assert alerts == []


# --- 10: nothing outlives its task ------------------------------------------------------------------------------------


class Large:
    """Stands for something large; unlike a list, it can be watched."""

    def __call__(self, *_: object, **__: object) -> None:
        return None


@pytest.fixture
def without_collector() -> Iterator[None]:
    """No garbage collector: what only it could free is not released when the task has run."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("how", ["argument", "keyword", "closure", "callable"])
@pytest.mark.parametrize("mode, recorded", [("repair", False), ("repair", True), ("observe", False)])
def test_what_ten_thousand_tasks_captured_is_garbage_once_they_ran(
    install: Install, how: str, mode: str, recorded: bool
) -> None:
    install(mode=mode, keys=KEYS)
    count = 10_000 if not recorded else 1_000
    refs: list[weakref.ref[Large]] = []
    with ThreadPoolExecutor(2) as pool, trace.get_tracer(__name__).start_as_current_span("turn") as span:
        if not recorded:
            span = trace.INVALID_SPAN
        with trace.use_span(span), otelctx.bind(session="A"):
            futures: list[Future[None]] = []
            for _ in range(count):
                large = Large()
                refs.append(weakref.ref(large))
                if how == "argument":
                    futures.append(pool.submit(echo_nothing, large))
                elif how == "keyword":
                    futures.append(pool.submit(echo_nothing, large=large))
                elif how == "closure":
                    futures.append(pool.submit(lambda it=large: echo_nothing(it)))  # type: ignore[misc]
                else:
                    futures.append(pool.submit(large))
            del large
        wait(futures)
        assert eventually(lambda: all(ref() is None for ref in refs))  # the futures and the pool are still there


negative: Any = operator.neg


def echo_nothing(*_: object, **__: object) -> None:
    return None


@before_3_14
@pytest.mark.usefixtures("without_collector", "on")
def test_the_kept_exception_of_a_failed_task_keeps_nothing_of_what_was_submitted() -> None:
    large = Large()
    ref = weakref.ref(large)
    with ThreadPoolExecutor(1) as pool:
        with acting_as("A"):
            future = pool.submit(negative, large)  # a C function: it has no frame that could keep its argument
        del large
        failure = future.exception(TIMEOUT)
        assert isinstance(failure, TypeError)
        assert eventually(lambda: ref() is None)


def is_garbage(ref: weakref.ref[Any]) -> bool:
    gc.collect()
    return ref() is None


@pytest.mark.usefixtures("on")
def test_a_finished_future_keeps_nothing_of_the_callbacks_departure() -> None:
    value = Value("A")
    ref = weakref.ref(value)
    future: Future[object] = Future()
    seen: list[object] = []
    token = KEY.set(value)
    future.add_done_callback(lambda _: seen.append(arrived()))
    KEY.reset(token)
    del token, value
    future.set_result(None)
    look_again()
    assert seen == ["A"]
    assert is_garbage(ref)


class Value(str):
    """A key's value that can be watched."""


def arrived(*_: object) -> str:
    return "".join(otelctx.get("session") or "")  # the characters, in a string of its own


def look_again() -> None:
    """Depart once more from this context, which has changed since."""
    otelctx.capture()


@pytest.mark.usefixtures("on")
def test_the_object_in_a_declared_variable_is_garbage_once_its_work_ran_and_its_context_departed_anew() -> None:
    with ThreadPoolExecutor(1) as pool:
        token = KEY.set(Value("A"))
        ref = weakref.ref(KEY.get())
        assert pool.submit(arrived).result(TIMEOUT) == "A"
        KEY.reset(token)
        del token
        look_again()
        assert eventually(lambda: is_garbage(ref))


@pytest.mark.usefixtures("on")
def test_the_object_in_a_declared_variable_is_garbage_once_its_work_ran_and_the_variable_is_reset() -> None:
    with ThreadPoolExecutor(1) as pool:
        token = KEY.set(Value("A"))
        ref = weakref.ref(KEY.get())
        assert pool.submit(arrived).result(TIMEOUT) == "A"
        KEY.reset(token)
        del token
        assert eventually(lambda: is_garbage(ref))


@pytest.mark.usefixtures("on")
def test_a_span_that_ended_is_garbage_while_the_pool_and_the_binding_live_on() -> None:
    tracer = trace.get_tracer(__name__)
    with ThreadPoolExecutor(1) as pool, otelctx.bind(session="A"):
        with tracer.start_as_current_span("departed under") as span:
            ref = weakref.ref(span)
            pool.submit(whose).result(TIMEOUT)
            list(pool.map(whose, [1]))
        del span
        assert eventually(lambda: is_garbage(ref))


# --- 11: subclasses of executors --------------------------------------------------------------------------------------


class OwnThreads(ThreadPoolExecutor):
    """Starts its threads itself, as daemon pools do."""

    def _adjust_thread_count(self) -> None:
        if not self._threads:
            thread = threading.Thread(target=self._serve, daemon=True)
            self._threads.add(thread)  # type: ignore[attr-defined,unused-ignore]
            thread.start()

    def _serve(self) -> None:
        own: Any = self
        arguments = (own._create_worker_context(),) if sys.version_info >= (3, 14) else ()
        while (item := self._work_queue.get()) is not None:
            item.run(*arguments)
            del item


class Counting(ThreadPoolExecutor):
    """Calls ``super().submit``."""

    submitted = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        return super().submit(fn, *args, **kwargs)


class Prioritised(ThreadPoolExecutor):
    """Has a ``submit`` of its own, with another signature."""

    priorities: tuple[int, ...] = ()

    def submit(self, fn: Callable[..., Any], *args: Any, priority: int) -> Future[Any]:  # type: ignore[override]
        self.priorities = (*self.priorities, priority)
        return super().submit(fn, *args)


class Naming(ThreadPoolExecutor):
    """Looks at what is submitted, for its log."""

    names: tuple[str, ...] = ()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.names = (*self.names, fn.__name__)
        return super().submit(fn, *args, **kwargs)


@pytest.mark.usefixtures("on")
def test_an_executor_that_starts_its_own_threads_gives_each_task_its_callers_key() -> None:
    with OwnThreads(1) as pool:
        for who in ("A", "B", None, "A"):
            assert submit_as(pool, who, whose) == who
            with acting_as(who):
                assert list(pool.map(whose, range(2))) == [who, who]


def test_a_thread_that_an_executor_starts_itself_inside_submit_has_no_key_of_its_own(
    install: Install, alerts: list[Mismatch]
) -> None:
    install(keys=KEYS)
    with OwnThreads(1) as pool:
        for who in ("A", "B", None):
            assert submit_as(pool, who, whose) == who
    assert alerts == []


@pytest.mark.usefixtures("on")
def test_a_submit_that_calls_the_librarys_is_one_hop() -> None:
    def hops() -> int:
        return sum(count for (kind, _), count in metrics.hop_counts().items() if kind == "executor")

    with Counting(1) as pool:
        before = hops()
        assert submit_as(pool, "A", whose) == "A"
        with acting_as("A"):
            assert list(pool.map(whose, range(2))) == ["A", "A"]
        assert submit_as(pool, None, whose) is None
        assert pool.submitted == 4
        assert hops() - before == 4


@pytest.mark.usefixtures("on")
def test_a_submit_with_a_signature_of_its_own_keeps_it_and_carries() -> None:
    with Prioritised(1) as pool, acting_as("A"):
        assert pool.submit(whose, priority=3).result(TIMEOUT) == "A"
        assert pool.priorities == (3,)
        with pytest.raises(TypeError, match="priority"):
            pool.submit(whose)  # type: ignore[call-arg]


@pytest.mark.usefixtures("on")
def test_a_submit_that_looks_at_the_function_finds_the_functions_name_also_for_the_items_of_a_map() -> None:
    with Naming(1) as pool, acting_as("A"):
        assert pool.submit(whose).result(TIMEOUT) == "A"
        assert list(pool.map(whose, [1])) == ["A"]
        assert pool.names == ("whose", "whose")


@needs_3_14
@pytest.mark.usefixtures("on")
def test_an_interpreter_pool_works_as_without_otelctx() -> None:
    from concurrent.futures import InterpreterPoolExecutor  # type: ignore[attr-defined,unused-ignore]

    with InterpreterPoolExecutor(1) as pool, acting_as("A"):
        assert pool.submit(operator.add, 1, 2).result(TIMEOUT) == 3
        assert list(pool.map(operator.add, [1], [2])) == [3]


# --- 12: multiprocessing's thread pools -------------------------------------------------------------------------------


def whose_star(one: object, other: object) -> object:
    return whose()


POOL_CALLS: dict[str, Callable[[ThreadPool], Iterable[object]]] = {
    "apply": lambda pool: [pool.apply(whose)],
    "apply_async": lambda pool: [pool.apply_async(whose).get(TIMEOUT)],
    "map": lambda pool: pool.map(whose, range(5), 2),
    "map_async": lambda pool: pool.map_async(whose, range(5), 2).get(TIMEOUT),
    "imap": lambda pool: list(pool.imap(whose, range(5))),
    "imap, in chunks": lambda pool: list(pool.imap(whose, range(5), 2)),
    "imap_unordered": lambda pool: list(pool.imap_unordered(whose, range(5))),
    "imap_unordered, in chunks": lambda pool: list(pool.imap_unordered(whose, range(5), 2)),
    "starmap": lambda pool: pool.starmap(whose_star, [(1, 2)] * 5),
    "starmap_async": lambda pool: pool.starmap_async(whose_star, [(1, 2)] * 5, 2).get(TIMEOUT),
}


@pytest.mark.parametrize("call", POOL_CALLS)
@pytest.mark.usefixtures("on")
def test_a_thread_pool_made_under_a_runs_bs_work_as_b_and_nobodys_as_nobodys(call: str) -> None:
    with acting_as("A"):
        pool = ThreadPool(1)
    with pool:
        for who in ("B", None, "C"):
            with acting_as(who):
                assert set(POOL_CALLS[call](pool)) == {who}


@pytest.mark.parametrize("outcome", ["callback", "error_callback"])
@pytest.mark.parametrize("method", ["apply_async", "map_async", "starmap_async"])
@pytest.mark.usefixtures("on")
def test_a_result_callback_of_a_thread_pool_is_that_of_whoever_asked(method: str, outcome: str) -> None:
    def fail(*_: object) -> object:
        raise ValueError("as planned")

    with acting_as("A"):
        pool = ThreadPool(1)
    with pool:
        for who in ("B", None):
            seen: Future[object] = Future()
            callback = {outcome: lambda _, seen=seen: seen.set_result(whose())}
            function = whose if outcome == "callback" else fail
            with acting_as(who):
                ask = getattr(pool, method)
                if method == "apply_async":
                    ask(function, (), {}, **callback)
                else:
                    ask(function, [(1, 2)], 1, **callback)
            assert seen.result(TIMEOUT) == who


@pytest.mark.usefixtures("on")
def test_a_thread_pools_kept_result_keeps_nothing_of_the_departure() -> None:
    with ThreadPool(1) as pool:
        token = KEY.set(Value("A"))
        ref = weakref.ref(KEY.get())
        results: list[Any] = [pool.apply_async(arrived), pool.map_async(arrived, [1])]
        assert [result.get(TIMEOUT) for result in results] == ["A", ["A"]]
        KEY.reset(token)
        del token
        look_again()
        pool.apply(whose)  # the worker's last task is another one
        assert eventually(lambda: is_garbage(ref))


# --- 15: a loop's executor --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on")
def test_a_loops_executor_runs_each_call_as_its_caller_and_it_is_one_hop() -> None:
    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        found: list[object] = []
        for who in ("A", "B", None):
            with acting_as(who):
                found.append(await loop.run_in_executor(None, whose))
                found.append(await asyncio.to_thread(whose))
                assert whose() == who
        return found

    def hops() -> int:
        return sum(count for (kind, _), count in metrics.hop_counts().items() if kind == "callback")

    before = hops()
    assert asyncio.run(main()) == ["A", "A", "B", "B", None, None]
    assert hops() == before


@pytest.mark.usefixtures("on")
def test_concurrent_tasks_of_one_loop_each_find_their_own_key_in_the_executor() -> None:
    async def turn(who: str) -> set[object]:
        with acting_as(who):
            loop = asyncio.get_running_loop()
            return set(await asyncio.gather(*(loop.run_in_executor(None, whose) for _ in range(20))))

    async def main() -> list[set[object]]:
        return await asyncio.gather(*(turn(f"T{number}") for number in range(10)))

    assert asyncio.run(main()) == [{f"T{number}"} for number in range(10)]


@pytest.mark.usefixtures("on")
def test_a_submitted_context_run_is_its_authors() -> None:
    with acting_as("A"):
        brought = copy_context()
        brought.run(UNDECLARED.set, "brought")
    with ThreadPoolExecutor(1) as pool, acting_as("A"):
        for run in (brought.run, partial(brought.run)):
            assert pool.submit(run, whose).result(TIMEOUT) == "A"
            assert pool.submit(run, UNDECLARED.get).result(TIMEOUT) == "brought"


# --- 16: one wrapped callable, many callers ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["wrap", "run", "attached"])
@pytest.mark.usefixtures("on")
def test_fifty_concurrent_calls_of_one_captured_callable_all_run_as_its_capturer(way: str) -> None:
    everybody = threading.Barrier(50)

    def work() -> object:
        everybody.wait(TIMEOUT)  # all fifty are inside
        found = whose()
        everybody.wait(TIMEOUT)
        return found

    with acting_as("A"):
        snapshot = otelctx.capture()
    wrapped = snapshot.wrap(work)

    def caller(number: int) -> tuple[object, object]:
        with acting_as(f"caller {number}"):
            if way == "wrap":
                found = wrapped()
            elif way == "run":
                found = snapshot.run(work)
            else:
                with snapshot.attached():
                    found = work()
            return found, whose()

    with ThreadPoolExecutor(50) as pool:
        results = [future.result(TIMEOUT) for future in [pool.submit(caller, number) for number in range(50)]]
    assert results == [("A", f"caller {number}") for number in range(50)]


@pytest.mark.usefixtures("on")
def test_one_bind_object_can_be_entered_by_fifty_contexts_at_once() -> None:
    everybody = threading.Barrier(50)
    binding = otelctx.bind(session="A")

    def caller(number: int) -> tuple[object, object]:
        with otelctx.bind(session=f"caller {number}"):
            with binding:
                everybody.wait(TIMEOUT)
                inside = otelctx.get("session"), baggage.get_baggage("otelctx.session")
                everybody.wait(TIMEOUT)
            assert inside == ("A", "A")
            return otelctx.get("session"), baggage.get_baggage("otelctx.session")

    with ThreadPoolExecutor(50) as pool:
        results = [future.result(TIMEOUT) for future in [pool.submit(caller, number) for number in range(50)]]
    assert results == [(f"caller {number}",) * 2 for number in range(50)]


@pytest.mark.usefixtures("on")
def test_a_wrapped_callable_may_call_itself() -> None:
    with acting_as("A"):
        snapshot = otelctx.capture()

    def countdown(number: int) -> list[object]:
        return [whose(), *(wrapped(number - 1) if number else [])]

    wrapped = snapshot.wrap(countdown)
    with acting_as("B"):
        assert wrapped(3) == ["A"] * 4
        assert whose() == "B"


# --- 47: the latest writer wins ---------------------------------------------------------------------------------------


def hop_by_submit(fn: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fn).result(TIMEOUT)


def hop_by_map(fn: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return next(iter(pool.map(lambda _: fn(), [1])))


def hop_by_thread(fn: Callable[[], object]) -> object:
    seen: Future[object] = Future()
    thread = threading.Thread(target=lambda: seen.set_result(fn()))
    thread.start()
    thread.join(TIMEOUT)
    return seen.result(0)


def hop_by_callback(fn: Callable[[], object]) -> object:
    seen: Future[object] = Future()
    with ThreadPoolExecutor(1) as pool:
        hold = threading.Event()
        pool.submit(hold.wait, TIMEOUT).add_done_callback(lambda _: seen.set_result(fn()))
        hold.set()
    return seen.result(TIMEOUT)


def hop_by_thread_pool(fn: Callable[[], object]) -> object:
    with ThreadPool(1) as pool:
        return pool.apply(fn)


def hop_by_loop(fn: Callable[[], object]) -> object:
    async def main() -> object:
        return await asyncio.get_running_loop().run_in_executor(None, fn)

    return asyncio.run(main())


HOPS = [hop_by_submit, hop_by_map, hop_by_thread, hop_by_callback, hop_by_thread_pool, hop_by_loop]


@pytest.mark.parametrize("hop", HOPS)
@pytest.mark.usefixtures("on")
def test_a_worker_that_rebinds_the_applications_variable_hops_on_as_what_it_set(
    hop: Callable[[Callable[[], object]], object], alerts: list[Mismatch]
) -> None:
    def sub_agent() -> tuple[object, object]:
        token = KEY.set("A.sub")
        try:
            return hop(whose), hop(lambda: hop(whose))
        finally:
            KEY.reset(token)

    with ThreadPoolExecutor(1) as pool:
        assert submit_as(pool, "A", sub_agent) == ("A.sub", "A.sub")
        assert submit_as(pool, "A", whose) == "A"
    assert alerts == []


def sub_agent_that_binds() -> tuple[object, object]:
    with otelctx.bind(session="A.sub"), ThreadPoolExecutor(1) as inner:
        return inner.submit(otelctx.get, "session").result(TIMEOUT), inner.submit(KEY.get).result(TIMEOUT)


def test_a_worker_that_binds_after_the_applications_variable_was_set_hops_on_as_what_it_bound(
    install: Install, alerts: list[Mismatch]
) -> None:
    install(keys=KEYS)
    with ThreadPoolExecutor(1) as pool:
        assert submit_as(pool, "A", sub_agent_that_binds) == ("A.sub", "A")
    assert alerts == []


def test_enforce_does_not_run_the_work_where_the_variable_says_another_key_than_the_binding(install: Install) -> None:
    install(mode="enforce", keys=KEYS)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(otelctx.MismatchError) as raised:
            submit_as(pool, "A", sub_agent_that_binds)
    assert (raised.value.mismatch.expected, raised.value.mismatch.observed) == ("A.sub", "A")


@pytest.mark.parametrize("hop", HOPS)
@pytest.mark.usefixtures("on")
def test_without_a_key_the_workers_variable_stays_absent_whatever_the_environment_says(
    hop: Callable[[Callable[[], object]], object], monkeypatch: pytest.MonkeyPatch, alerts: list[Mismatch]
) -> None:
    monkeypatch.setenv("CASES_SESSION", "B")
    assert hop(lambda: KEY.get("absent")) == "absent"
    assert hop(lambda: otelctx.get("session", "nobody")) == "nobody"
    assert hop(lambda: baggage.get_baggage("otelctx.session")) is None
    assert alerts == []


# --- 48: what pools share ---------------------------------------------------------------------------------------------


@pytest.fixture(params=["without otelctx", "carried", "recorded", "observed"])
def as_without(request: pytest.FixtureRequest, install: Install) -> Iterator[None]:
    """The tests below hold without otelctx (that is their first run), so they have to with it."""
    if request.param == "without otelctx":
        yield
        return
    install(mode="observe" if request.param == "observed" else "repair", keys=KEYS)
    if request.param == "recorded":
        with trace.get_tracer(__name__).start_as_current_span("turn"):
            yield
    else:
        yield


# Who submits the first task, and who the next: with or without a key each, the same or another.
PAIRS = [(None, None), ("A", "A"), ("A", None), (None, "A"), ("A", "B")]

pairs = pytest.mark.parametrize("first, following", PAIRS)
# A context in which a task left a token, and in which KEY was set, cannot serve work that is to arrive without KEY.
pairs_for_tokens = pytest.mark.parametrize("first, following", [pair for pair in PAIRS if pair != ("A", None)])


def precision() -> int:
    return decimal.getcontext().prec


@pairs
@pytest.mark.usefixtures("as_without")
def test_decimals_precision_that_one_task_sets_is_what_the_next_one_has(
    first: str | None, following: str | None
) -> None:
    def raise_precision(to: int) -> None:
        decimal.getcontext().prec = to

    with ThreadPoolExecutor(1) as pool:
        for number in (51, 52):
            submit_as(pool, first, raise_precision, number)
            assert submit_as(pool, following, precision) == number
            assert plainly(pool, precision) == number
    assert precision() == decimal.DefaultContext.prec


@pairs
@pytest.mark.usefixtures("as_without")
def test_a_context_manager_entered_in_one_task_can_be_left_in_the_next(
    first: str | None, following: str | None
) -> None:
    manager = decimal.localcontext(prec=51)
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(precision).result(TIMEOUT)
        submit_as(pool, first, manager.__enter__)
        assert submit_as(pool, following, precision) == 51
        submit_as(pool, following, manager.__exit__, None, None, None)
        assert pool.submit(precision).result(TIMEOUT) == before


@pairs
@pytest.mark.usefixtures("as_without")
def test_a_token_made_in_one_task_can_be_used_in_the_next(first: str | None, following: str | None) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(UNDECLARED.set, "outer").result(TIMEOUT)
        token = submit_as(pool, first, UNDECLARED.set, "inner")
        assert submit_as(pool, following, UNDECLARED.get) == "inner"
        submit_as(pool, following, UNDECLARED.reset, token)
        assert submit_as(pool, first, UNDECLARED.get) == "outer"
        assert plainly(pool, UNDECLARED.get) == "outer"


@pairs_for_tokens
@pytest.mark.usefixtures("as_without")
def test_a_token_made_in_a_workers_first_task_can_be_used_in_the_next(first: str | None, following: str | None) -> None:
    with ThreadPoolExecutor(1) as pool:
        token = submit_as(pool, first, UNDECLARED.set, "inner")
        submit_as(pool, following, UNDECLARED.reset, token)
        assert submit_as(pool, first, UNDECLARED.get, "unset") == "unset"
        assert plainly(pool, partial(UNDECLARED.get, "unset")) == "unset"


@contextmanager
def bound_logging_context(value: str) -> Iterator[None]:
    """As structlog's ``bound_contextvars``: tokens at entry, resets at exit."""
    tokens = [UNDECLARED.set(value)]
    try:
        yield
    finally:
        for token in tokens:
            UNDECLARED.reset(token)


@pairs_for_tokens
@pytest.mark.usefixtures("as_without")
def test_a_manager_of_tokens_entered_in_one_task_can_be_left_two_tasks_later(
    first: str | None, following: str | None
) -> None:
    with ThreadPoolExecutor(1) as pool:
        manager = bound_logging_context("bound")
        submit_as(pool, first, manager.__enter__)
        assert submit_as(pool, "C", UNDECLARED.get) == "bound"
        submit_as(pool, following, manager.__exit__, None, None, None)
        assert submit_as(pool, first, UNDECLARED.get, "unset") == "unset"


@pairs
@pytest.mark.usefixtures("as_without")
def test_a_token_that_a_worker_made_outside_of_any_task_can_be_used_in_one(
    first: str | None, following: str | None
) -> None:
    tokens: list[Any] = []
    with ThreadPoolExecutor(1, initializer=lambda: tokens.append(UNDECLARED.set("initial"))) as pool:
        assert submit_as(pool, first, UNDECLARED.get) == "initial"
        submit_as(pool, following, UNDECLARED.reset, tokens[0])
        assert submit_as(pool, first, UNDECLARED.get, "unset") == "unset"


@pairs_for_tokens
@pytest.mark.usefixtures("as_without")
def test_an_opentelemetry_token_made_in_one_task_is_detached_in_the_next_without_a_complaint(
    first: str | None, following: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def enter() -> Any:
        return otel_context.attach(baggage.set_baggage("theirs", "1"))

    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.ERROR, "opentelemetry.context"):
        token = submit_as(pool, first, enter)
        submit_as(pool, following, otel_context.detach, token)
    assert [record.message for record in caplog.records] == []


@pytest.mark.usefixtures("on")
def test_work_that_is_to_arrive_without_a_key_does_so_although_an_earlier_tasks_token_is_lost_by_it() -> None:
    with ThreadPoolExecutor(1) as pool:
        token = submit_as(pool, "A", UNDECLARED.set, "inner")
        assert submit_as(pool, None, KEY.get, "absent") == "absent"
        assert submit_as(pool, None, UNDECLARED.get) == "inner"
        with pytest.raises(ValueError, match="different Context"):
            submit_as(pool, None, UNDECLARED.reset, token)


@pairs
@pytest.mark.usefixtures("on")
def test_a_token_of_a_declared_variable_is_its_tasks_own_and_the_next_one_arrives_as_it_departed(
    first: str | None, following: str | None
) -> None:
    with ThreadPoolExecutor(1) as pool:
        token = submit_as(pool, first, KEY.set, "task's own")
        with pytest.raises(ValueError, match="different Context"):
            submit_as(pool, following, KEY.reset, token)
        assert submit_as(pool, following, KEY.get, None) == following


@pytest.mark.usefixtures("as_without")
def test_what_a_task_sets_in_an_undeclared_variable_is_in_its_worker_only() -> None:
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        submit_as(one, "A", UNDECLARED.set, "one's")
        assert submit_as(other, "A", UNDECLARED.get, "unset") == "unset"
        assert UNDECLARED.get("unset") == "unset"
        assert submit_as(one, "B", UNDECLARED.get, "unset") == "one's"


@pytest.mark.usefixtures("as_without")
def test_a_callback_in_the_worker_has_what_the_worker_s_tasks_set_in_undeclared_variables() -> None:
    seen: Future[object] = Future()
    hold = threading.Event()

    def work() -> None:
        hold.wait(TIMEOUT)
        UNDECLARED.set("worker's")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).add_done_callback(lambda _: seen.set_result(UNDECLARED.get("unset")))
        hold.set()
        assert seen.result(TIMEOUT) == "worker's"


def test_two_keys_that_one_variable_holds_leave_nothing_in_a_worker_with_a_context_of_its_own(install: Install) -> None:
    both = {"sources": [{"contextvar": f"{__name__}:KEY"}]}
    install(keys={"session": both, "tenant": both})
    with ThreadPoolExecutor(1, initializer=UNDECLARED.set, initargs=("worker's",)) as pool:
        assert submit_as(pool, "A", lambda: (KEY.get(), otelctx.get("session"), otelctx.get("tenant"))) == ("A",) * 3
        assert plainly(pool, lambda: KEY.get("absent")) == "absent"


def test_what_departed_before_opentelemetry_was_imported_arrives_in_an_empty_context_of_it() -> None:
    script = """
        import sys, threading
        from concurrent.futures import ThreadPoolExecutor
        from contextvars import ContextVar
        import otelctx
        UNDECLARED = ContextVar("UNDECLARED")
        otelctx.install({}, keys={"session": {"sources": [{"contextvar": "__main__:KEY"}]}})
        KEY = ContextVar("KEY")
        KEY.set("A")
        hold = threading.Event()
        with ThreadPoolExecutor(1, initializer=UNDECLARED.set, initargs=("worker's",)) as pool:
            pool.submit(hold.wait)
            assert "opentelemetry.context" not in sys.modules
            early = otelctx.capture()
            done = pool.submit(lambda: (KEY.get(), dict(context.get_current())))
            from opentelemetry import context
            hold.set()
            print(done.result())
            with early.attached():
                print(dict(context.get_current()))
    """
    assert ran(script) == ("('A', {})\n{}", "")


def test_work_runs_in_a_fresh_interpreter_without_any_configuration() -> None:
    script = """
        from concurrent.futures import ThreadPoolExecutor
        import otelctx
        otelctx.install()
        with ThreadPoolExecutor(1) as pool, otelctx.bind(session="A"):
            print(pool.submit(otelctx.get, "session").result())
    """
    assert ran(script) == ("A", "")


def ran(script: str) -> tuple[str, str]:
    """What `script` prints in an interpreter of its own, and what it says on stderr."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    return done.stdout.strip(), done.stderr
