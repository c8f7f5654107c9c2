"""What is finished keeps nothing: no work, no request, no span, and nothing of otelctx's that says whose it was.

Each kind of work is done once without otelctx and once with it, and its handle is kept. What went by itself without it
goes by itself with it; what needed the garbage collector, needs it still.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import Context, ContextVar
from functools import cache
from multiprocessing.pool import ThreadPool
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otelctx
from otelctx import binding, flow, metrics, runtime, workers
from otelctx.departure import Departure
from otelctx.snapshot import Snapshot
from tests.soak.memory import measure

if TYPE_CHECKING:
    from tests.conftest import Install

REQUEST: ContextVar[Any] = ContextVar("REQUEST")
UNDECLARED: ContextVar[Any] = ContextVar("UNDECLARED")
KEYS: Final = {"session": {"sources": [{"contextvar": f"{__name__}:REQUEST", "empty": [""]}]}}

TIMEOUT: Final = 20.0

_numbers = itertools.count(1)


class Thing:
    """What an application has at hand: a request, an argument, a result."""


class Refused(Exception):  # noqa: N818 - what work raises here
    pass


# --- work, of each kind; what is returned is kept --------------------------------------------------------------------


def use(*_: object, **__: object) -> None:
    return None


def refuse(*_: object) -> None:
    del _
    raise Refused


def future(pool: ThreadPoolExecutor, thing: Thing) -> object:
    done = pool.submit(use, thing)
    done.result(TIMEOUT)
    return done


def future_of_a_callable_object(pool: ThreadPoolExecutor, thing: Thing) -> object:
    done = pool.submit([thing].clear)
    done.result(TIMEOUT)
    return done


def failed_future(pool: ThreadPoolExecutor, thing: Thing) -> object:
    done = pool.submit(refuse)
    failure = done.exception(TIMEOUT)
    assert isinstance(failure, Refused)
    assert isinstance(failure.__traceback__, TracebackType)
    return done, failure


def cancelled_future(pool: ThreadPoolExecutor, thing: Thing) -> object:
    hold = threading.Event()
    before = pool.submit(hold.wait, TIMEOUT)
    waiting = pool.submit(use, thing)
    assert waiting.cancel()
    hold.set()
    before.result(TIMEOUT)
    pool.submit(use).result(TIMEOUT)  # the worker has taken it from the queue by then
    return waiting


def future_with_a_callback(pool: ThreadPoolExecutor, thing: Thing) -> object:
    done: Future[None] = Future()
    done.add_done_callback(lambda _, it=thing: use(it))  # type: ignore[misc]
    done.set_result(None)
    done._done_callbacks.clear()  # type: ignore[attr-defined]  # which keeps them, and what they close over
    return done


def future_with_a_kept_callback(pool: ThreadPoolExecutor, thing: Thing) -> object:
    done: Future[None] = Future()
    done.add_done_callback(use)
    done.set_result(None)
    return done


def mapped(pool: ThreadPoolExecutor, thing: Thing) -> object:
    results = pool.map(use, [thing, thing])
    list(results)
    return results


def executor(pool: ThreadPoolExecutor, thing: Thing) -> object:
    other = ThreadPoolExecutor(2)
    done = [other.submit(use, thing) for _ in range(3)]
    other.shutdown()
    assert all(future.done() for future in done)
    return other, done


def executor_with_cancelled_work(pool: ThreadPoolExecutor, thing: Thing) -> object:
    other, hold = ThreadPoolExecutor(1), threading.Event()
    other.submit(hold.wait, TIMEOUT)
    waiting = [other.submit(use, thing) for _ in range(3)]
    other.shutdown(wait=False, cancel_futures=True)
    hold.set()
    other.shutdown()
    assert all(future.cancelled() for future in waiting)
    return other, waiting


def thread(pool: ThreadPoolExecutor, thing: Thing) -> object:
    started = threading.Thread(target=use, args=(thing,))
    started.start()
    started.join(TIMEOUT)
    return started


def timer(pool: ThreadPoolExecutor, thing: Thing) -> object:
    started = threading.Timer(0, [thing].clear)
    started.start()
    started.join(TIMEOUT)
    return started


def cancelled_timer(pool: ThreadPoolExecutor, thing: Thing) -> object:
    started = threading.Timer(TIMEOUT, use)
    started.start()
    started.cancel()
    started.join(TIMEOUT)
    return started


def result_of_a_thread_pool(pool: ThreadPoolExecutor, thing: Thing) -> object:
    called = threading.Event()
    with ThreadPool(1) as other:
        asked = other.apply_async(use, (thing,), callback=lambda _: called.set())
        asked.get(TIMEOUT)
        assert called.wait(TIMEOUT)
        other.close()
        other.join()
    return asked, other


def results_of_a_thread_pool(pool: ThreadPoolExecutor, thing: Thing) -> object:
    with ThreadPool(1) as other:
        asked = other.map_async(use, [thing, thing])
        asked.get(TIMEOUT)
        iterator = other.imap(use, [thing, thing])
        list(iterator)
        other.close()
        other.join()
    return asked, iterator, other


def emptied_queue(pool: ThreadPoolExecutor, thing: Thing) -> object:
    items: queue.Queue[Callable[[], object]] = queue.Queue()
    items.put(otelctx.capture().wrap(use))
    pool.submit(lambda: items.get()()).result(TIMEOUT)
    return items


def asyncio_task(pool: ThreadPoolExecutor, thing: Thing) -> object:
    async def main() -> object:
        async def work(_: Thing) -> None:
            await asyncio.to_thread(use, _)

        task = asyncio.create_task(work(thing))
        await task
        executed = asyncio.get_running_loop().run_in_executor(pool, use, thing)
        await executed
        return task, executed

    return asyncio.run(main())


def process(pool: ThreadPoolExecutor, thing: Thing) -> object:
    started = subprocess.Popen([sys.executable, "-S", "-c", ""])
    assert started.wait(TIMEOUT) == 0
    return started


def spawned_process(pool: ThreadPoolExecutor, thing: Thing) -> object:
    started = multiprocessing.get_context("spawn").Process(target=time.time)
    started.start()
    started.join(TIMEOUT)
    assert started.exitcode == 0
    return started


KINDS: Final = (
    future,
    future_of_a_callable_object,
    failed_future,
    cancelled_future,
    future_with_a_callback,
    future_with_a_kept_callback,
    mapped,
    executor,
    executor_with_cancelled_work,
    thread,
    timer,
    cancelled_timer,
    result_of_a_thread_pool,
    results_of_a_thread_pool,
    emptied_queue,
    asyncio_task,
    process,
)

# --- what is left ----------------------------------------------------------------------------------------------------


OURS: Final = {flow.Flow, flow.State, flow.Binding, Snapshot, Departure, binding.Token, Context}


class Left(NamedTuple):
    """What is still there once the work is finished, while its handle is kept."""

    at_once: frozenset[str]
    """Before the garbage collector has run."""
    collected: frozenset[str]
    ours: frozenset[str]
    """Types of otelctx's objects that say whose the work was, and of contexts in which they are."""


