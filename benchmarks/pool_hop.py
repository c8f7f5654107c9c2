"""What a hop costs: plain, with OpenTelemetry's threading instrumentation, and with otelctx, in one process and run.

The path is the real one: the installed patches, ``submit``, the executor's own queue and its items' own ``run``. What
is left out is the switch to another thread, which costs many times the hop and differs each time: the executor starts
no worker, and the queue is emptied here, in an empty context such as a worker has (`ManualExecutor`).

A machine's noise only ever adds. So each variant is measured in many short batches, in turn with the others, by the
CPU time of this thread, and its fastest batch counts.
"""

from __future__ import annotations

import gc
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.instrumentation.threading import ThreadingInstrumentor
from opentelemetry.sdk.trace import TracerProvider

import otelctx

SESSION: ContextVar[str] = ContextVar("SESSION")
TENANT: ContextVar[str] = ContextVar("TENANT")
UNDECLARED: ContextVar[str] = ContextVar("UNDECLARED")

KEYS: Final = {
    "session": {"sources": [{"contextvar": f"{__name__}:SESSION"}]},
    "tenant": {"sources": [{"contextvar": f"{__name__}:TENANT"}]},
}

BATCHES: Final = 4
"""Batches of a row in each round; the first warms the interpreter's caches up, and counts as any other."""


# --- what departs ----------------------------------------------------------------------------------------------------


@contextmanager
def bound() -> Iterator[None]:
    with otelctx.bind(session="slack:C1", tenant="acme"):
        yield


@contextmanager
def own_variables() -> Iterator[None]:
    session, tenant = SESSION.set("slack:C1"), TENANT.set("acme")
    try:
        yield
    finally:
        TENANT.reset(tenant)
        SESSION.reset(session)


@contextmanager
def bound_in_an_unsampled_span() -> Iterator[None]:
    span = trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False, trace_flags=trace.TraceFlags(0)))
    with otelctx.bind(session="slack:C1", tenant="acme"), trace.use_span(span):
        yield


@contextmanager
def bound_in_a_span() -> Iterator[None]:
    with otelctx.bind(session="slack:C1", tenant="acme"), trace.get_tracer(__name__).start_as_current_span("parent"):
        yield


# --- hops ------------------------------------------------------------------------------------------------------------


def work(*_: object) -> None:
    """What hops: nothing that takes time."""


class ManualExecutor(ThreadPoolExecutor):
    """One that starts no thread: what is submitted stays in its queue until `run_all`."""

    def _adjust_thread_count(self) -> None:
        pass

    def run_all(self, number: int) -> None:
        """Run what was submitted, as a worker does."""
        queue: Any = self._work_queue
        if sys.version_info >= (3, 14):
            worker = self._create_worker_context()
            for _ in range(number):
                queue.get_nowait().run(worker)
        else:
            for _ in range(number):
                queue.get_nowait().run()


def submit(number: int) -> float:
    """Seconds for `number` submissions and their arrivals in an empty worker."""
    return _submit(number, Context())


def submit_to_used_worker(number: int) -> float:
    """The same where the worker's context has a variable of its own."""
    worker = Context()
    worker.run(UNDECLARED.set, "the worker's own")
    return _submit(number, worker)


def submit_to_worker_that_keeps(number: int) -> float:
    """The same where an earlier task has left a variable in the worker's context."""
    worker = Context()
    executor = ManualExecutor(1)
    left = executor.submit(lambda: UNDECLARED.set("a task's"))
    worker.run(executor.run_all, 1)
    left.result(0)
    return _submit(number, worker)


def _submit(number: int, worker: Context) -> float:
    executor = ManualExecutor(1)
    started = time.thread_time()
    for _ in range(number):
        last = executor.submit(work)
    departed = time.thread_time() - started
    started = time.thread_time()
    worker.run(executor.run_all, number)
    arrived = time.thread_time() - started
    last.result(0)  # raises where the work did not run
    return departed + arrived


_number = itertools.count()


def submit_under_new_contexts(number: int) -> float:
    """The same, each under an OpenTelemetry Context that no hop has seen before."""
    return _submit_under(number, [otel_context.set_value("request", next(_number)) for _ in range(number)])


def submit_under_new_unsampled_spans(number: int) -> float:
    """The same, each under a span of its own that is not sampled."""
    spans = (
        trace.NonRecordingSpan(trace.SpanContext(1, 1 + next(_number), False, trace.TraceFlags(0)))
        for _ in range(number)
    )
    return _submit_under(number, [trace.set_span_in_context(span) for span in spans])


def _submit_under(number: int, contexts: list[otel_context.Context]) -> float:
    executor = ManualExecutor(1)
    attach, detach = otel_context.attach, otel_context.detach
    started = time.thread_time()
    for context in contexts:
        token = attach(context)
        last = executor.submit(work)
        detach(token)
    departed = time.thread_time() - started
    started = time.thread_time()
    Context().run(executor.run_all, number)
    arrived = time.thread_time() - started
    last.result(0)
    return departed + arrived


