"""A test alert, sent as a real one is."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any, Final

from otelctx import alerts
from otelctx.mismatch import Mismatch

PATIENCE: Final = 5_000
"""Milliseconds that the exporters have to send it."""

EXPECTED: Final = "otelctx-doctor"

NOT_SENT: Final = "but it was not sent"
_NO_SDK: Final = "this process has no OpenTelemetry SDK that records"
_NO_METER: Final = "nowhere: this process has no meter provider"


def send(*, auto_instrumented: bool) -> dict[str, str]:
    """Deliver an alert about the key ``session``; returns for each channel where it went.

    Where the application has set up no SDK, and `auto_instrumented` says that something else will, it is set up here by
    the environment, as that would do it.
    """
    from opentelemetry import trace

    failure = ""
    with _listening("otelctx", logging.WARNING) as told_log, _listening("opentelemetry", logging.ERROR) as complaints:
        provider: Any = trace.get_tracer_provider()
        if not hasattr(provider, "add_span_processor") and auto_instrumented:
            failure = _configure()
            provider = trace.get_tracer_provider()
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
        span_went = _sent(provider, f"trace {trace_id}", complaints) if recorded else f"nowhere: {failure or _NO_SDK}"
        metric_went = _counted(complaints)
    return {
        "span": span_went,
        "log": "logger otelctx" if told_log else "nowhere: the logger otelctx is off or above WARNING",
        "metric": metric_went,
        "callbacks": "called" if told else "nowhere: it was held back",
    }


def problem(channel: str, where: str) -> str | None:
    """What is wrong with it, if anything is; a process without an SDK is none by itself."""
    if NOT_SENT in where or (where.startswith("nowhere") and _NO_SDK not in where and _NO_METER not in where):
        return f"test alert: {channel}: {where}"
    return None


@contextmanager
def _listening(name: str, level: int) -> Iterator[list[str]]:
    """Within the block, what logger `name` is told from `level` on."""
    messages: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    listener = Listener(level)
    logging.getLogger(name).addHandler(listener)
    try:
        yield messages
    finally:
        logging.getLogger(name).removeHandler(listener)


def _configure() -> str:
    """Set the SDK up as auto-instrumentation does: by the environment, with the distribution's defaults.

    Returns why that was not possible, if it was not.
    """
    try:
        for group in ("opentelemetry_distro", "opentelemetry_configurator"):
            for found in entry_points(group=group):
                found.load()().configure()
                break
    except Exception as exc:  # an exporter that is named and not installed, an endpoint that is none
        return f"the SDK cannot be set up as the environment says: {exc}"
    return ""


def _sent(provider: Any, where: str, complaints: list[str]) -> str:
    """Have `provider` send what it has. Whether that was possible, exporters say in their log alone."""
    complaints.clear()
    if not provider.force_flush(PATIENCE):
        return f"{where}, {NOT_SENT} within {PATIENCE // 1000} s"
    return f"{where}, {NOT_SENT}: {complaints[-1]}" if complaints else where


def _counted(complaints: list[str]) -> str:
    metrics = sys.modules.get("opentelemetry.metrics")
    provider: Any = None if metrics is None else metrics.get_meter_provider()
    return _sent(provider, "otelctx.mismatches", complaints) if hasattr(provider, "force_flush") else _NO_METER