def left_by(kind: Callable[[ThreadPoolExecutor, Thing], object], *, recorded: bool, patience: float) -> Left:
    refs: dict[str, weakref.ref[object]] = {}
    who = f"only here:{next(_numbers)}"
    tracer = trace.get_tracer(__name__)

    def turn(pool: ThreadPoolExecutor) -> object:
        thing, request = Thing(), Thing()
        refs["thing"], refs["request"] = weakref.ref(thing), weakref.ref(request)
        REQUEST.set(request)
        with otelctx.bind(session=who), tracer.start_as_current_span("turn") if recorded else nullcontext() as span:
            if span is not None:
                refs["span"] = weakref.ref(span)
            return kind(pool, thing)

    gc.disable()
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(use).result(TIMEOUT)
            handle = Context().run(turn, pool)
            deadline = time.monotonic() + patience
            # A result is there an instant before its worker lets go of the work.
            while any(ref() for ref in refs.values()) and time.monotonic() < deadline:
                threading.Event().wait(0.001)
            at_once = frozenset(name for name, ref in refs.items() if ref() is not None)
            gc.collect()
            collected = frozenset(name for name, ref in refs.items() if ref() is not None)
            ours = frozenset(type(it).__name__ for it in gc.get_objects() if type(it) in OURS and says(it, who))
            del handle
        return Left(at_once, collected, ours)
    finally:
        gc.enable()


