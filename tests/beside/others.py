"""The others: how each is turned on, how one of its traces is begun, what work sees of it, and how it is turned off."""

# mypy: disable-error-code="import-not-found,import-untyped,no-any-return"

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, TypeAlias

Turn: TypeAlias = Callable[[str], AbstractContextManager[None]]


class Other(NamedTuple):
    """Another instrumentation that is on."""

    turn: Turn
    """Begins a trace, for the session of the key."""
    trace: Callable[[], str]
    """The key of the trace that is current here: "none", and "another" for one that no turn began."""
    off: Callable[[], object]
    """Turns it off, as far as it can be."""


def sentry() -> Other:
    import sentry_sdk
    from sentry_sdk.integrations.asyncio import AsyncioIntegration
    from sentry_sdk.integrations.threading import ThreadingIntegration

    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        transport=lambda envelope: None,
        integrations=[ThreadingIntegration(propagate_scope=True), AsyncioIntegration()],
        traces_sample_rate=1.0,
    )
    began: dict[object, str] = {}

    @contextmanager
    def turn(key: str) -> Iterator[None]:
        with sentry_sdk.isolation_scope(), sentry_sdk.start_transaction(name=key) as transaction:
            began[transaction.trace_id] = key
            yield

    def trace() -> str:
        span = sentry_sdk.get_current_span()
        return "none" if span is None else began.get(span.trace_id, "another")

    def off() -> None:  # its wrappers stay, and look for a client
        sentry_sdk.get_client().close()
        sentry_sdk.get_global_scope().set_client(None)

    return Other(turn, trace, off)


def ddtrace_auto() -> Other:
    import ddtrace.auto  # noqa: F401

    return _ddtrace(lambda: None)


def ddtrace() -> Other:
    """Its instrumentation of threads and of asyncio alone: nothing turns off all that it does by itself."""
    from ddtrace import patch
    from ddtrace.contrib.internal.asyncio.patch import unpatch as unpatch_asyncio
    from ddtrace.contrib.internal.futures.patch import unpatch as unpatch_futures

    patch(futures=True, asyncio=True)

    def off() -> None:
        unpatch_futures()
        unpatch_asyncio()

    return _ddtrace(off)


def _ddtrace(off: Callable[[], object]) -> Other:
    from ddtrace.trace import tracer

    began: dict[object, str] = {}

    @contextmanager
    def turn(key: str) -> Iterator[None]:
        with tracer.trace("turn") as span:
            began[span.trace_id] = key
            yield

    def trace() -> str:
        context = tracer.current_trace_context()
        return "none" if context is None else began.get(context.trace_id, "another")

    return Other(turn, trace, off)


def logfire() -> Other:
    import logfire

    logfire.configure(send_to_logfire=False, console=False)
    return _by_opentelemetry(logfire.span, logfire.shutdown)


def otel_threading() -> Other:
    from opentelemetry.instrumentation.threading import ThreadingInstrumentor

    return _opentelemetrys(ThreadingInstrumentor())


def otel_asyncio() -> Other:
    from opentelemetry.instrumentation.asyncio import AsyncioInstrumentor

    return _opentelemetrys(AsyncioInstrumentor())


def opentelemetry() -> Other:
    threads, tasks = otel_threading(), otel_asyncio()
    return Other(threads.turn, threads.trace, lambda: (tasks.off(), threads.off()))


def _opentelemetrys(instrumentor: Any) -> Other:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    instrumentor.instrument()
    return _by_opentelemetry(trace.get_tracer("app").start_as_current_span, instrumentor.uninstrument)


def _by_opentelemetry(span_of: Callable[[str], Any], off: Callable[[], object]) -> Other:
    from opentelemetry import trace

    began: dict[object, str] = {0: "none"}

    @contextmanager
    def turn(key: str) -> Iterator[None]:
        with span_of(key):
            began[trace.get_current_span().get_span_context().trace_id] = key
            yield

    def current() -> str:
        return began.get(trace.get_current_span().get_span_context().trace_id, "another")

    return Other(turn, current, off)
