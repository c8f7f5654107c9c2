"""The alert on a span: the one that showed the mismatch or, where that is not recorded, one made for the alert."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from otelctx import scope
from otelctx.alert_log import EVENT
from otelctx.alert_text import MENDED

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from otelctx.alert_text import Attributes
    from otelctx.mismatch import Mismatch


def start(span: Span | None, parent: Context | None, tracer_provider: TracerProvider | None) -> Span | None:
    """Start a span `otelctx.mismatch` where `span` does not record; the caller ends it.

    None where `span` records, where there is no tracer provider, and where the sampler does not want it. It is a
    child of what is in `parent`; None: of `span`; without one: of the current span.
    """
    if span is not None and span.is_recording():
        return None
    provider = tracer_provider or _global_provider()
    if provider is None:
        return None
    tracer = provider.get_tracer(scope.NAME, scope.VERSION)
    made = tracer.start_span(EVENT, context_of(span) if parent is None else parent)
    return made if made.is_recording() else None


def mark(span: Span, mismatch: Mismatch, message: str, attributes: Attributes) -> None:
    """Put the alert on `span`, which records: the attribute that samplers keep it by, the event, and the status."""
    span.set_attribute("otelctx.mismatch", True)
    span.add_event(EVENT, attributes)
    if mismatch.action not in MENDED:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, message))


def context_of(span: Span | None, parent: Context | None = None) -> Context | None:
    """`parent` with `span` in it, if `span` belongs to a trace; None stands for the current context."""
    if span is None or not span.get_span_context().is_valid:
        return parent
    from opentelemetry.trace import set_span_in_context

    return set_span_in_context(span, parent)


def _global_provider() -> TracerProvider | None:
    """Find the provider that is set, if any. Nobody sets one without importing the API, so nothing is imported here."""
    api: Any = sys.modules.get("opentelemetry.trace")
    get = getattr(api, "get_tracer_provider", None)  # None while the module is half imported
    provider: TracerProvider | None = (
        None if get is None else get()
    )  # a proxy, before one is set: its spans do not record
    return provider
