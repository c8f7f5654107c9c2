"""Telemetry, cases 42 to 44 from the field, one record for each alert, and a flood; 45 and 46 are in `test_border`."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import otelctx
from otelctx import alerts as channels
from otelctx import config, metrics
from otelctx.mismatch import Mismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Install

TIMEOUT = 20.0
KEY: ContextVar[str] = ContextVar(f"{__name__}:KEY")
SOURCES: dict[str, Any] = {"session": {"sources": [{"contextvar": f"{__name__}:KEY"}]}}


def left_behind(session: str, expected: str) -> None:
    """A mismatch: work that is done for `expected`, in a worker that was left with `session`."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(KEY.set, session).result(TIMEOUT)
        with otelctx.bind(session=expected):
            pool.submit(KEY.get, None).result(TIMEOUT)


@pytest.fixture
def backend() -> Iterator[tuple[LoggerProvider, Any, MeterProvider, InMemoryMetricReader]]:
    exporter: Any = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    logs, reader = LoggerProvider(shutdown_on_exit=False), InMemoryMetricReader()
    logs.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    yield logs, exporter, meters, reader
    channels.configure(None)
    meters.shutdown()


def counted(reader: InMemoryMetricReader) -> int:
    data: Any = reader.get_metrics_data()
    return sum(
        point.value
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "otelctx.mismatches"
        for point in metric.data.data_points
    )


def test_case_42_a_mismatch_in_a_trace_that_is_not_sampled_is_in_the_log_and_the_metric_all_the_same(
    install: Install, backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    logs, exporter, meters, reader = backend
    install(mode="observe", keys=SOURCES)
    channels.configure(config.load({})[0], logger_provider=logs, meter_provider=meters)
    tracer = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer(__name__)
    before = counted(reader)
    with tracer.start_as_current_span("unsampled") as span:
        assert not span.is_recording()
        left_behind("B", "A")
        trace_id = span.get_span_context().trace_id
    (record,) = [one.log_record for one in exporter.get_finished_logs()]
    assert record.event_name == "otelctx.mismatch"
    assert record.attributes["otelctx.mismatch.reason"] == "foreign"
    assert record.trace_id == trace_id
    assert counted(reader) == before + 1
    assert sum(record.name == "otelctx" for record in caplog.records) == 1


def program(text: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_case_43_a_tracer_provider_that_is_set_after_otelctx_was_installed_has_the_keys() -> None:
    seen = program("""
        import json, otelctx
        otelctx.install()
        from opentelemetry import trace
        early = trace.get_tracer("before there is a provider")
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from concurrent.futures import ThreadPoolExecutor
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        def work():
            with trace.get_tracer("late").start_as_current_span("in the pool"):
                pass
        with otelctx.bind(session="A"), early.start_as_current_span("early"), ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()
        print(json.dumps({span.name: span.attributes.get("session.id") for span in exporter.get_finished_spans()}))
    """)
    assert seen == {"early": "A", "executor work": "A", "in the pool": "A"}


class Hanging(SpanExporter):
    """An exporter whose backend does not answer."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.asked.set()
        self.answer.wait(TIMEOUT)
        return SpanExportResult.SUCCESS


def test_case_44_the_work_runs_while_an_exporter_hangs(install: Install, alerts: list[Mismatch]) -> None:
    exporter = Hanging()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1))
    install(mode="observe", keys=SOURCES)
    with provider.get_tracer(__name__).start_as_current_span("first"):
        left_behind("B", "A")
    assert exporter.asked.wait(TIMEOUT)
    with provider.get_tracer(__name__).start_as_current_span("while it hangs"):
        left_behind("C", "A")
    assert [alert.observed for alert in alerts] == ["B", "C"]
    exporter.answer.set()
    provider.shutdown()


def test_case_44_the_work_runs_where_a_callback_raises_and_one_internal_error_is_counted(install: Install) -> None:
    def broken(mismatch: Mismatch) -> None:
        raise RuntimeError("broken")

    install(mode="observe", keys=SOURCES)
    unsubscribe = otelctx.on_mismatch(broken)
    before = metrics.error_counts().get("alerts.callback", 0)
    left_behind("B", "A")
    unsubscribe()
    assert metrics.error_counts()["alerts.callback"] == before + 1


answering = threading.Event()


def raising_getter() -> str:
    raise LookupError("nobody")


def hanging_getter() -> str:
    answering.wait(TIMEOUT)
    return "late"


@pytest.mark.parametrize("getter", ["raising_getter", "hanging_getter"])
@pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
def test_case_44_the_work_runs_where_a_getter_raises_or_hangs(mode: str, getter: str, install: Install) -> None:
    answering.clear()
    install(mode=mode, keys={"session": {"sources": [{"getter": f"{__name__}:{getter}"}]}})
    before = metrics.error_counts().get("getter", 0)
    try:
        with ThreadPoolExecutor(1) as pool, otelctx.bind(session="A"):
            assert pool.submit(lambda: "done").result(TIMEOUT) == "done"
            assert pool.submit(otelctx.get, "session").result(TIMEOUT) == (None if mode == "observe" else "A")
    finally:
        answering.set()
    asked = metrics.error_counts().get("getter", 0) - before
    assert asked > 0 or mode == "repair"  # which has no reason to ask it


def test_an_alert_is_one_record_at_the_backend_with_both_of_opentelemetrys_logging_handlers_on() -> None:
    seen = program("""
        import json, logging, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of the SDK's own handler, in favour of the other one
        import otelctx
        from contextvars import ContextVar
        from concurrent.futures import ThreadPoolExecutor
        KEY = ContextVar("KEY")
        otelctx.install({}, mode="observe", keys={"session": {"sources": [{"contextvar": "__main__:KEY"}]}})
        from opentelemetry._logs import set_logger_provider
        from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
        from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
        from opentelemetry.instrumentation.logging import LoggingInstrumentor
        exporter, provider = InMemoryLogRecordExporter(), LoggerProvider()
        provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
        set_logger_provider(provider)
        logging.getLogger().addHandler(LoggingHandler(logger_provider=provider))
        LoggingInstrumentor().instrument()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(KEY.set, "B").result()
            with otelctx.bind(session="A"):
                pool.submit(KEY.get, None).result()
        records = [one.log_record for one in exporter.get_finished_logs()]
        print(json.dumps([[record.event_name, record.severity_text] for record in records]))
    """)
    assert seen == [["otelctx.mismatch", "WARN"]]


def test_a_flood_of_forged_messages_is_counted_in_full_told_ten_times_and_says_how_many_were_held_back(
    install: Install, alerts: list[Mismatch], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install()
    now = [1000.0]
    channels.configure(config.load({})[0], clock=lambda: now[0])
    tracemalloc.start()
    try:
        for index in range(3_000):
            propagate.extract({"baggage": f"otelctx.session=victim{index},otelctx.made_up{index}=1"}, Context())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000
    assert len(alerts) == 20  # ten for the session, ten for what was made up
    now[0] += 60
    propagate.extract({"baggage": "otelctx.session=victim"}, Context())
    assert alerts[-1].held_back == 2_990
    assert "held back since the last one: 2990" in caplog.text
