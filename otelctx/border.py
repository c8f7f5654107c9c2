"""Baggage at the border of the process: a carrier, never an authority.

What is otelctx's does not leave towards strangers (``baggage.outbound = "strip"``), and nothing that arrives from
outside under its names is read (``baggage.inbound = "drop"``): that is a ``forged`` alert. ``plain`` and ``trust`` let
keys pass, for services that know each other; a claim never leaves by a propagator, and is never believed from one.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otelctx import alerts, flow, runtime
from otelctx.mismatch import Mismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otelctx.config import BaggageConfig

PREFIX: Final = "otelctx."
CLAIM: Final = "otelctx.claim"

_OWN_CARRIER: Final[ContextVar[bool]] = ContextVar("otelctx.own_carrier", default=False)

_outbound = "strip"
_inbound = "drop"


def configure(settings: BaggageConfig) -> None:
    """Take what leaves and what is believed from `settings`.

    Keyed digests and signatures are not there yet: until they are, ``hash`` and ``sign`` strip, and ``verify`` drops.
    """
    global _outbound, _inbound
    _outbound, _inbound = settings.outbound, settings.inbound


def unsupported(settings: BaggageConfig) -> Iterator[str]:
    """What `settings` ask for that this version does not do, a line each."""
    if settings.outbound in ("hash", "sign"):
        yield f"baggage.outbound: {settings.outbound!r} is not there in this version; keys are stripped"
    if settings.inbound == "verify":
        yield "baggage.inbound: 'verify' is not there in this version; keys are dropped"


@contextmanager
def own_carrier() -> Iterator[None]:
    """Within the block, what is injected is for a child of ours: its keys stay."""
    token = _OWN_CARRIER.set(True)
    try:
        yield
    finally:
        _OWN_CARRIER.reset(token)


def _names(*, with_keys: bool) -> set[str]:
    names = {CLAIM}
    if with_keys:
        names.update(key.baggage for key in flow.registry.keys)
    return names


def _without(context: Any, names: set[str], *, prefix: bool) -> tuple[Any, dict[str, object]]:
    held = runtime.baggage_of(context)
    if not held:
        return context, {}
    ours = {name: value for name, value in held.items() if name in names or (prefix and name.startswith(PREFIX))}
    if not ours:
        return context, {}
    return runtime.with_baggage(context, {name: value for name, value in held.items() if name not in ours}), ours


def leaving(context: Any) -> Any:
    """The OpenTelemetry Context (None: the current one) from which a propagator injects."""
    current = runtime.variable.get() if context is None else context
    keeps_keys = _outbound == "plain" or _OWN_CARRIER.get()
    stripped, ours = _without(current, _names(with_keys=not keeps_keys), prefix=not keeps_keys)
    return stripped if ours else context


def entering(found: Any, context: Any) -> Any:
    """The OpenTelemetry Context `found`, which a propagator extracted on top of `context` (None: the current one)."""
    before = runtime.baggage_of(runtime.variable.get() if context is None else context)
    held = runtime.baggage_of(found)
    if held is before:
        return found  # there was no baggage: what is in it is our own
    keeps_keys = _inbound == "trust"
    kept, ours = _without(found, _names(with_keys=not keeps_keys), prefix=not keeps_keys)
    for name, value in ours.items():
        key = next((key.name for key in flow.registry.keys if key.baggage == name), name.removeprefix(PREFIX))
        alerts.deliver(Mismatch(key, "forged", None, str(value), "baggage", "dropped"), None, kept)
    return kept
