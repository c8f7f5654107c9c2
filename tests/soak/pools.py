"""The pools: executors that are shut down under everybody's hands and made anew, and what is found in their workers."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from multiprocessing.pool import ThreadPool
from typing import Any, Final

from opentelemetry import trace

from otelctx import flow, runtime, workers
from otelctx.keys import MISSING
from tests.soak.identity import SESSION, TENANT, UNDECLARED

WORKERS: Final = 4
PATIENCE: Final = 120.0


class Pools:
    """Executors in a row; each may be replaced at any time, by anybody. Thread-safe."""

    def __init__(self, number: int) -> None:
        self._pools = [self._new() for _ in range(number)]
        self._thread_pool = ThreadPool(WORKERS)
        self._lock = threading.Lock()
        self.replaced = 0

    @staticmethod
    def _new() -> ThreadPoolExecutor:
        # One pool's workers have a context of their own from the beginning, as an application's initializer gives it.
        return ThreadPoolExecutor(WORKERS, initializer=UNDECLARED.set, initargs=("initializer's",))

    def __len__(self) -> int:
        return len(self._pools)

    def executor(self, number: int) -> ThreadPoolExecutor:
        return self._pools[number % len(self._pools)]

    def submit(self, number: int, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """Submit to a pool, whichever there is by then."""
        while True:
            try:
                return self.executor(number).submit(fn, *args)
            except RuntimeError as exc:
                if "shutdown" not in str(exc):
                    raise

    @property
    def thread_pool(self) -> ThreadPool:
        return self._thread_pool

    def replace(self, number: int, *, cancel: bool) -> list[str]:
        """Put a new pool in the place of one, which is shut down; says what was wrong in its workers.

        `cancel`: at once, with what is still queued in it cancelled; else when it has done all of its work.
        """
        fresh = ThreadPoolExecutor(WORKERS) if number % 2 else self._new()
        with self._lock:
            self.replaced += 1
            old = self._pools[number]
            self._pools[number] = fresh
        if cancel:
            old.shutdown(wait=False, cancel_futures=True)
            return []
        found = list(residue(old))
        old.shutdown(wait=True)
        return found

    def close(self) -> list[str]:
        """Look into every worker, and end them all."""
        found = [fault for pool in self._pools for fault in residue(pool)]
        for pool in self._pools:
            pool.shutdown()
        self._thread_pool.close()
        self._thread_pool.join()
        return found


def residue(pool: ThreadPoolExecutor) -> Iterator[str]:
    """What is in the real context of each idle worker of `pool` that none of its tasks should have left there."""
    started = len(pool._threads)
    if not started:
        return
    together = threading.Barrier(started)

    def look() -> list[str]:
        together.wait(PATIENCE)
        return list(_left_in(copy_context()))

    plain_submit: Any = inspect.unwrap(ThreadPoolExecutor.submit)
    for future in [plain_submit(pool, look) for _ in range(started)]:
        yield from future.result(PATIENCE)


def _left_in(context: Context) -> Iterator[str]:
    yield from _declared_in(context, "a worker")
    home = context.get(workers.HOME)
    if home is not None:
        yield from _declared_in(home.context, "a worker's home", is_home=True)


def _declared_in(context: Context, where: str, *, is_home: bool = False) -> Iterator[str]:
    declared: tuple[ContextVar[Any], ...] = (SESSION, TENANT)
    for var in declared:
        # It cannot be unset: it is cleared, and in a home, which no other code looks into, holds nothing.
        if var in context and context[var] != "" and not (is_home and context[var] is MISSING):
            yield f"{where} has {var.name} = {context[var]!r}"
    if context.get(flow.STATE) is not None:
        yield f"{where} has a binding: {context[flow.STATE]!r}"
    line = context.get(flow.registry.flow, flow.registry.root)
    if any(line.values) or line.claim is not None:
        yield f"{where} has a flow: {line.values}, {line.claim}"
    if is_home:
        return  # a task may leave an OpenTelemetry Context there, which it holds a token for
    otel = context.get(runtime.variable, runtime.empty)
    span = trace.get_current_span(otel)
    if span.get_span_context().is_valid:
        yield f"{where} has a span: {span}"
    if otel:
        yield f"{where} has an OpenTelemetry Context: {otel}"
