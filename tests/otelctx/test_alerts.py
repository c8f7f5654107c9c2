"""What becomes of a mismatch: on spans, in the log, in the metric, by callback; as real providers export it."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import StatusCode

from otelctx import alerts, config, faults, metrics
from otelctx.mismatch import Action, Mismatch, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What a test takes for a key's value, and looks for where it must not be.
EXPECTED, OBSERVED = "slack:C-expected", "slack:C-observed"
FOREIGN = Mismatch(
    "session",
    "foreign",
    EXPECTED,
    OBSERVED,
    "env:HERMES_SESSION_KEY",
    "observed",
    "executor",
    ("thread serve @ app.py:7", "executor run_tool @ tools.py:41"),
    Place("handle_message", "gateway.py", 42),
)
ATTRIBUTES = {
    "otelctx.key": "session",
    "otelctx.mismatch.reason": "foreign",
    "otelctx.mismatch.expected": EXPECTED,
    "otelctx.mismatch.observed": OBSERVED,
    "otelctx.mismatch.source": "env:HERMES_SESSION_KEY",
    "otelctx.mismatch.action": "observed",
    "otelctx.hop.kind": "executor",
    "otelctx.hop.trail": ("thread serve @ app.py:7", "executor run_tool @ tools.py:41"),
    "code.function.name": "handle_message",
    "code.file.path": "gateway.py",
    "code.line.number": 42,
}
LOST = Mismatch("session", "lost", EXPECTED, None, None, "observed", "executor", (), Place("submit_it", "app.py", 7))


class Logs:
    """A log backend: a logger provider of the SDK and what it has exported."""

    def __init__(self) -> None:
        self.exporter: Any = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
        self.provider = LoggerProvider(shutdown_on_exit=False)
        self.provider.add_log_record_processor(SimpleLogRecordProcessor(self.exporter))

    @property
    def records(self) -> list[Any]:
        return [one.log_record for one in self.exporter.get_finished_logs()]

    @property
    def alerts(self) -> list[Any]:
        return [record for record in self.records if record.event_name == "otelctx.mismatch"]


class Backend:
    """All three signals, as a backend would get them, and the clock that the limit goes by."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.tracer_provider.get_tracer("test")
        self.logs = Logs()
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.now = 1000.0
        metrics._unsent.clear()  # what other tests counted without a provider
        self.configure()

    def configure(self, **overrides: Any) -> None:
        settings, problems = config.load(None, environ={}, **overrides)
        assert problems == ()
        alerts.configure(
            settings,
            tracer_provider=self.tracer_provider,
            meter_provider=self.meter_provider,
            logger_provider=self.logs.provider,
            clock=lambda: self.now,
        )

    @property
    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())

    @property
    def counted(self) -> int:
        data: Any = self.reader.get_metrics_data()
        return sum(
            point.value
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "otelctx.mismatches"
            for point in metric.data.data_points
        )


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    backend = Backend(getattr(request, "param", ALWAYS_ON))
    yield backend
    alerts.configure(None)
    faults.forget()
    backend.meter_provider.shutdown()


@pytest.fixture
def heard() -> Iterator[list[Mismatch]]:
    heard: list[Mismatch] = []
    unsubscribe = alerts.on_mismatch(heard.append)
    yield heard
    unsubscribe()


@pytest.fixture
def attach_handler() -> Iterator[Callable[[logging.Handler, str], None]]:
    attached: list[tuple[logging.Logger, logging.Handler]] = []

    def attach(handler: logging.Handler, name: str = "otelctx") -> None:
        attached.append((logging.getLogger(name), handler))
        attached[-1][0].addHandler(handler)

    yield attach
    for logger, handler in attached:
        logger.removeHandler(handler)


def errors(component: str) -> int:
    return metrics.error_counts().get(component, 0)


