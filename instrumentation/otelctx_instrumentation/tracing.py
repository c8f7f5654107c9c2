"""OpenTelemetry itself: where its context lives, and every span that its SDK starts.

What is patched and why there: the SDK calls no span processor for spans that are not sampled, and alerts depend on no
sampling, so ``opentelemetry.sdk.trace.Tracer.start_span`` is where a span's flow is remembered and compared with its
parent's, and where its keys become attributes (the sampler sees them too). It covers every provider, whenever it is
set. A span processor is added to each provider at its first span; it lets go of what was prepared under a span that
ended.

``opentelemetry.context`` and ``opentelemetry.metrics`` are not patched; otelctx only has to know when they are there.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from otelctx import alerts, faults, flow, metrics, runtime, snapshot, spans
from otelctx_instrumentation import theirs
from otelctx_instrumentation.patching import Active, Patch, when_imported

if TYPE_CHECKING:
    from collections.abc import Callable

_attended: weakref.WeakSet[Any] = weakref.WeakSet()


def _start_span(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def start_span(self: Any, name: str, context: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Not while an alert is delivered: its own span, an exporter's or a callback's would be about the alert itself.
        if not active.on or alerts.delivering():
            return original(self, name, context, *args, **kwargs)
        parent = now = current = None
        given = args, kwargs
        try:
            _attend(self.span_processor)
            if flow.registry.pending:
                flow.discover()
            now = flow.here()
            current = runtime.variable.get() if context is None else context
            parent = runtime.span_of(current)
            args, kwargs = _labelled(spans.labels(now), args, kwargs)
        except Exception as exc:
            faults.internal_error("span", exc)
            args, kwargs = given
        span = original(self, name, context, *args, **kwargs)
        try:
            if now is not None and span is not parent:
                spans.started(span, parent, now, current)
        except Exception as exc:
            faults.internal_error("span", exc)
        return span

    return start_span


def _labelled(labels: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments after ``context`` (kind, attributes, …) with `labels` among the attributes.

    An attribute that the caller gives wins over the label of the same name.
    """
    if not labels:
        return args, kwargs
    if len(args) > 1:
        return (args[0], {**labels, **(args[1] or {})}, *args[2:]), kwargs
    return args, {**kwargs, "attributes": {**labels, **(kwargs.get("attributes") or {})}}


def _attend(provider_processor: Any) -> None:
    if provider_processor not in _attended:
        _attended.add(provider_processor)
        from otelctx_instrumentation.span_processor import Forgetting

        provider_processor.add_span_processor(Forgetting())


def _adopt_context(module: object) -> None:
    if runtime.adopt():
        snapshot.refresh()


def watch() -> None:
    """Learn of OpenTelemetry's modules as they are imported."""
    when_imported("opentelemetry.context", _adopt_context)
    when_imported("opentelemetry.metrics", lambda module: metrics.register())
    when_imported("opentelemetry.instrumentation.threading", theirs.found)


PATCHES = (Patch("opentelemetry.sdk.trace", "Tracer.start_span", _start_span),)
