"""A program that ``opentelemetry-instrument`` starts: what its workers see, and what is told and exported of them."""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import json
import logging
from collections import Counter
from importlib.metadata import entry_points
from typing import Any

import greenlet_program as application
import work
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.instrumentation.asyncio import AsyncioInstrumentor
from opentelemetry.instrumentation.logging import LoggingInstrumentor
from opentelemetry.instrumentation.threading import ThreadingInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otelctx
from otelctx import metrics

exported = InMemorySpanExporter()
records: list[str] = []
alerts: list[list[Any]] = []
turns = {0: "none"}
provider = trace.get_tracer_provider()
assert isinstance(provider, TracerProvider)  # the configurator's
provider.add_span_processor(SimpleSpanProcessor(exported))
handler = logging.Handler()
handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
logging.getLogger().addHandler(handler)
otelctx.on_mismatch(lambda alert: alerts.append([alert.reason, alert.expected, alert.observed, alert.hop_kind]))


def look(*_: object) -> list[Any]:
    """The application's variable, otelctx's entry in baggage and another's, and whose trace it is."""
    whose = turns.get(trace.get_current_span().get_span_context().trace_id, "another")
    return [application.look(), baggage.get_baggage("otelctx.session"), baggage.get_baggage("who"), whose]


seen: dict[str, list[Any]] = {}
hops = work.Hops(look)
tracer = trace.get_tracer("app")
for key in ("A", "B"):
    token = otel_context.attach(baggage.set_baggage("who", key))
    with application.session(key), otelctx.bind(session=key), tracer.start_as_current_span("turn") as span:
        turns[span.get_span_context().trace_id] = key
        for hop, send in hops.by_name.items():
            seen.setdefault(hop, []).append(send())
    otel_context.detach(token)
for hop, send in hops.by_name.items():
    seen[hop].append(send())
hops.close()
instrumentors = AsyncioInstrumentor(), LoggingInstrumentor(), ThreadingInstrumentor()
print(
    json.dumps(
        {
            "loaded": [point.name for point in entry_points(group="opentelemetry_instrumentor")],
            "on": [type(each).__name__ for each in instrumentors if each.is_instrumented_by_opentelemetry],
            "seen": seen,
            "spans": sorted(Counter(span.name for span in exported.get_finished_spans()).items()),
            "hops": {" ".join(label): n for label, n in metrics.hop_counts().items() if n},
            "alerts": alerts,
            "records": records,
            "errors": metrics.error_counts(),
        }
    )
)
