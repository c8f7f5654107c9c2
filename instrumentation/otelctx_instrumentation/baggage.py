"""The border: what of otelctx leaves the process, and enters it, in the baggage of OpenTelemetry's propagators.

What is patched and why there: ``W3CBaggagePropagator`` is what every propagator of baggage is made of, the global one
and those that applications build; ``inject`` removes otelctx's entries from what it is given, ``extract`` from what it
found.
Other people's baggage passes as it is. A claim never leaves, and is never believed.

What escapes: propagators of other formats that carry baggage by themselves (Jaeger's ``uberctx-``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otelctx import border, faults
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable


def _inject(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def inject(self: Any, carrier: Any, context: Any = None, *args: Any, **kwargs: Any) -> Any:
        if active.on:
            try:
                context = border.leaving(context)
            except Exception as exc:
                faults.internal_error("baggage", exc)
        return original(self, carrier, context, *args, **kwargs)

    return inject


def _extract(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def extract(self: Any, carrier: Any, context: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = original(self, carrier, context, *args, **kwargs)
        if active.on:
            try:
                return border.entering(found, context)
            except Exception as exc:
                faults.internal_error("baggage", exc)
        return found

    return extract


PATCHES = (
    Patch("opentelemetry.baggage.propagation", "W3CBaggagePropagator.inject", _inject),
    Patch("opentelemetry.baggage.propagation", "W3CBaggagePropagator.extract", _extract),
)
