"""The four metrics of `otelctx`, and the plain integers behind them.

Counting a hop must cost less than the hop, and counting a fault must not lead into the code that failed: both are plain
integers, which OpenTelemetry reads when it collects. A mismatch is rare and goes to its counter at once, so that the
exemplar is the trace that it is in; one that comes before there is a meter provider is kept for it. Nothing here
imports OpenTelemetry before the process has, and nothing here raises.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock  # re-entrant: a signal handler may interrupt the thread that holds it
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from weakref import ref

from otelctx import scope
from otelctx.ticks import Ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, MeterProvider, Observation

    from otelctx.mismatch import Mismatch

WAIT_BOUNDARIES: Final = (0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0)
"""The buckets of `otelctx.hop.wait` that a view may override, in seconds: from a warm pool to a task queue."""


class _Instruments(NamedTuple):
    mismatches: Counter
    wait: Histogram


_hops: Ticks[tuple[str, str]] = Ticks()
_errors: Ticks[str] = Ticks()

_lock = RLock()
_given: MeterProvider | None = None  # the provider that `register` was given; None: the global one
_instruments: dict[int, tuple[ref[MeterProvider], _Instruments]] = {}
"""By the provider's identity, and gone with it: a provider need not be hashable (Logfire's is not)."""
_following: _Instruments | None = None  # made before there was a global provider, and bound by OpenTelemetry to it
_unsent: dict[tuple[tuple[str, str], ...], int] = {}


def hop_counter(kind: str, outcome: str) -> Callable[[], int]:
    """Get the function that counts a hop: to be called once for each.

    Always the same one for the same arguments. Thread-safe; takes no lock.
    """
    return _hops.counter((kind, outcome))


def hop_counts() -> dict[tuple[str, str], int]:
    """How many hops there were, by kind and outcome: exact, and without disturbing those who count. Thread-safe."""
    return _hops.counts()


def error_counted(component: str) -> None:
    """Count an internal error. Takes no lock, calls nothing of OpenTelemetry."""
    _errors.counter(component)()


def error_counts() -> dict[str, int]:
    """How many internal errors there were, by component. Thread-safe."""
    return _errors.counts()


def mismatch_counted(mismatch: Mismatch, context: Context | None = None) -> None:
    """Count a mismatch. `context` has the span that an exemplar should name. Never raises; thread-safe."""
    attributes = {
        "otelctx.key": mismatch.key,
        "otelctx.mismatch.reason": mismatch.reason,
        "otelctx.mismatch.action": mismatch.action,
    }
    if mismatch.hop_kind is not None:
        attributes["otelctx.hop.kind"] = mismatch.hop_kind
    try:
        if _provider_is_set():
            instruments = _current_instruments()
            if instruments is not None:
                instruments.mismatches.add(1, attributes, context)
                return
        with _lock:
            label = tuple(attributes.items())
            _unsent[label] = _unsent.get(label, 0) + 1
    except Exception as exc:
        _contain(exc, "a mismatch is not counted")


def record_wait(kind: str, seconds: float, context: Context | None = None) -> None:
    """Record how long a hop waited between departure and arrival. Never raises; thread-safe."""
    try:
        instruments = _current_instruments()
        if instruments is not None:
            instruments.wait.record(seconds, {"otelctx.hop.kind": kind}, context)
    except Exception as exc:
        _contain(exc, "a wait is not recorded")


def register(meter_provider: MeterProvider | None = None) -> None:
    """Offer the metrics to OpenTelemetry: at installation, and again when `opentelemetry.metrics` has been imported.

    Does nothing as long as the process has not imported it. Each provider is offered them once; the global one may be
    set later. `meter_provider` stands for the global one until the next call. Never raises; thread-safe.
    """
    global _given
    _given = meter_provider
    try:
        _current_instruments()
        if _provider_is_set():
            _send_unsent()
    except Exception as exc:
        _contain(exc, "the metrics are not registered")


def _global_provider() -> MeterProvider | None:
    api: Any = sys.modules.get("opentelemetry.metrics")
    get = getattr(api, "get_meter_provider", None)  # None while the module is half imported
    return None if get is None else cast("MeterProvider", get())


def _is_proxy(provider: MeterProvider) -> bool:
    # By name: where the class lives is private to OpenTelemetry, and has moved.
    return type(provider).__name__ == "_ProxyMeterProvider"


def _provider_is_set() -> bool:
    provider = _given or _global_provider()
    return provider is not None and not _is_proxy(provider)


def _current_instruments() -> _Instruments | None:
    global _following
    if _given is None and _following is not None:
        return _following
    provider = _given or _global_provider()
    if provider is None:
        return None
    instruments = _instruments_of(provider)
    if instruments is None:
        with _lock:
            instruments = _instruments_of(provider)
            if instruments is None:
                instruments, key = _make(provider), id(provider)
                _instruments[key] = ref(provider, lambda gone: _forget(key, gone)), instruments
                if _is_proxy(provider):
                    _following = instruments
    return instruments


def _instruments_of(provider: MeterProvider) -> _Instruments | None:
    known, instruments = _instruments.get(id(provider), (None, None))
    return instruments if known is not None and known() is provider else None


def _forget(key: int, gone: ref[MeterProvider]) -> None:
    known = _instruments.get(key)
    if known is not None and known[0] is gone:  # else another provider is there by now
        del _instruments[key]


def _make(provider: MeterProvider) -> _Instruments:
    meter = provider.get_meter(scope.NAME, scope.VERSION)
    meter.create_observable_counter("otelctx.hops", [_observe_hops], "{hop}", "Hops, by what became of the keys")
    meter.create_observable_counter("otelctx.internal_errors", [_observe_errors], "{error}", "Faults of otelctx itself")
    return _Instruments(
        meter.create_counter("otelctx.mismatches", "{mismatch}", "Keys that were not what the parent's were"),
        meter.create_histogram(
            "otelctx.hop.wait",
            "s",
            "Time between a hop's departure and its arrival",
            explicit_bucket_boundaries_advisory=WAIT_BOUNDARIES,
        ),
    )


def _observe_hops(options: CallbackOptions) -> Iterator[Observation]:
    from opentelemetry.metrics import Observation

    # Collecting means that there is a provider by now: the mismatches that waited for one need not wait for the next.
    if _provider_is_set():
        _send_unsent()
    for (kind, outcome), number in hop_counts().items():
        if number:
            yield Observation(number, {"otelctx.hop.kind": kind, "otelctx.hop.outcome": outcome})


def _observe_errors(options: CallbackOptions) -> Iterator[Observation]:
    from opentelemetry.metrics import Observation

    for component, number in error_counts().items():
        yield Observation(number, {"otelctx.component": component})


def _send_unsent() -> None:
    if not _unsent:
        return
    with _lock:
        unsent = dict(_unsent)
        _unsent.clear()
    instruments = _current_instruments()
    if instruments is not None:
        for label, number in unsent.items():
            instruments.mismatches.add(number, dict(label))


def _contain(exc: Exception, message: str) -> None:
    from otelctx.faults import internal_error  # which counts here: at import time there would be a cycle

    internal_error("metrics", exc, message)


def _after_fork_in_child() -> None:
    global _lock
    _lock = RLock()
    _hops.renew_lock()
    _errors.renew_lock()
    _unsent.clear()  # the parent's, who sends them


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