def python(script: str, *options: str) -> str:
    """Run a program of its own, where nothing is imported or set yet; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.stdout.strip()


def test_the_arrivals_span_has_the_event_with_every_attribute_and_the_mark(backend: Backend) -> None:
    with backend.tracer.start_as_current_span("executor run_tool") as span:
        alerts.deliver(FOREIGN, span)
    (exported,) = backend.spans
    assert exported.attributes["otelctx.mismatch"] is True
    (event,) = exported.events
    assert (event.name, dict(event.attributes)) == ("otelctx.mismatch", ATTRIBUTES)


@pytest.mark.parametrize(
    ("action", "status", "level"),
    [
        ("observed", StatusCode.ERROR, "WARN"),
        ("raised", StatusCode.ERROR, "ERROR"),
        ("repaired", StatusCode.UNSET, "WARN"),
        ("rerouted", StatusCode.UNSET, "WARN"),
        ("dropped", StatusCode.UNSET, "WARN"),
    ],
)
def test_the_span_is_an_error_unless_it_was_mended_and_the_log_only_where_work_was_stopped(
    backend: Backend, action: Action, status: StatusCode, level: str
) -> None:
    with backend.tracer.start_as_current_span("work") as span:
        alerts.deliver(replace(FOREIGN, action=action), span)
    assert backend.spans[0].status.status_code is status
    (record,) = backend.logs.alerts
    assert (record.severity_text, record.severity_number.name) == (level, level)


def test_where_no_span_records_one_is_made_in_the_given_context_and_ended(backend: Backend) -> None:
    with backend.tracer.start_as_current_span("turn") as turn:
        parent = trace.set_span_in_context(turn)
    alerts.deliver(FOREIGN, None, parent)
    made = backend.spans[-1]
    assert (made.name, made.parent) == ("otelctx.mismatch", turn.get_span_context())
    assert (made.instrumentation_scope.name, [event.name for event in made.events]) == ("otelctx", ["otelctx.mismatch"])
    assert made.attributes["otelctx.mismatch"] is True
    assert backend.logs.alerts[0].span_id == made.context.span_id


def test_a_span_that_has_ended_gets_a_child_for_the_alert(backend: Backend) -> None:
    ended = backend.tracer.start_span("work")
    ended.end()
    alerts.deliver(FOREIGN, ended)
    assert backend.spans[-1].name == "otelctx.mismatch"
    assert backend.spans[-1].parent == ended.get_span_context()


@pytest.mark.parametrize("backend", [ALWAYS_OFF], indirect=True)
def test_in_a_trace_that_is_not_sampled_the_log_the_metric_and_the_callbacks_have_the_alert(
    backend: Backend, heard: list[Mismatch]
) -> None:
    with backend.tracer.start_as_current_span("turn") as span:
        alerts.deliver(FOREIGN, span)
    assert backend.spans == []
    (record,) = backend.logs.alerts
    assert (record.trace_id, record.span_id) == (span.get_span_context().trace_id, span.get_span_context().span_id)
    assert backend.counted == 1
    assert heard == [FOREIGN]


def test_the_alert_does_not_change_which_span_is_current(backend: Backend) -> None:
    with backend.tracer.start_as_current_span("turn") as span:
        alerts.deliver(FOREIGN)
        assert trace.get_current_span() is span


def test_an_exporter_that_raises_stops_no_other_channel(backend: Backend, heard: list[Mismatch]) -> None:
    class Raising(SimpleSpanProcessor):
        def on_start(self, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("no start today")

    backend.tracer_provider.add_span_processor(Raising(backend.exporter))
    before = errors("alerts.span")
    alerts.deliver(FOREIGN)
    assert (len(backend.logs.alerts), backend.counted, heard) == (1, 1, [FOREIGN])
    assert errors("alerts.span") == before + 1


def test_a_log_handler_that_raises_stops_no_other_channel(
    backend: Backend, heard: list[Mismatch], attach_handler: Any
) -> None:
    class Raising(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("the disk is full")

    attach_handler(Raising(), "otelctx")
    before = errors("alerts.log")
    with backend.tracer.start_as_current_span("work") as span:
        alerts.deliver(FOREIGN, span)
    assert errors("alerts.log") == before + 1
    assert (len(backend.logs.alerts), backend.counted, heard) == (1, 1, [FOREIGN])
    assert len(backend.spans[0].events) == 1


def test_without_opentelemetry_there_is_one_record_and_nothing_of_it_is_imported() -> None:
    printed = python("""
        import sys
        from otelctx import alerts, faults
        from otelctx.mismatch import Mismatch
        assert "logging" not in sys.modules and "threading" not in sys.modules, "imported by the core"
        import logging
        records = []
        handler = logging.Handler()
        handler.handle = records.append
        logging.getLogger().addHandler(handler)
        alerts.configure(None)
        alerts.deliver(Mismatch("session", "lost", "A", None, None, "observed"))
        faults.internal_error("test", ValueError("x"))
        print([record.levelname for record in records], [n for n in sys.modules if n.startswith("opentelemetry")])
    """)
    assert printed == "['WARNING', 'WARNING'] []"


def test_the_global_providers_are_used_where_none_is_given() -> None:
    printed = python("""
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        import logging
        from otelctx import alerts
        from otelctx.mismatch import Mismatch
        logging.disable()
        lost = Mismatch("session", "lost", "A", None, None, "observed")
        alerts.deliver(lost)  # before there is a provider
        exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        alerts.deliver(lost)
        print([span.name for span in exporter.get_finished_spans()])
    """)
    assert printed == "['otelctx.mismatch']"


def test_beyond_the_limit_alerts_are_counted_and_held_back_and_the_next_one_says_how_many(
    backend: Backend, heard: list[Mismatch], caplog: pytest.LogCaptureFixture
) -> None:
    backend.configure(alerts={"per_minute": 3})
    for _ in range(8):
        alerts.deliver(FOREIGN)
    assert [mismatch.held_back for mismatch in heard] == [0, 0, 0]
    assert (len(backend.logs.alerts), len(backend.spans), backend.counted) == (3, 3, 8)
    assert "otelctx.mismatch.held_back" not in backend.logs.alerts[0].attributes
    backend.now += 60
    alerts.deliver(FOREIGN)
    assert heard[-1] == replace(FOREIGN, held_back=5)
    assert backend.logs.alerts[-1].attributes["otelctx.mismatch.held_back"] == 5
    assert backend.spans[-1].events[0].attributes["otelctx.mismatch.held_back"] == 5
    assert caplog.records[-1].getMessage().endswith("held back since the last one: 5.")
    alerts.deliver(FOREIGN)
    assert heard[-1].held_back == 0


def test_the_limit_is_ten_a_minute_by_default(backend: Backend, heard: list[Mismatch]) -> None:
    for _ in range(11):
        alerts.deliver(FOREIGN)
    backend.now += 59.9
    alerts.deliver(FOREIGN)
    assert len(heard) == 10


@pytest.mark.parametrize(
    "other",
    [
        replace(FOREIGN, key="tenant"),
        replace(FOREIGN, reason="lost"),
        replace(FOREIGN, place=Place("handle_message", "gateway.py", 43)),
        replace(FOREIGN, place=None),
    ],
    ids=["key", "reason", "place", "no place"],
)
def test_the_limit_is_for_one_key_reason_and_place(backend: Backend, heard: list[Mismatch], other: Mismatch) -> None:
    backend.configure(alerts={"per_minute": 1})
    for mismatch in (FOREIGN, FOREIGN, other):
        alerts.deliver(mismatch)
    assert heard == [FOREIGN, other]


def test_the_values_do_not_make_an_alert_another_one(backend: Backend, heard: list[Mismatch]) -> None:
    backend.configure(alerts={"per_minute": 1})
    alerts.deliver(FOREIGN)
    alerts.deliver(replace(FOREIGN, observed="slack:D", expected="slack:E"))
    assert len(heard) == 1


def test_count_only_counts_and_does_nothing_else(
    backend: Backend, heard: list[Mismatch], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        alerts.deliver(FOREIGN, count_only=True)
    assert (backend.counted, heard, caplog.records, backend.spans, backend.logs.records) == (20, [], [], [], [])
    alerts.deliver(FOREIGN)
    assert [mismatch.held_back for mismatch in heard] == [0]


def test_a_flood_costs_bounded_time_and_memory_and_loses_no_count(
    backend: Backend, heard: list[Mismatch], caplog: pytest.LogCaptureFixture
) -> None:
    began = time.process_time()
    for _ in range(100_000):
        alerts.deliver(FOREIGN)
    assert time.process_time() - began < 10  # it takes less than one; a record for each would take a minute
    assert (len(heard), len(caplog.records), backend.counted) == (10, 10, 100_000)
    backend.now += 60
    alerts.deliver(FOREIGN)
    assert heard[-1].held_back == 99_990


def test_a_callback_gets_the_values_as_they_are_and_none_after_it_unsubscribed(backend: Backend) -> None:
    backend.configure(telemetry={"values": "omit"})
    heard: list[Mismatch] = []
    unsubscribe = alerts.on_mismatch(heard.append)
    alerts.deliver(FOREIGN)
    unsubscribe()
    unsubscribe()
    alerts.deliver(FOREIGN)
    assert heard == [FOREIGN]


def test_a_callback_that_is_given_twice_is_called_twice_and_ends_one_by_one(backend: Backend) -> None:
    heard: list[Mismatch] = []
    first, second = alerts.on_mismatch(heard.append), alerts.on_mismatch(heard.append)
    alerts.deliver(FOREIGN)
    first()
    first()
    alerts.deliver(FOREIGN)
    second()
    assert len(heard) == 3


def test_a_callback_that_raises_is_counted_and_the_next_is_called(backend: Backend) -> None:
    heard: list[Mismatch] = []

    def broken(mismatch: Mismatch) -> None:
        raise RuntimeError("no pager today")

    before = errors("alerts.callback")
    subscriptions = [alerts.on_mismatch(broken), alerts.on_mismatch(heard.append)]
    try:
        alerts.deliver(FOREIGN)
    finally:
        for unsubscribe in subscriptions:
            unsubscribe()
    assert heard == [FOREIGN]
    assert errors("alerts.callback") == before + 1


async def _coroutine_function(mismatch: Mismatch) -> None: ...


@pytest.mark.parametrize("callback", [None, "print", _coroutine_function])
def test_what_could_not_be_called_back_is_refused_at_once(callback: Any) -> None:
    with pytest.raises(TypeError, match="plain function"):
        alerts.on_mismatch(callback)


def test_what_is_meant_to_end_the_thread_passes(backend: Backend) -> None:
    def interrupted(mismatch: Mismatch) -> None:
        raise KeyboardInterrupt

    unsubscribe = alerts.on_mismatch(interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            alerts.deliver(FOREIGN)
    finally:
        unsubscribe()
    assert not alerts.delivering()
    assert backend.spans != []


def _alerting_callback(heard: list[Mismatch]) -> Callable[[Mismatch], None]:
    def callback(mismatch: Mismatch) -> None:
        heard.append(mismatch)
        assert alerts.delivering()
        alerts.deliver(LOST)

    return callback


def test_a_callback_that_alerts_does_not_recurse_and_its_alert_is_told_of_next_time(backend: Backend) -> None:
    heard: list[Mismatch] = []
    unsubscribe = alerts.on_mismatch(_alerting_callback(heard))
    try:
        alerts.deliver(FOREIGN)
    finally:
        unsubscribe()
    assert (heard, backend.counted) == ([FOREIGN], 2)
    assert not alerts.delivering()
    alerts.deliver(LOST)
    assert backend.logs.alerts[-1].attributes["otelctx.mismatch.held_back"] == 1


def test_a_log_handler_that_alerts_does_not_recurse(backend: Backend, attach_handler: Any) -> None:
    class Alerting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            alerts.deliver(LOST)

    attach_handler(Alerting(), "otelctx")
    alerts.deliver(FOREIGN)
    assert (len(backend.logs.alerts), backend.counted) == (1, 2)


def test_an_exporter_that_alerts_does_not_recurse(backend: Backend) -> None:
    class Alerting(SimpleSpanProcessor):
        def on_start(self, *args: Any, **kwargs: Any) -> None:
            alerts.deliver(LOST)

        def on_end(self, *args: Any, **kwargs: Any) -> None:
            alerts.deliver(LOST)

    backend.tracer_provider.add_span_processor(Alerting(backend.exporter))
    alerts.deliver(FOREIGN)
    assert ([span.name for span in backend.spans], backend.counted) == (["otelctx.mismatch"], 3)


def test_a_callback_that_alerts_from_another_thread_each_time_comes_to_an_end(backend: Backend) -> None:
    heard: list[Mismatch] = []

    def callback(mismatch: Mismatch) -> None:
        heard.append(mismatch)
        thread = threading.Thread(target=alerts.deliver, args=(FOREIGN,))
        thread.start()
        thread.join()

    unsubscribe = alerts.on_mismatch(callback)
    try:
        alerts.deliver(FOREIGN)
    finally:
        unsubscribe()
    assert len(heard) == 10


def test_a_task_that_a_callback_has_started_alerts_as_any_other_once_the_delivery_is_over(backend: Backend) -> None:
    heard: list[Mismatch] = []
    tasks = []

    async def later() -> None:
        alerts.deliver(LOST)

    def callback(mismatch: Mismatch) -> None:
        heard.append(mismatch)
        if mismatch == FOREIGN:
            tasks.append(asyncio.get_running_loop().create_task(later()))

    async def main() -> None:
        alerts.deliver(FOREIGN)
        await tasks[0]

    unsubscribe = alerts.on_mismatch(callback)
    try:
        asyncio.run(main())
    finally:
        unsubscribe()
    assert heard == [FOREIGN, LOST]


def test_a_delivery_leaves_nothing_in_the_context(backend: Backend) -> None:
    def sizes() -> tuple[int, int]:
        import contextvars

        before = len(contextvars.copy_context())
        alerts.deliver(FOREIGN)
        return before, len(contextvars.copy_context())

    import contextvars

    assert contextvars.Context().run(sizes) == (0, 0)


def _everything(backend: Backend, caplog: pytest.LogCaptureFixture) -> str:
    data = backend.reader.get_metrics_data()
    return "".join(
        [
            *(span.to_json() for span in backend.spans),
            *(one.to_json() for one in backend.logs.exporter.get_finished_logs()),
            data.to_json() if data else "",
            *(repr(vars(record)) for record in caplog.records),
            caplog.text,
        ]
    )


@pytest.mark.parametrize("values", ["hash", "omit"])
def test_nothing_that_is_exported_has_the_value(
    backend: Backend, caplog: pytest.LogCaptureFixture, values: str
) -> None:
    def broken(mismatch: Mismatch) -> None:
        raise RuntimeError(f"cannot route {mismatch.observed} and {mismatch.expected}")

    backend.configure(telemetry={"values": values})
    unsubscribe = alerts.on_mismatch(broken)
    try:
        for action in ("observed", "raised", "repaired"):
            with backend.tracer.start_as_current_span("work") as span:
                alerts.deliver(replace(FOREIGN, action=action), span)
    finally:
        unsubscribe()
    text = _everything(backend, caplog)
    assert "a callback of on_mismatch raised: RuntimeError" in text
    assert EXPECTED not in text
    assert OBSERVED not in text


def test_an_omitted_value_is_told_apart_from_none_in_the_sentence(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.configure(telemetry={"values": "omit"})
    alerts.deliver(LOST)
    assert "expected a value (not shown), found none" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_alerts_anew_even_if_a_thread_that_is_gone_held_the_locks() -> None:
    printed = python("""
        import os, signal, sys, threading, warnings
        from otelctx import alerts
        from otelctx.mismatch import Mismatch
        lost = Mismatch("session", "lost", "A", None, None, "observed")
        import logging
        logging.disable()
        heard = []
        alerts.on_mismatch(heard.append)
        for _ in range(12):
            alerts.deliver(lost)
        held, done = threading.Event(), threading.Event()

        def hold():
            with alerts._callbacks_lock, alerts._settings.rate._lock:
                held.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        warnings.simplefilter("ignore")  # that the process has threads is the point
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            heard.clear()
            alerts.on_mismatch(heard.append)
            alerts.deliver(lost)
            os._exit(0 if heard == [lost, lost] else 1)  # nothing held back: that was the parent's
        status = os.waitpid(child, 0)[1]
        done.set()
        thread.join()
        print(os.waitstatus_to_exitcode(status))
    """)
    assert printed == "0"


def test_an_alert_as_the_interpreter_ends_harms_nothing() -> None:
    printed = python("""
        import atexit, logging, sys
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        trace.set_tracer_provider(TracerProvider())
        from otelctx import alerts, faults
        from otelctx.mismatch import Mismatch
        logging.disable()

        class Last:
            def __init__(self):
                self.deliver, self.error = alerts.deliver, faults.internal_error
                self.lost = Mismatch("session", "lost", "A", None, None, "observed")

            def __del__(self):
                self.deliver(self.lost)
                self.error("test", ValueError("bad"))

        sys.last = Last()  # goes when the modules go
        atexit.register(alerts.deliver, sys.last.lost)
        print("ran")
    """)
    assert printed == "ran"
