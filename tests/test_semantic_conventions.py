"""Every name in telemetry is one of otelctx's own, as they are documented, or one of OpenTelemetry's conventions."""

from __future__ import annotations

import importlib
import pkgutil
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import opentelemetry.semconv._incubating.attributes
import opentelemetry.semconv.attributes
import pytest
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.semconv._incubating.attributes import code_attributes, session_attributes, thread_attributes

import otelctx
from otelctx import alerts, config, metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from tests.conftest import Install

KEY: ContextVar[str] = ContextVar(f"{__name__}:KEY")
SOURCES = {"session": {"sources": [{"contextvar": f"{__name__}:KEY"}]}}

OURS = {
    "otelctx.mismatch",
    "otelctx.key",
    "otelctx.mismatch.reason",
    "otelctx.mismatch.expected",
    "otelctx.mismatch.observed",
    "otelctx.mismatch.source",
    "otelctx.mismatch.action",
    "otelctx.mismatch.held_back",
    "otelctx.hop.kind",
    "otelctx.hop.trail",
    "otelctx.hop.wait",
    "otelctx.hop.outcome",
    "otelctx.claim.state",
    "otelctx.claim.id",
    "otelctx.component",
}


def conventions() -> set[str]:
    """Every attribute that the package of semantic conventions names."""
    found: set[str] = set()
    for package in (opentelemetry.semconv.attributes, opentelemetry.semconv._incubating.attributes):
        for module in pkgutil.iter_modules(package.__path__):
            names = vars(importlib.import_module(f"{package.__name__}.{module.name}"))
            found.update(value for name, value in names.items() if name.isupper() and isinstance(value, str))
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_attribute_is_documented_or_a_semantic_convention(install: Install, spans: InMemorySpanExporter) -> None:
    exporter: Any = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    logs, reader = LoggerProvider(shutdown_on_exit=False), InMemoryMetricReader()
    logs.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    install(mode="observe", keys=SOURCES)
    settings, _ = config.load({"mode": "observe"})
    alerts.configure(settings, logger_provider=logs, meter_provider=meters)
    try:
        with otelctx.bind(session="A"), otelctx.grant_claim(otelctx.Claim("t1")), ThreadPoolExecutor(1) as pool:
            with trace.get_tracer(__name__).start_as_current_span("root"):
                pool.submit(KEY.set, "B").result()
                for _ in range(12):
                    pool.submit(otelctx.get, "session").result()
            with otelctx.cron_run("nightly"):
                pass
        metrics.error_counted("a test")
        data = reader.get_metrics_data()
    finally:
        alerts.configure(None)
    assert data is not None
    points = [
        (metric, point)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        if scope.scope.name == "otelctx"
        for metric in scope.metrics
        for point in metric.data.data_points
    ]
    finished = spans.get_finished_spans()
    used = {name for span in finished for name in span.attributes or {}}
    used |= {name for span in finished for event in span.events for name in event.attributes or {}}
    used |= {name for record in exporter.get_finished_logs() for name in record.log_record.attributes}
    used |= {name for _, point in points for name in point.attributes or {}}
    assert used - OURS <= conventions()
    assert used >= {
        session_attributes.SESSION_ID,
        thread_attributes.THREAD_ID,
        thread_attributes.THREAD_NAME,
        code_attributes.CODE_FUNCTION_NAME,
        code_attributes.CODE_FILE_PATH,
        code_attributes.CODE_LINE_NUMBER,
        "otelctx.mismatch",
        "otelctx.hop.wait",
        "otelctx.claim.state",
    }
    assert {record.log_record.event_name for record in exporter.get_finished_logs()} == {"otelctx.mismatch"}
    assert {(metric.name, metric.unit) for metric, _ in points} == {
        ("otelctx.mismatches", "{mismatch}"),
        ("otelctx.hops", "{hop}"),
        ("otelctx.hop.wait", "s"),
        ("otelctx.internal_errors", "{error}"),
    }
    allowed = {
        "otelctx.mismatches": {"otelctx.key", "otelctx.mismatch.reason", "otelctx.mismatch.action", "otelctx.hop.kind"},
        "otelctx.hops": {"otelctx.hop.kind", "otelctx.hop.outcome"},
        "otelctx.hop.wait": {"otelctx.hop.kind"},
        "otelctx.internal_errors": {"otelctx.component"},
    }
    for metric, point in points:
        assert set(point.attributes or {}) <= allowed[metric.name]