def add_done_callback(number: int) -> float:
    """Seconds for `number` callbacks, added here and run where their futures finish."""
    futures: list[Future[None]] = [Future() for _ in range(number)]
    started = time.thread_time()
    for future in futures:
        future.add_done_callback(work)
    added = time.thread_time() - started

    def finish() -> None:
        for future in futures:
            future.set_result(None)

    started = time.thread_time()
    Context().run(finish)
    return added + time.thread_time() - started


def start_thread(number: int) -> float:
    """Seconds for `number` threads' ``start`` and ``run``, without the operating system's part in it."""
    threads = [threading.Thread(target=work) for _ in range(number)]
    with mock.patch.object(threading, _START, _run_at_once):
        started = time.thread_time()
        for thread in threads:
            thread.start()
        return time.thread_time() - started


_START: Final = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"


def _run_at_once(bootstrap: Any, *_: object, **__: object) -> None:
    thread = bootstrap.__self__
    threading._limbo.pop(thread, None)  # type: ignore[attr-defined]
    thread._started.set()
    context: Context | None = getattr(thread, "_context", None)
    (context if context is not None else Context()).run(thread.run)


# --- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One kind of hop: in what it departs, and how long `number` of them take."""

    name: str
    scene: Callable[[], AbstractContextManager[None]]
    hops: Callable[[int], float]
    number: int = 100
    budget: float | None = None
    """How much otelctx may add, as a part of what OpenTelemetry adds: what `--check` holds it to."""
    mode: str = "repair"


ROWS: Final = (
    Row("pool hop, two keys bound by otelctx", bound, submit, budget=0.8),
    Row("pool hop, two ContextVars of the application's", own_variables, submit, budget=0.8),
    Row("pool hop, nothing bound", nullcontext, submit, budget=0.8),
    Row("pool hop, under a span that is not sampled", bound_in_an_unsampled_span, submit, budget=0.85),
    Row("pool hop, a new OpenTelemetry Context each time", bound, submit_under_new_contexts, budget=1.5),
    Row("pool hop, a new unsampled span each time", bound, submit_under_new_unsampled_spans, budget=1.6),
    Row("pool hop, to a worker with a context of its own", bound, submit_to_used_worker, budget=1.9),
    Row("pool hop, to a worker in which a task left a variable", bound, submit_to_worker_that_keeps, budget=4.0),
    Row("pool hop, parent recorded (a hop span each)", bound_in_a_span, submit, number=20),
    Row("pool hop, observed", bound, submit, number=20, mode="observe"),
    Row("Thread.start", bound, start_thread, number=50),
    Row("add_done_callback", bound, add_done_callback),
)


@dataclass(frozen=True)
class Cost:
    """Seconds a hop takes, by variant."""

    plain: float
    opentelemetry: float
    otelctx: float

    @property
    def ratio(self) -> float | None:
        """What otelctx adds over what OpenTelemetry adds; None where that is nothing to speak of."""
        theirs, ours = self.opentelemetry - self.plain, self.otelctx - self.plain
        return ours / theirs if theirs > 0.05 * self.plain else None


@contextmanager
def _plain(mode: str) -> Iterator[None]:
    yield


@contextmanager
def _with_opentelemetry(mode: str) -> Iterator[None]:
    instrumentor = ThreadingInstrumentor()
    instrumentor.instrument()
    try:
        yield
    finally:
        instrumentor.uninstrument()


@contextmanager
def _with_otelctx(mode: str) -> Iterator[None]:
    otelctx.install({}, keys=KEYS, mode=mode)
    try:
        yield
    finally:
        otelctx.uninstall()


def measure(rounds: int, rows: tuple[Row, ...] = ROWS) -> dict[Row, Cost]:
    """What each row costs. For one thread at a time: it turns instrumentation on and off in this process."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    logging.getLogger("otelctx").setLevel(logging.CRITICAL)  # in observe, the first loss of each round is told
    with _with_otelctx("repair"):
        pass  # declares the keys, which plain hops bind too
    variants: dict[str, Callable[[str], AbstractContextManager[None]]] = {
        "plain": _plain,
        "opentelemetry": _with_opentelemetry,
        "otelctx": _with_otelctx,
    }
    fastest: dict[tuple[Row, str], float] = {}
    modes = dict.fromkeys(row.mode for row in rows)
    for _, mode, (variant, installed) in itertools.product(range(rounds), modes, variants.items()):
        with installed(mode):
            for row in rows:
                if row.mode == mode:
                    seconds = Context().run(_fastest_batch, row)
                    fastest[row, variant] = min(seconds, fastest.get((row, variant), seconds))
    return {row: Cost(**{variant: fastest[row, variant] for variant in variants}) for row in rows}


def _fastest_batch(row: Row) -> float:
    with row.scene():
        gc.collect(0)
        gc.disable()
        try:
            return min(row.hops(row.number) for _ in range(BATCHES)) / row.number
        finally:
            gc.enable()
