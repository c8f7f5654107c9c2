"""The border: what of otelctx leaves the process, and enters it, in the baggage of OpenTelemetry's propagators.

What is patched and why there: ``inject`` and ``extract``, wherever a message may leave or enter. That is
``opentelemetry.propagate`` (whatever the global propagator is, an application's own too), ``CompositePropagator`` (what
the global one nearly always is, also for those who imported these functions before), and each format that carries
baggage, for those who use it directly: W3C, and Jaeger's and OpenTracing's headers. Only the outermost call counts: it
knows the trace, whatever the order of the propagators in it, and a signature is for one trace.

``inject`` is given a context without otelctx's entries, or with what the settings let out; ours that are in the headers
already, as in those of a request that is forwarded, are taken out where the carrier is a mapping. From what ``extract``
found, ours are taken out, or let in as the settings say. Other people's baggage passes as it is.

Where keys may be let in, ``ContextVarsRuntimeContext.attach`` and ``detach`` are patched as well: what came with a
message counts while its context is attached.

What escapes: a propagator of a format of its own that is called directly and not through these.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from otelctx import admission, border, faults
from otelctx.reentry import Reentry
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from otelctx.config import Config

_crossing: Final = Reentry("crossing")


def guarded_inject(inject: Callable[..., Any], carrier: Any, context: Any, args: Any, kwargs: Any) -> Any:
    """Call ``inject(carrier, context, …)`` with what may leave of `context`."""
    if _crossing.active():
        return inject(carrier, context, *args, **kwargs)
    try:
        if carrier is not os.environ:
            border.without_ours(carrier)
    except Exception as exc:
        faults.internal_error("baggage", exc)
    try:
        context = border.leaving(context)
    except Exception as exc:
        faults.internal_error("baggage", exc)
        context = border.bare(context)
    token = _crossing.enter()
    try:
        return inject(carrier, context, *args, **kwargs)
    finally:
        _crossing.leave(token)


def guarded_extract(extract: Callable[..., Any], carrier: Any, context: Any, args: Any, kwargs: Any) -> Any:
    """Call ``extract(carrier, context, …)``, and let in what may enter of what it found."""
    if _crossing.active():
        return extract(carrier, context, *args, **kwargs)
    token = _crossing.enter()
    try:
        found = extract(carrier, context, *args, **kwargs)
    finally:
        _crossing.leave(token)
    getter = args[0] if args else kwargs.get("getter")
    own = type(getter).__name__ == "EnvironmentGetter"  # OpenTelemetry's, for what a parent process gives its child
    try:
        return border.entering(found, context, own=own)
    except Exception as exc:
        faults.internal_error("baggage", exc)
        return border.bare(found)


def _method(guard: Callable[..., Any]) -> Callable[[Any, Active], Any]:
    def replace(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
        def guarded(self: Any, carrier: Any, context: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not active.on:
                return original(self, carrier, context, *args, **kwargs)
            return guard(original.__get__(self), carrier, context, args, kwargs)

        return guarded

    return replace


def _function(guard: Callable[..., Any]) -> Callable[[Any, Active], Any]:
    def replace(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
        def guarded(carrier: Any, context: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not active.on:
                return original(carrier, context, *args, **kwargs)
            return guard(original, carrier, context, args, kwargs)

        return guarded

    return replace


def _settled(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def settled(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            if active.on:
                try:
                    admission.settle()
                except Exception as exc:
                    faults.internal_error("baggage", exc)

    return settled


_FORMATS: Final = (
    ("opentelemetry.propagators.composite", "CompositePropagator"),
    ("opentelemetry.baggage.propagation", "W3CBaggagePropagator"),
    ("opentelemetry.propagators.jaeger", "JaegerPropagator"),
    ("opentelemetry.propagators.ot_trace", "OTTracePropagator"),
)

PATCHES: Final = (
    Patch("opentelemetry.propagate", "inject", _function(guarded_inject)),
    Patch("opentelemetry.propagate", "extract", _function(guarded_extract)),
    *(Patch(module, f"{name}.inject", _method(guarded_inject)) for module, name in _FORMATS),
    *(Patch(module, f"{name}.extract", _method(guarded_extract)) for module, name in _FORMATS),
)

_RUNTIME: Final = "opentelemetry.context.contextvars_context"


def patches(settings: Config) -> tuple[Patch, ...]:
    """The patches that let a key count that came with a message; none where no key is let in."""
    if settings.baggage.inbound == "drop":
        return ()
    return (
        Patch(_RUNTIME, "ContextVarsRuntimeContext.attach", _settled),
        Patch(_RUNTIME, "ContextVarsRuntimeContext.detach", _settled),
    )
