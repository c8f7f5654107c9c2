"""``beside_program.py OTHER ORDER``: what work sees of its session, and of another instrumentation's trace.

ORDER: otelctx is installed ``before`` the other, ``after`` it, or it is ``off``. What is seen of a trace is told by the
session whose turn began it. Then otelctx is uninstalled, and the same work is done again.
"""

# ruff: noqa: E402
# mypy: disable-error-code="import-not-found,import-untyped,no-any-return"

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

other, order = sys.argv[1:]

import greenlet_program as application

if order == "before":
    application.install("repair")

began: dict[object, str] = {None: "none"}


def sentry() -> tuple[Callable[[str], Any], Callable[[], object]]:
    import sentry_sdk
    from sentry_sdk.integrations.asyncio import AsyncioIntegration
    from sentry_sdk.integrations.threading import ThreadingIntegration

    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        transport=lambda envelope: None,
        integrations=[ThreadingIntegration(propagate_scope=True), AsyncioIntegration()],
        traces_sample_rate=1.0,
    )

    @contextmanager
    def turn(key: str) -> Iterator[None]:
        with sentry_sdk.isolation_scope(), sentry_sdk.start_transaction(name=key) as transaction:
            began[transaction.trace_id] = key
            yield

    def trace() -> object:
        span = sentry_sdk.get_current_span()
        return None if span is None else span.trace_id

    return turn, trace


def ddtrace() -> tuple[Callable[[str], Any], Callable[[], object]]:
    import ddtrace.auto  # noqa: F401
    from ddtrace.trace import tracer

    @contextmanager
    def turn(key: str) -> Iterator[None]:
        with tracer.trace("turn") as span:
            began[span.trace_id] = key
            yield

    def trace() -> object:
        context = tracer.current_trace_context()
        return None if context is None else context.trace_id

    return turn, trace


def logfire() -> tuple[Callable[[str], Any], Callable[[], object]]:
    import logfire

    logfire.configure(send_to_logfire=False, console=False)
    return _by_opentelemetry(logfire.span)


def opentelemetry() -> tuple[Callable[[str], Any], Callable[[], object]]:
    from opentelemetry import trace
    from opentelemetry.instrumentation.asyncio import AsyncioInstrumentor
    from opentelemetry.instrumentation.threading import ThreadingInstrumentor
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())
    ThreadingInstrumentor().instrument()
    AsyncioInstrumentor().instrument()
    return _by_opentelemetry(trace.get_tracer("app").start_as_current_span)


def _by_opentelemetry(span_of: Callable[[str], Any]) -> tuple[Callable[[str], Any], Callable[[], object]]:
    from opentelemetry import trace

    @contextmanager
    def turn(key: str) -> Iterator[None]:
        with span_of(key):
            began[trace.get_current_span().get_span_context().trace_id] = key
            yield

    def current() -> object:
        return trace.get_current_span().get_span_context().trace_id or None

    return turn, current


turn, trace = globals()[other]()
if order == "after":
    application.install("repair")

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool


def look(*_: object) -> tuple[str | None, str]:
    return application.look(), began.get(trace(), "another")


def told(schedule: Callable[[Callable[..., None]], object]) -> tuple[str | None, str]:
    seen: list[tuple[str | None, str]] = []
    done = threading.Event()

    def callback(*_: object) -> None:
        seen.append(look())
        done.set()

    schedule(callback)
    assert done.wait(10)
    return seen[0]


class Overriding(threading.Thread):
    def run(self) -> None:
        self.callback()  # type: ignore[attr-defined]


def overriding(callback: Callable[..., None]) -> None:
    thread = Overriding()
    thread.callback = callback  # type: ignore[attr-defined]
    thread.start()


executor = ThreadPoolExecutor(1)
pool = ThreadPool(1)


def by_done_callback(callback: Callable[..., None]) -> None:
    release = threading.Event()
    executor.submit(release.wait, 10).add_done_callback(callback)
    release.set()


async def child() -> tuple[str | None, str]:
    await asyncio.sleep(0)
    return look()


async def in_group() -> tuple[str | None, str]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(child())
    return task.result()


async def task() -> tuple[str | None, str]:
    return await asyncio.create_task(child())


async def in_executor() -> tuple[str | None, str]:
    return await asyncio.get_running_loop().run_in_executor(executor, look)


async def called_from_a_thread() -> tuple[str | None, str]:
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[tuple[str | None, str]] = loop.create_future()
    threading.Thread(target=loop.call_soon_threadsafe, args=(lambda: seen.set_result(look()),)).start()
    return await seen


hops: dict[str, Callable[[], Any]] = {
    "submit": lambda: executor.submit(look).result(10),
    "map": lambda: next(executor.map(look, [1])),
    "ThreadPool": lambda: pool.apply(look),
    "Thread": lambda: told(lambda callback: threading.Thread(target=callback).start()),
    "Thread subclass": lambda: told(overriding),
    "Timer": lambda: told(lambda callback: threading.Timer(0.001, callback).start()),
    "done-callback": lambda: told(by_done_callback),
    "create_task": lambda: asyncio.run(task()),
    "TaskGroup": lambda: asyncio.run(in_group()),
    "to_thread": lambda: asyncio.run(asyncio.to_thread(look)),
    "run_in_executor": lambda: asyncio.run(in_executor()),
    "a thread that calls the loop": lambda: asyncio.run(called_from_a_thread()),
}


def seen() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in hops}
    for key in ("A", "B"):
        with application.session(key), turn(key):
            for name, hop in hops.items():
                found[name].append(hop())
    for name, hop in hops.items():
        found[name].append(hop())
    return found


report: dict[str, Any] = {"seen": seen(), "alerts": application.alerts, "errors": {}}
if order != "off":
    import otelctx
    from otelctx import metrics

    otelctx.uninstall()
    report["errors"] = metrics.error_counts()
    report["afterwards"] = seen()
executor.shutdown()
pool.close()
print(json.dumps(report))
