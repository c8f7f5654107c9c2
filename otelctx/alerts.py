"""The alert: what a mismatch becomes on its way to the people who can do something about it.

`deliver` is the one way there. It marks the span, counts the metric, writes the log record and calls the callbacks;
each channel works where another fails, and no failure reaches the work that showed the mismatch. A place that keeps
failing is told of a few times a minute, and counted always.

    unsubscribe = otelctx.on_mismatch(lambda mismatch: print(mismatch.key, mismatch.reason))

OpenTelemetry is used where the process uses it, and never imported for the alert's sake.
"""

from __future__ import annotations

import os
import time
from _thread import RLock  # re-entrant: a signal handler may interrupt the thread that holds it
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from otelctx import alert_log, alert_span, alert_text, faults, metrics, redaction
from otelctx.alert_rate import AlertRate
from otelctx.faults import internal_error
from otelctx.reentry import Reentry

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry._logs import LoggerProvider
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from otelctx.config import Config
    from otelctx.mismatch import Mismatch

__all__ = ["configure", "deliver", "delivering", "on_mismatch"]

PER_MINUTE: Final = 10
"""How often an alert of one place is repeated in a minute, before `configure` says otherwise."""

_WARNING: Final = 30  # of `logging`, which is imported when there is something to log
_ERROR: Final = 40


# Not a tuple: eventlet's monkey_patch looks for locks in `__dict__`s only, and complains of any other.
@dataclass(frozen=True)
class _Settings:
    rate: AlertRate
    tracer_provider: TracerProvider | None = None
    logger_provider: LoggerProvider | None = None


_settings = _Settings(AlertRate(PER_MINUTE))
_callbacks: tuple[Callable[[Mismatch], object], ...] = ()
_callbacks_lock = RLock()
_delivery = Reentry("delivery")


def configure(
    config: Config | None,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    logger_provider: LoggerProvider | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Take the settings `alerts.per_minute` and `telemetry.values`, and start counting repetitions anew.

    Args:
        config: the settings; None: the defaults, and what was patched for the log is put back (as `uninstall` does).
        tracer_provider, meter_provider, logger_provider: each stands for the global one, until the next call.
        clock: seconds that never go back; the limit per minute goes by it.

    Callbacks stay. For installation: not meant to be called while alerts are delivered.
    """
    global _settings
    per_minute = PER_MINUTE if config is None else config.alerts.per_minute
    _settings = _Settings(AlertRate(per_minute, clock), tracer_provider, logger_provider)
    redaction.configure("plain" if config is None else config.telemetry.values)
    metrics.register(meter_provider)
    if config is None:
        alert_log.restore_handlers()
    faults.log_kept()


def on_mismatch(callback: Callable[[Mismatch], object]) -> Callable[[], None]:
    """Call `callback` with the `Mismatch` of each alert that is delivered, in the thread that it happened in.

    It gets the values as they are, whatever `telemetry.values` says, and delays the work by as long as it takes. What
    it raises is contained and counted as an internal error. A mismatch that it causes itself is counted and held back.

    Returns a function that ends the subscription; calling that twice is calling it once. A callback that is given
    twice is called twice. Raises TypeError for what cannot be called, and for a coroutine function, which nobody
    would await. Thread-safe.
    """
    from inspect import iscoroutinefunction

    if not callable(callback) or iscoroutinefunction(callback):
        raise TypeError(f"on_mismatch takes a plain function of one argument, not {callback!r}")

    def subscription(mismatch: Mismatch) -> object:  # an object of its own for each call, since callbacks may be equal
        return callback(mismatch)

    def unsubscribe() -> None:
        global _callbacks
        with _callbacks_lock:
            _callbacks = tuple(one for one in _callbacks if one is not subscription)

    global _callbacks
    with _callbacks_lock:
        _callbacks = (*_callbacks, subscription)
    return unsubscribe


def delivering() -> bool:
    """Whether the calling code runs inside the delivery of an alert: in an exporter, a log handler or a callback."""
    return _delivery.active()


def deliver(
    mismatch: Mismatch, span: Span | None = None, parent: Context | None = None, *, count_only: bool = False
) -> None:
    """Tell of a mismatch: on the span, in the metric, in the log and to the callbacks.

    Beyond `alerts.per_minute` for one key, reason and place (the hop's kind, where the place is not known) it is
    counted and held back, and the next alert says how many were. So is one that is caused by the delivery of another.

    Args:
        mismatch: what happened.
        span: the arrival's span, or the one that showed it. Where it does not record, a span `otelctx.mismatch` is
            made for the alert, if the process has a tracer provider and the sampler wants it.
        parent: the context to make that span in; None: that of `span`; without one: the current context.
        count_only: count the metric, and nothing else.

    Never raises an Exception (what is meant to end the thread passes, as KeyboardInterrupt); thread-safe.
    """
    try:
        rate = _settings.rate
        place = (mismatch.key, mismatch.reason, mismatch.place or mismatch.hop_kind)
        if count_only or _delivery.active():
            if not count_only:
                rate.hold(place)
            metrics.mismatch_counted(mismatch)
            return
        verdict = rate.ask(place)
        if not verdict.deliver:
            metrics.mismatch_counted(mismatch)
            return
        mark = _delivery.enter()
        try:
            _deliver(replace(mismatch, held_back=verdict.held_back), span, parent, _settings)
        finally:
            _delivery.leave(mark)
        faults.log_kept()
    except Exception as exc:
        internal_error("alerts", exc, "an alert is not delivered")


def _deliver(mismatch: Mismatch, span: Span | None, parent: Context | None, settings: _Settings) -> None:
    message, attributes = alert_text.sentence(mismatch), alert_text.attributes(mismatch)
    made: Span | None = None
    context = parent
    try:
        try:
            made = alert_span.start(span, parent, settings.tracer_provider)
            shown = made or span
            context = alert_span.context_of(shown, parent)
            if shown is not None and shown.is_recording():
                alert_span.mark(shown, mismatch, message, attributes)
        except Exception as exc:
            internal_error("alerts.span", exc, "an alert is not on its span")

        metrics.mismatch_counted(mismatch, context)

        level = _WARNING if mismatch.action == "observed" or mismatch.action in alert_text.MENDED else _ERROR
        try:
            alert_log.emit(level, message, attributes, mismatch.place, context, settings.logger_provider)
        except Exception as exc:
            internal_error("alerts.log", exc, "an alert is not in every log")

        for callback in _callbacks:
            try:
                callback(mismatch)
            except Exception as exc:
                internal_error("alerts.callback", exc, "a callback of on_mismatch raised")
    finally:
        if made is not None:
            made.end()  # last: a processor may export here and now, and take its time


def _after_fork_in_child() -> None:
    global _callbacks_lock
    _callbacks_lock = RLock()
    _settings.rate.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