STATE: Final[ContextVar[Any]] = flow.STATE


def says(it: object, who: str) -> bool:
    """Whether `it` is an object of otelctx's that says `who`, or a context with one in it."""
    if isinstance(it, flow.Flow):
        return who in it.values
    if isinstance(it, flow.State):
        return any(bound.value == who for bound in it.bound.values())
    if isinstance(it, flow.Binding):
        return it.value == who
    if isinstance(it, Snapshot):
        return says(it.flow, who) or says(it.before, who)
    if isinstance(it, Departure):
        return says(it.snapshot, who) or says(it.captured, who)
    if isinstance(it, binding.Token):
        return says(it.after, who)
    return isinstance(it, Context) and says(it.get(STATE), who)


WAYS: Final = {"carried": ("repair", False), "recorded": ("enforce", True), "observed": ("observe", False)}


@cache
def without_otelctx(kind: Callable[[ThreadPoolExecutor, Thing], object], *, recorded: bool) -> Left:
    return left_by(kind, recorded=recorded, patience=0.2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_finished_work_keeps_nothing_that_it_would_not_keep_without_otelctx(
    install: Install, kind: Callable[[ThreadPoolExecutor, Thing], object], way: str
) -> None:
    if kind is failed_future and sys.version_info >= (3, 14):
        pytest.skip("3.14's own worker has what was submitted in a frame of the exception's traceback")
    mode, recorded = WAYS[way]
    without = without_otelctx(kind, recorded=recorded)
    install(mode=mode, keys=KEYS)
    left = left_by(kind, recorded=recorded, patience=3 if not without.at_once else 0.2)
    assert left.at_once <= without.at_once
    assert left.collected <= without.collected
    assert left.ours <= without.ours


def test_a_finished_spawned_process_keeps_nothing(install: Install) -> None:
    install(keys=KEYS)
    assert left_by(spawned_process, recorded=False, patience=3) == (frozenset(),) * 3


# --- workers ---------------------------------------------------------------------------------------------------------


def in_the_worker(pool: ThreadPoolExecutor, look: Callable[[], Any]) -> Any:
    """What `look` finds in the pool's own worker, with nothing of otelctx in between."""
    submit: Any = ThreadPoolExecutor.submit
    return submit.__wrapped__(pool, look).result(TIMEOUT)


def leaves_a_variable(*_: object) -> None:
    UNDECLARED.set("the worker's")


def test_a_worker_in_which_a_task_left_a_variable_keeps_neither_its_request_nor_its_span(install: Install) -> None:
    install(keys=KEYS)
    refs: list[weakref.ref[object]] = []

    def turn(pool: ThreadPoolExecutor) -> None:
        request = Thing()
        REQUEST.set(request)
        with trace.get_tracer(__name__).start_as_current_span("turn") as span:
            refs.extend((weakref.ref(request), weakref.ref(span)))
            pool.submit(leaves_a_variable).result(TIMEOUT)

    with ThreadPoolExecutor(1) as pool:
        Context().run(turn, pool)
        assert in_the_worker(pool, UNDECLARED.get) == "the worker's"
        gc.collect()
        assert [ref() for ref in refs] == [None, None]


def test_a_declared_variable_that_a_task_left_is_cleared_in_a_worker_with_a_context_of_its_own(
    install: Install,
) -> None:
    alerts: list[object] = []
    install(keys=KEYS)
    forget = otelctx.on_mismatch(alerts.append)
    with ThreadPoolExecutor(1, initializer=leaves_a_variable) as pool:
        pool.submit(REQUEST.set, "left").result(TIMEOUT)
        assert in_the_worker(pool, lambda: REQUEST.get("absent")) == ""
        for _ in range(2):
            assert pool.submit(lambda: REQUEST.get("absent")).result(TIMEOUT) == "absent"
            pool.submit(REQUEST.set, Thing()).result(TIMEOUT)
        home = in_the_worker(pool, workers.HOME.get)
        assert not isinstance(home.context.get(REQUEST), Thing)
    forget()
    assert alerts == []


@pytest.mark.parametrize("has_context", [False, True], ids=["neutral", "its own"])
def test_an_idle_worker_has_nothing_in_it_that_its_tasks_carried(install: Install, has_context: bool) -> None:
    install(keys=KEYS)
    initializer = leaves_a_variable if has_context else None
    with ThreadPoolExecutor(1, initializer=initializer) as pool:
        with (
            otelctx.bind(session="A"),
            otelctx.shed_claim(),
            trace.get_tracer(__name__).start_as_current_span("turn"),
        ):
            pool.submit(otelctx.attach, session="left").result(TIMEOUT)
            pool.submit(use).result(TIMEOUT)
        found = in_the_worker(
            pool,
            lambda: (REQUEST.get(None), flow.STATE.get(), flow.registry.flow.get().is_empty, runtime.variable.get()),
        )
        assert found == (None, None, True, runtime.empty)


# --- many sessions ---------------------------------------------------------------------------------------------------


def labels_of(reader: InMemoryMetricReader) -> list[dict[str, Any]]:
    """The attributes of each series that is exported."""
    data = reader.get_metrics_data()
    assert data is not None
    return [
        dict(point.attributes or {})
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]


SESSIONS = int(os.environ.get("OTELCTX_SESSIONS", "30000"))


@pytest.mark.timeout(240)
def test_thousands_of_sessions_one_after_another_leave_no_table_longer(install: Install) -> None:
    reader = InMemoryMetricReader()
    install(keys=KEYS)
    metrics.register(MeterProvider([reader]))
    seen: list[object] = []
    forget = otelctx.on_mismatch(lambda _: seen.append(1))
    handle = Thing()

    def serve(sessions: range, pool: ThreadPoolExecutor) -> None:
        for number in sessions:
            who = f"session:{number}"
            with otelctx.bind(session=who):
                if number % 5 == 0:
                    otelctx.capture().run(use)
                    otelctx.record_owner(handle, who)
                if number % 500 == 0:
                    REQUEST.set(who)
                    otelctx.record_owner(Thing())
                    with trace.get_tracer(__name__).start_as_current_span("turn"):
                        pool.submit(use).result(TIMEOUT)
                    with otelctx.cron_run(f"job:{number}"):
                        pool.submit(use).result(TIMEOUT)
                    otelctx.resolve_owner(handle, "another")

    with ThreadPoolExecutor(1) as pool:
        Context().run(serve, range(10_000), pool)
        first, labels = measure(), labels_of(reader)
        Context().run(serve, range(10_000, SESSIONS), pool)
        last = measure()
    forget()
    assert len(seen) > 0
    grown = {name: (first.tables[name], now) for name, now in last.tables.items() if now > first.tables[name] + 8}
    # A table with a limit: it is emptied when it is full, and at any moment has some of its entries.
    grown.pop("owners by flow", None)
    grown.pop("Owner", None)  # those that two such tables hold
    assert grown == {}
    assert last.blocks - first.blocks < 5_000
    assert len(labels_of(reader)) == len(labels)
    assert not any("session:" in str(value) for attributes in labels_of(reader) for value in attributes.values())
    metrics.register()


@pytest.fixture(autouse=True)
def _no_spans_are_kept(spans: Any) -> Iterator[None]:
    """The exporter of the tests keeps what it gets: not in these."""
    spans.shutdown()
    yield
    spans._stopped = False
