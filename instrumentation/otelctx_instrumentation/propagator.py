"""The entry point ``opentelemetry_propagator: otelctx``: ``OTEL_PROPAGATORS=otelctx``.

W3C trace context and baggage with the border's rules, also where otelctx is not turned on: then keys are stripped and
dropped. Where it is on, every propagator is guarded, and the name is another way to say ``tracecontext,baggage``.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otelctx import runtime
from otelctx_instrumentation.baggage import guarded_extract, guarded_inject


class OtelctxPropagator(CompositePropagator):
    """Trace context and guarded baggage. In a list of propagators it may stand beside ``tracecontext,baggage``."""

    def __init__(self) -> None:
        super().__init__([TraceContextTextMapPropagator(), W3CBaggagePropagator()])

    def inject(self, carrier: Any, context: Any = None, *args: Any, **kwargs: Any) -> None:
        """Write the trace and what may leave of the baggage to `carrier`."""
        runtime.load()
        guarded_inject(super().inject, carrier, context, args, kwargs)

    def extract(self, carrier: Any, context: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Read the trace and what may enter of the baggage from `carrier`."""
        runtime.load()
        return guarded_extract(super().extract, carrier, context, args, kwargs)
