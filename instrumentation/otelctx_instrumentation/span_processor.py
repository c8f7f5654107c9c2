"""The span processor: a span that has ended is not kept alive by what was prepared for hops under it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import SpanProcessor

from otelctx import faults, snapshot

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class Forgetting(SpanProcessor):
    """Added to each tracer provider at its first span."""

    def on_end(self, span: ReadableSpan) -> None:
        """Let go of what was prepared under `span`. Never raises; thread-safe."""
        try:
            snapshot.forget(span)
        except Exception as exc:
            faults.internal_error("span", exc)
