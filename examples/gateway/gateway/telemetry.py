"""OpenTelemetry for the gateway: an ordinary set-up.

Spans and metrics go to OTLP JSON lines in the directory that ``GATEWAY_TELEMETRY_DIR`` names, where it is set, and to
whatever the standard variables name (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_EXPORTER``, …). Under
``opentelemetry-instrument`` the providers are there already, and only the file for the spans is added.
"""

import logging
import os
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.json.file import FileMetricExporter, FileSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

TRACES_FILE = "traces.jsonl"
METRICS_FILE = "metrics.jsonl"

_logger = logging.getLogger(__name__)


def configure(prefix: str = "") -> Callable[[], None]:
    """Set the providers up. Returns the function that flushes and closes what was set up here.

    `prefix` comes before the names of the files, so that two processes may write into one directory.
    """
    name = os.environ.get("GATEWAY_TELEMETRY_DIR")
    directory = Path(name) if name else None
    closers = [
        _configure_traces(directory and directory / f"{prefix}{TRACES_FILE}"),
        _configure_metrics(directory and directory / f"{prefix}{METRICS_FILE}"),
    ]

    def shutdown() -> None:
        for close in closers:
            close()

    return shutdown


def _configure_traces(file: Path | None) -> Callable[[], None]:
    provider = trace.get_tracer_provider()
    existing = isinstance(provider, TracerProvider)
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
    # The file comes first: it is closed first, and does not wait for a collector that does not answer.
    if file is not None:
        provider.add_span_processor(BatchSpanProcessor(FileSpanExporter(file)))
    if not existing:
        for exporter in _exporters("traces"):
            if isinstance(exporter, SpanExporter):
                provider.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
    return provider.shutdown


def _configure_metrics(file: Path | None) -> Callable[[], None]:
    if isinstance(metrics.get_meter_provider(), MeterProvider):
        return lambda: None
    exporters: list[MetricExporter] = []
    if file is not None:
        exporters.append(FileMetricExporter(file))
    exporters += [exporter for exporter in _exporters("metrics") if isinstance(exporter, MetricExporter)]
    provider = MeterProvider([PeriodicExportingMetricReader(exporter) for exporter in exporters])
    metrics.set_meter_provider(provider)
    return provider.shutdown


def _exporters(signal: Literal["traces", "metrics"]) -> Iterator[object]:
    """The exporters that the standard environment variables ask for."""
    upper = signal.upper()
    endpoint = os.environ.get(f"OTEL_EXPORTER_OTLP_{upper}_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    names = os.environ.get(f"OTEL_{upper}_EXPORTER") or ("otlp" if endpoint else "none")
    for name in (part.strip() for part in names.split(",")):
        if name in ("", "none"):
            continue
        if name == "otlp":
            protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{upper}_PROTOCOL") or os.environ.get(
                "OTEL_EXPORTER_OTLP_PROTOCOL"
            )
            name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
        found = list(entry_points(group=f"opentelemetry_{signal}_exporter", name=name))
        if found:
            yield found[0].load()()
        else:
            _logger.warning("no exporter %r for %s is installed: they go nowhere but to the file", name, signal)
