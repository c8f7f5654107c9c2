"""Hop spans, and what every span of the process gets: its keys as attributes, and the flow that it started in.

The flow is remembered in a private attribute of the local span: baggage and span attributes go stale, may be redacted
and are not otelctx's alone. A child whose parent began in another flow, one that the child's context has not gone
through, shows that some hop between them was not covered; `started` states it.
"""

from __future__ import annotations

import _thread
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from otelctx import compare, faults, flow, metrics, ownership, place, policy, redaction, runtime
from otelctx.claim import Claim
from otelctx.scope import NAME, VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Span, Tracer

    from otelctx.departure import Departure
    from otelctx.flow import Flow

_FLOW_ATTRIBUTE: Final = "_otelctx_flow"

_RUNS: Final = (policy.CRON, policy.TASK, policy.RETRY)
"""The kinds of hop that start something of its own, whose wait says how late it is."""

_wanted: str = "auto"


def configure(wanted: str) -> None:
    """When a hop has a span: ``auto`` (where the parent's is recorded), ``always`` or ``never``."""
    global _wanted
    _wanted = wanted


def wanted(otel: Any) -> bool:
    """Whether a hop that departs in the OpenTelemetry Context `otel` has a span."""
    if _wanted == "auto":
        span = runtime.span_of(otel)
        return span is not None and span.is_recording()
    return _wanted == "always" and "opentelemetry.trace" in sys.modules


def wanted_for(kind: int, otel: Any) -> bool:
    """Whether a hop of `kind` that departs in `otel` has a span; cron and task runs have one if there is tracing."""
    if kind in _RUNS:
        return _wanted != "never" and "opentelemetry.trace" in sys.modules
    return wanted(otel)


def wanted_after(departed: bool) -> bool:
    """Whether a hop from another process has a span here, where that one `departed` with the wish for it."""
    return ((departed and _wanted == "auto") or _wanted == "always") and "opentelemetry.sdk.trace" in sys.modules


def _tracer() -> Tracer:
    from opentelemetry import trace

    return trace.get_tracer(NAME, VERSION)


def start_hop_span(departure: Departure, fn: object, otel: Any, *, since_departure: bool = False) -> Span | None:
    """Start the span of a hop in the OpenTelemetry Context `otel`; None where there is to be none.

    `fn` is the callable that arrives. A cron run's span is a root with a Link to its cause. `since_departure`: it began
    when the hop departed.
    """
    departed = departure.snapshot.otel_departed
    wait = time.monotonic() - departure.clock
    kind = policy.NAMES[departure.kind]
    if not departure.spanned:
        if departure.kind in _RUNS:
            metrics.record_wait(kind, wait, otel)
        return None
    from opentelemetry.trace import Link, SpanKind

    # In observe the work runs with whatever the worker has; the hop is the departed flow's all the same.
    attributes: dict[str, Any] = {
        **labels(departure.snapshot.flow),
        "otelctx.hop.kind": kind,
        "otelctx.hop.wait": wait,
        "thread.id": _thread.get_ident(),
        "code.function.name": place.full_name_of(departure.called if departure.called is not None else fn),
    }
    threading = sys.modules.get("threading")
    if threading is not None:
        # Not `current_thread()`: it would register a dummy for a thread that `threading` does not know.
        known = threading._active.get(attributes["thread.id"])
        if known is not None:
            attributes["thread.name"] = known.name
    causes = []
    if departure.kind == policy.CRON:
        causing = runtime.span_of(departed)
        cause = departure.cause or (None if causing is None else causing.get_span_context())
        causes = [] if cause is None else [Link(cause)]
    span = _tracer().start_span(
        f"{kind} {departure.named(fn)}",
        context=otel,
        kind=SpanKind.CONSUMER if departure.kind in (policy.TASK, policy.RETRY) else SpanKind.INTERNAL,
        attributes=attributes,
        links=causes,
        start_time=time.time_ns() - int(wait * 1e9) if since_departure else None,
    )
    metrics.record_wait(kind, wait, otel)
    return span


def failed(span: Span | None, exc: BaseException) -> None:
    """Record on the hop's span that its work raised `exc`.

    Its text may hold a key: where `telemetry.values` is not ``plain``, its type alone is recorded.
    """
    if span is None:
        return
    try:
        from opentelemetry.trace import Status, StatusCode

        if not isinstance(exc, Exception):
            return
        kind = type(exc)
        if redaction.values() == "plain":
            span.record_exception(exc)
            span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {exc}"))
        else:
            span.add_event("exception", {"exception.type": f"{kind.__module__}.{kind.__qualname__}"})
            span.set_status(Status(StatusCode.ERROR, kind.__name__))
    except Exception as fault:
        faults.internal_error("hop span", fault)


def end(span: Span | None) -> None:
    """End the hop's span; never raises."""
    if span is None:
        return
    try:
        span.end()
    except Exception as fault:
        faults.internal_error("hop span", fault)


def labels(now: Flow) -> Mapping[str, Any]:
    """The attributes that a span which starts in `now` gets."""
    found: dict[str, Any] = {}
    for key, value in zip(now.registry.keys, now.values, strict=True):
        if value is None and not is_cleared(now, key.name):
            value = key.process_identity()
        if value is not None:
            shown = redaction.redact(value)
            if shown is not None:
                found[key.attribute] = shown
    claim = now.claim if now.claim is not None else ownership.of_process()
    if claim is not None:
        is_held = isinstance(claim, Claim) and (claim is now.claim or ownership.application_says() is not False)
        found["otelctx.claim.state"] = "held" if is_held else "shed"
        if isinstance(claim, Claim) and is_held:
            task = redaction.redact(claim.task_id)
            if task is not None:
                found["otelctx.claim.id"] = task
    return found


def is_cleared(now: Flow, name: str) -> bool:
    """Whether the key has no value in `now` because somebody took it away."""
    if now.state is not None and name in now.state.bound:
        return True
    key = now.registry.keys[now.registry.names[name]]
    return any(
        source.reading(raw) is False
        for source, raw in zip(now.registry.settable, now.raws, strict=True)
        if source in key.settable
    )


def started(span: Span, parent: Span | None, now: Flow, context: Any) -> None:
    """Remember on `span` the flow `now`, in which it starts, and compare it with its parent's.

    `context` is the OpenTelemetry Context that it starts in.
    """
    began = getattr(parent, _FLOW_ATTRIBUTE, None)
    after = now
    if parent is not None and isinstance(began, flow.Flow):
        after = compare.span_started(began, now, span, parent, context)
    else:
        began = None
    after = after.under(began if began is not None and after.knows(began) else None)
    if after is not now:
        now = after
        now.registry.flow.set(now)
    try:
        setattr(span, _FLOW_ATTRIBUTE, now)
    except AttributeError:
        pass  # a span type of somebody else's, with slots: it is "unknown" to its children
