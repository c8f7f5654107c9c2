"""What work sees, written down: one JSON line for each sighting, span and alert, in the file that SIGHTINGS names.

Every process of a test imports this: those that send work, and the workers. `APP_KEY` stands for an application's own
variable. It has no default and no empty value, so that nothing but a context of its own can take it away again.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

import otelctx

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

APP_KEY: ContextVar[str] = ContextVar("app_key")

IS_ON = os.environ.get("OTELCTX_ENABLED") == "true"


def write(what: str, **said: Any) -> None:
    """Write one line; lines of several processes do not mix."""
    line = json.dumps({"what": what, "pid": os.getpid(), "clock": time.time(), **said}, default=str)
    file = os.open(os.environ["SIGHTINGS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode() + b"\n")
    finally:
        os.close(file)


def see(label: str, **more: Any) -> None:
    """Write down what the current context is: for otelctx, for the application, for OpenTelemetry."""
    write(
        "sighting",
        label=label,
        key=otelctx.get("session"),
        app=APP_KEY.get(None),
        baggage=baggage.get_baggage("otelctx.session"),
        others=baggage.get_baggage("user"),
        claim=otelctx.claim_state(),
        task=getattr(otelctx.current_claim(), "task_id", None),
        attempt=getattr(otelctx.current_claim(), "attempt", None),
        **more,
    )


@contextmanager
def session(key: str) -> Iterator[None]:
    """A turn of the session `key`, as an application has one that knows nothing of otelctx."""
    token = APP_KEY.set(key)
    otel = context.attach(baggage.set_baggage("user", key))
    try:
        yield
    finally:
        context.detach(otel)
        APP_KEY.reset(token)


def ambient() -> None:
    """Start this process in a turn of the session that AMBIENT names, as somebody who types its command does."""
    if key := os.environ.get("AMBIENT"):
        APP_KEY.set(key)
        context.attach(baggage.set_baggage("user", key))
        otelctx.attach(session=key)


class _Exporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            own, parent = span.get_span_context(), span.parent
            write(
                "span",
                name=span.name,
                kind=span.kind.name,
                trace=f"{own.trace_id:032x}" if own else None,
                span=f"{own.span_id:016x}" if own else None,
                parent=f"{parent.span_id:016x}" if parent else None,
                links=[f"{link.context.span_id:016x}" for link in span.links],
                attributes=dict(span.attributes or {}),
            )
        return SpanExportResult.SUCCESS


def telemetry() -> None:
    """Write down spans and alerts of this process too."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_Exporter()))
    trace.set_tracer_provider(provider)
    otelctx.on_mismatch(
        lambda alert: write(
            "alert",
            key=alert.key,
            reason=alert.reason,
            expected=alert.expected,
            observed=alert.observed,
            source=alert.source,
            action=alert.action,
        )
    )
