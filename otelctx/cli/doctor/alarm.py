"""A test alert, sent as a real one is."""

import logging
import sys
from importlib.metadata import entry_points
from typing import Any, Final

from otelctx import alerts
from otelctx.mismatch import Mismatch

PATIENCE: Final = 5_000
"""Milliseconds that the exporters have to send it."""

EXPECTED: Final = "otelctx-doctor"


def send() -> dict[str, str]:
    """Deliver an alert about the key ``session``; returns for each channel where it went."""
    from opentelemetry import trace

    provider: Any = trace.get_tracer_provider()
    if not hasattr(provider, "add_span_processor"):
        _configure()
        provider = trace.get_tracer_provider()
    seen = _Seen()
    logger = logging.getLogger("otelctx")
    logger.addHandler(seen)
    told: list[Mismatch] = []
    unsubscribe = alerts.on_mismatch(told.append)
    try:
        with trace.get_tracer("otelctx").start_as_current_span("otelctx doctor") as span:
            alerts.deliver(
                Mismatch("session", "lost", EXPECTED, None, None, "observed", "thread"),
                span if span.is_recording() else None,
            )
            recorded = span.is_recording()
            trace_id = format(span.get_span_context().trace_id, "032x")
    finally:
        unsubscribe()
        logger.removeHandler(seen)
    return {
        "span": _sent(provider, trace_id)
        if recorded
        else "nowhere: this process has no OpenTelemetry SDK that records",
        "log": "logger otelctx" if seen.records else "nowhere: the logger otelctx is off or above WARNING",
        "metric": _counted(),
        "callbacks": "called" if told else "nowhere: it was held back",
    }


class _Seen(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.records += 1


def _configure() -> None:
    """Set the SDK up as auto-instrumentation does, by the environment, where a configurator is installed."""
    for found in entry_points(group="opentelemetry_configurator"):
        found.load()().configure()
        return


def _sent(provider: Any, trace_id: str) -> str:
    flushed = provider.force_flush(PATIENCE)
    where = f"trace {trace_id}"
    return where if flushed else f"{where}, but the exporter did not send it within {PATIENCE // 1000} s"


def _counted() -> str:
    metrics = sys.modules.get("opentelemetry.metrics")
    provider: Any = None if metrics is None else metrics.get_meter_provider()
    if not hasattr(provider, "force_flush"):
        return "nowhere: this process has no meter provider"
    return "otelctx.mismatches" if provider.force_flush(PATIENCE) else "otelctx.mismatches, but it was not sent in time"
