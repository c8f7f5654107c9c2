"""Hop spans, the keys on every span of the process, and what a fault in a callback, a getter or an exporter does."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any, Protocol, TypeAlias

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import otelctx
from otelctx import Mismatch, metrics

KEY: ContextVar[str] = ContextVar("key")
ENV = "SPANS_SESSION"
app = trace.get_tracer("app")
unsampled = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("app")

Told: TypeAlias = tuple[str, str | None, str | None, str | None, str]


class Install(Protocol):
    def __call__(self, **settings: Any) -> None: ...


def told(alerts: list[Mismatch]) -> list[Told]:
    return [(alert.reason, alert.expected, alert.observed, alert.source, alert.action) for alert in alerts]


def sources(*more: dict[str, Any]) -> dict[str, Any]:
    return {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}, *more]}}


@contextmanager
def own_variable(key: str) -> Iterator[None]:
    token = KEY.set(key)
    try:
        yield
    finally:
        KEY.reset(token)


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def hops(spans: InMemorySpanExporter) -> list[str]:
    return [span.name for span in spans.get_finished_spans() if "otelctx.hop.kind" in (span.attributes or {})]


def the_current_span() -> trace.Span:
    return trace.get_current_span()


class Seen:
    """What a piece of work saw."""

    def __init__(self) -> None:
        self.span: trace.Span = trace.INVALID_SPAN
        self.thread = threading.current_thread()

    def look(self, *_: object) -> None:
        self.span = trace.get_current_span()
        self.thread = threading.current_thread()


def by_submit(work: Callable[..., None]) -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="tools") as pool:
        pool.submit(work).result()


def by_thread(work: Callable[..., None]) -> None:
    thread = threading.Thread(target=work, name="a thread")
    thread.start()
    thread.join()


def by_timer(work: Callable[..., None]) -> None:
    timer = threading.Timer(0.001, work)
    timer.start()
    timer.join()


def by_callback(work: Callable[..., None]) -> None:
    future: Future[None] = Future()
    future.add_done_callback(work)
    Context().run(future.set_result, None)


each_hop = pytest.mark.parametrize(
    "hop, kind",
    [(by_submit, "executor"), (by_thread, "thread"), (by_timer, "thread"), (by_callback, "callback")],
    ids=["submit", "thread", "timer", "callback"],
)
each_mode = pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
Hop: TypeAlias = Callable[[Callable[..., None]], None]


# --- hop spans -------------------------------------------------------------------------------------------------------


@each_mode
@each_hop
def test_a_hop_under_a_recorded_span_has_a_span_that_says_what_hopped_where(
    install: Install, spans: InMemorySpanExporter, mode: str, hop: Hop, kind: str
) -> None:
    install(mode=mode, keys=sources())
    seen = Seen()
    with own_variable("A"), app.start_as_current_span("turn"):
        hop(seen.look)
    (turn,) = named(spans, "turn")
    (span,) = named(spans, f"{kind} Seen.look")
    assert hops(spans) == [span.name]
    assert span.kind is SpanKind.INTERNAL
    assert span.parent is not None
    assert span.parent.span_id == turn.context.span_id
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "otelctx"
    assert span.instrumentation_scope.version
    attributes = dict(span.attributes or {})
    wait = attributes.pop("otelctx.hop.wait")
    assert isinstance(wait, float)
    assert 0 <= wait < 10
    attributes = {name: value for name, value in attributes.items() if not name.startswith("otelctx.mismatch")}
    if mode == "observe":
        attributes.setdefault("session.id", "A")  # what it says there is what the worker sees
    assert attributes == {
        "session.id": "A",
        "otelctx.hop.kind": kind,
        "thread.id": seen.thread.ident,
        "thread.name": seen.thread.name,
        "code.function.name": f"{__name__}.Seen.look",
    }
    assert span.status.status_code is (StatusCode.ERROR if mode == "observe" else StatusCode.UNSET)


@pytest.mark.parametrize("mode", ["repair", "enforce"])
@each_hop
def test_a_hops_span_is_the_current_one_in_the_work(
    install: Install, spans: InMemorySpanExporter, mode: str, hop: Hop, kind: str
) -> None:
    install(mode=mode, keys=sources())
    seen = Seen()
    with own_variable("A"), app.start_as_current_span("turn"):
        hop(seen.look)
    (span,) = named(spans, f"{kind} Seen.look")
    assert seen.span.get_span_context() == span.context


@each_hop
def test_a_hops_span_is_not_made_current_in_observe(
    install: Install, spans: InMemorySpanExporter, hop: Hop, kind: str
) -> None:
    install(mode="observe", keys=sources())
    seen = Seen()
    with own_variable("A"), app.start_as_current_span("turn"):
        hop(seen.look)
    assert named(spans, f"{kind} Seen.look")
    assert seen.span is trace.INVALID_SPAN


@each_mode
@each_hop
def test_a_hop_without_a_recorded_parent_has_no_span(
    install: Install, spans: InMemorySpanExporter, mode: str, hop: Hop, kind: str
) -> None:
    install(mode=mode, keys=sources())
    with own_variable("A"):
        hop(Seen().look)
        with trace.use_span(unsampled.start_span("turn")):
            hop(Seen().look)
    assert hops(spans) == []


def test_a_hop_that_arrives_after_its_recorded_parent_has_ended_has_a_span(
    install: Install, spans: InMemorySpanExporter
) -> None:
    install(mode="repair", keys=sources())
    hold = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold.wait, 10)
        with own_variable("A"), app.start_as_current_span("turn"):
            late = pool.submit(the_current_span)
        hold.set()
        late.result()
    assert hops(spans) == ["executor the_current_span"]


@each_mode
@each_hop
def test_with_spans_always_a_hop_without_a_parent_is_a_root(
    install: Install, spans: InMemorySpanExporter, mode: str, hop: Hop, kind: str
) -> None:
    install(mode=mode, spans="always", keys=sources())
    with own_variable("A"):
        hop(Seen().look)
    (span,) = named(spans, f"{kind} Seen.look")
    assert span.parent is None
    assert hops(spans) == [span.name]


@each_mode
@each_hop
def test_with_spans_never_no_hop_has_a_span(
    install: Install, spans: InMemorySpanExporter, mode: str, hop: Hop, kind: str
) -> None:
    install(mode=mode, spans="never", keys=sources())
    with own_variable("A"), app.start_as_current_span("turn"):
        hop(Seen().look)
    assert hops(spans) == []


def test_with_spans_never_the_departed_span_stays_the_parent_of_the_work(
    install: Install, spans: InMemorySpanExporter
) -> None:
    install(mode="repair", spans="never", keys=sources())
    with own_variable("A"), app.start_as_current_span("turn"):
        by_submit(lambda: app.start_span("tool").end())
    (turn,), (tool,) = named(spans, "turn"), named(spans, "tool")
    assert tool.parent is not None
    assert tool.parent.span_id == turn.context.span_id


def test_with_spans_never_an_alert_has_a_span_of_its_own(
    install: Install, alerts: list[Mismatch], spans: InMemorySpanExporter
) -> None:
    install(mode="observe", spans="never", keys=sources())
    with own_variable("A"), app.start_as_current_span("turn"):
        by_submit(Seen().look)
    (turn,), (alert,) = named(spans, "turn"), named(spans, "otelctx.mismatch")
    assert alert.parent is not None
    assert alert.parent.span_id == turn.context.span_id
    assert [event.name for event in alert.events] == ["otelctx.mismatch"]
    assert told(alerts) == [("lost", "A", None, None, "observed")]


def test_each_hop_of_a_chain_is_the_child_of_the_one_before(install: Install, spans: InMemorySpanExporter) -> None:
    install(mode="repair", keys=sources())

    def outer() -> None:
        by_thread(inner)

    def inner() -> None:
        app.start_span("tool").end()

    with own_variable("A"), app.start_as_current_span("turn"):
        by_submit(outer)
    line = [span for name in ("turn", "executor", "thread", "tool") for span in _starting_with(spans, name)]
    assert [span.parent and span.parent.span_id for span in line[1:]] == [span.context.span_id for span in line[:-1]]
    assert len(line) == 4


def _starting_with(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name.split(" ")[0] == name]


@each_mode
def test_what_the_work_raises_is_recorded_on_its_span_and_reaches_the_caller(
    install: Install, spans: InMemorySpanExporter, mode: str
) -> None:
    install(mode=mode, keys=sources())
    fault = LookupError("no such tool")

    def fail() -> None:
        raise fault

    with own_variable("A"), app.start_as_current_span("turn"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(fail).exception() is fault
    (name,) = hops(spans)
    (span,) = named(spans, name)
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "LookupError: no such tool"
    (event,) = [event for event in span.events if event.name == "exception"]
    assert (event.attributes or {})["exception.type"] == "LookupError"


@each_mode
@pytest.mark.parametrize("fault", [StopIteration(1), GeneratorExit(), SystemExit(3)], ids=lambda fault: type(fault))
def test_an_exception_that_steers_control_passes_through_a_hop_unchanged(
    install: Install, spans: InMemorySpanExporter, mode: str, fault: BaseException
) -> None:
    install(mode=mode, keys=sources())

    def leave() -> None:
        raise fault

    with own_variable("A"), app.start_as_current_span("turn"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(leave).exception() is fault
    assert len(hops(spans)) == 1


def test_the_wait_of_a_hop_with_a_span_is_measured(install: Install) -> None:
    install(mode="repair", keys=sources())
    reader = InMemoryMetricReader()
    metrics.register(MeterProvider([reader], shutdown_on_exit=False))
    with own_variable("A"):
        by_submit(Seen().look)  # without a span: not measured
        with app.start_as_current_span("turn"):
            by_submit(Seen().look)
    data = reader.get_metrics_data()
    assert data is not None
    points = [
        (point.attributes, point.count)  # type: ignore[union-attr]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "otelctx.hop.wait"
        for point in metric.data.data_points
    ]
    assert points == [({"otelctx.hop.kind": "executor"}, 1)]


# --- keys on every span ----------------------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("binding", ["own variable", "bind"])
def test_every_recorded_span_has_the_key_whoever_starts_it(
    install: Install, spans: InMemorySpanExporter, mode: str, binding: str
) -> None:
    install(mode=mode, keys=sources())
    other = trace.get_tracer("opentelemetry.instrumentation.httpx", "1.0")
    with own_variable("A") if binding == "own variable" else otelctx.bind(session="A"):
        with app.start_as_current_span("turn"), other.start_as_current_span("GET", kind=SpanKind.CLIENT):
            other.start_span("connect", None, SpanKind.CLIENT, {"peer": "example"}).end()
    app.start_span("idle").end()
    said = {span.name: (span.attributes or {}).get("session.id") for span in spans.get_finished_spans()}
    assert said == {"turn": "A", "GET": "A", "connect": "A", "idle": None}
    assert (named(spans, "connect")[0].attributes or {})["peer"] == "example"


def test_each_declared_key_has_its_own_attribute(install: Install, spans: InMemorySpanExporter) -> None:
    install(keys={"tenant": {"attribute": "tenant.name"}, "profile": {}})
    with otelctx.bind(session="A", tenant="acme", profile="p"):
        app.start_span("turn").end()
    attributes = named(spans, "turn")[0].attributes or {}
    assert (attributes["session.id"], attributes["tenant.name"]) == ("A", "acme")
    assert "p" in attributes.values()


def test_what_the_application_says_of_the_session_wins(install: Install, spans: InMemorySpanExporter) -> None:
    install()
    with otelctx.bind(session="A"):
        app.start_span("by name", attributes={"session.id": "its own"}).end()
        app.start_span("by place", None, SpanKind.INTERNAL, {"session.id": "its own"}).end()
    assert [(span.attributes or {})["session.id"] for span in spans.get_finished_spans()] == ["its own", "its own"]


def test_a_span_has_the_key_of_its_start_and_not_of_what_is_bound_later(
    install: Install, spans: InMemorySpanExporter
) -> None:
    install()
    with otelctx.bind(session="A"):
        span = app.start_span("turn")
    with otelctx.bind(session="B"):
        span.end()
    assert (named(spans, "turn")[0].attributes or {})["session.id"] == "A"


@pytest.mark.parametrize("values, said", [("plain", "A"), ("omit", None)])
def test_a_span_says_of_the_key_what_the_settings_allow(
    install: Install, spans: InMemorySpanExporter, values: str, said: str | None
) -> None:
    install(telemetry={"values": values})
    with otelctx.bind(session="A"):
        app.start_span("turn").end()
    assert (named(spans, "turn")[0].attributes or {}).get("session.id") == said


def test_a_span_of_a_provider_that_is_not_the_global_one_has_the_key(install: Install) -> None:
    install()
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    with otelctx.bind(session="A"):
        provider.get_tracer("second").start_span("turn").end()
    provider.shutdown()
    assert (named(exporter, "turn")[0].attributes or {})["session.id"] == "A"


def test_the_sampler_sees_the_key(install: Install) -> None:
    from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult

    seen: list[object] = []

    class Looking(Sampler):
        def should_sample(
            self, parent_context: Any, trace_id: int, name: str, kind: Any = None, attributes: Any = None, *rest: Any,
            **named: Any,
        ) -> SamplingResult:  # fmt: skip
            seen.append((attributes or {}).get("session.id"))
            return ALWAYS_OFF.should_sample(parent_context, trace_id, name)

        def get_description(self) -> str:
            return "Looking"

    install()
    with otelctx.bind(session="A"):
        TracerProvider(sampler=Looking(), shutdown_on_exit=False).get_tracer("app").start_span("turn").end()
    assert seen == ["A"]


PROVIDER_LATER = """
    import otelctx
    from opentelemetry import trace

    early = trace.get_tracer("early")
    otelctx.install({}, keys={"session": {"sources": [{"env": "SPANS_SESSION"}]}})
    early.start_span("before there is a provider").end()

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

    early.start_span("idle").end()
    with otelctx.bind(session="A"):
        early.start_span("by an early tracer").end()
        trace.get_tracer("late").start_span("by a late tracer").end()
    for span in exporter.get_finished_spans():
        print(span.name, "=", span.attributes.get("session.id"))
"""


@pytest.mark.parametrize("environment, idle", [({}, None), ({ENV: "worker 7"}, "worker 7")])
def test_spans_of_a_provider_that_is_set_after_the_installation_carry_the_keys(
    environment: dict[str, str], idle: str | None
) -> None:
    printed = python(PROVIDER_LATER, **environment)
    assert printed.splitlines() == [f"idle = {idle}", "by an early tracer = A", "by a late tracer = A"]


def python(script: str, **environment: str) -> str:
    import os

    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", ENV))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=50,
        env=kept | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


# --- the process's identity ------------------------------------------------------------------------------------------


@pytest.fixture
def worker_process(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was started with its identity in an environment variable."""
    monkeypatch.setenv(ENV, "worker 7")
    install(mode="repair", keys=sources({"env": ENV}))


def session_of(spans: InMemorySpanExporter, name: str) -> object:
    (span,) = named(spans, name)
    return (span.attributes or {}).get("session.id")


def test_a_process_whose_environment_says_whose_it_is_labels_its_spans(
    worker_process: None, spans: InMemorySpanExporter
) -> None:
    app.start_span("turn").end()
    assert session_of(spans, "turn") == "worker 7"


def test_a_key_that_is_bound_comes_before_the_processs(worker_process: None, spans: InMemorySpanExporter) -> None:
    with own_variable("A"):
        app.start_span("turn").end()
    app.start_span("after").end()
    assert (session_of(spans, "turn"), session_of(spans, "after")) == ("A", "worker 7")


def test_the_environment_is_nobodys_once_a_session_has_changed_it(
    worker_process: None, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_variable("A"):
        app.start_span("turn").end()
        monkeypatch.setenv(ENV, "A")
    app.start_span("after").end()
    assert session_of(spans, "after") is None


def test_the_environment_is_the_processs_where_nothing_was_ever_bound(
    worker_process: None, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV, "task 9")
    app.start_span("turn").end()
    assert session_of(spans, "turn") == "task 9"


def test_a_cleared_key_is_not_filled_from_the_environment(worker_process: None, spans: InMemorySpanExporter) -> None:
    with own_variable(""):
        app.start_span("anonymous").end()
    assert session_of(spans, "anonymous") is None


def test_the_processs_identity_is_no_key_that_hops(worker_process: None, alerts: list[Mismatch]) -> None:
    seen: list[str | None] = []
    with app.start_as_current_span("turn"):
        by_submit(lambda: seen.append(KEY.get(None)))
    assert seen == [None]
    assert told(alerts) == []


# --- nothing depends on sampling -------------------------------------------------------------------------------------


def test_a_mismatch_in_a_trace_that_is_not_sampled_is_logged_and_counted_all_the_same(
    install: Install, alerts: list[Mismatch], spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    install(mode="observe", keys=sources())
    reader = InMemoryMetricReader()
    metrics.register(MeterProvider([reader], shutdown_on_exit=False))
    before = _mismatches(reader)
    with own_variable("A"), unsampled.start_as_current_span("turn"):
        by_submit(Seen().look)
    assert told(alerts) == [("lost", "A", None, None, "observed")]
    assert [(record.name, record.levelno) for record in caplog.records] == [("otelctx", logging.WARNING)]
    assert _mismatches(reader) - before == 1
    assert spans.get_finished_spans() == ()


def _mismatches(reader: InMemoryMetricReader) -> int:
    data = reader.get_metrics_data()
    counted: list[int] = [
        getattr(point, "value", 0)
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "otelctx.mismatches"
        for point in metric.data.data_points
    ]
    return sum(counted)


# --- a fault of ours, or of who listens ------------------------------------------------------------------------------


class Faults:
    """Internal errors counted since this was made, and those that were logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.before = metrics.error_counts()
        self.caplog = caplog

    def counted(self) -> dict[str, int]:
        now = metrics.error_counts()
        return {name: now[name] - self.before.get(name, 0) for name in now if now[name] != self.before.get(name, 0)}

    def logged(self) -> list[str]:
        return [record.getMessage() for record in self.caplog.records if "internal error" in record.getMessage()]


@pytest.fixture
def faults(caplog: pytest.LogCaptureFixture) -> Faults:
    from otelctx import faults as of_ours

    of_ours.forget()
    return Faults(caplog)


def test_a_callback_that_raises_stops_neither_the_work_nor_the_other_callbacks(
    install: Install, alerts: list[Mismatch], faults: Faults
) -> None:
    install(mode="observe", keys=sources())

    def broken(mismatch: Mismatch) -> None:
        raise ZeroDivisionError

    forget = otelctx.on_mismatch(broken)
    later: list[Mismatch] = []
    forget_later = otelctx.on_mismatch(later.append)
    with own_variable("A"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: "ran").result() == "ran"
    forget()
    forget_later()
    assert told(alerts) == told(later) == [("lost", "A", None, None, "observed")]
    assert faults.counted() == {"alerts.callback": 1}
    assert len(faults.logged()) == 1


def answer_never() -> str:
    raise ZeroDivisionError


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_a_getter_that_raises_is_one_fault_and_the_work_runs(install: Install, faults: Faults, mode: str) -> None:
    install(mode=mode, keys=sources({"getter": f"{__name__}:answer_never"}))
    with own_variable("A"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: "ran").result() == "ran"
    assert faults.counted() == {"getter": 1}
    assert len(faults.logged()) == 1


def test_a_getter_that_raises_each_time_is_logged_once(install: Install, faults: Faults) -> None:
    install(mode="observe", keys=sources({"getter": f"{__name__}:answer_never"}))
    with own_variable("A"), ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            pool.submit(lambda: "ran").result()
    assert faults.counted()["getter"] >= 1
    assert len(faults.logged()) == 1


_release = threading.Event()


def answer_late() -> str:
    _release.wait(30)
    return "B"


def test_a_getter_that_blocks_is_one_fault_and_the_work_runs(install: Install, faults: Faults) -> None:
    _release.clear()
    install(mode="observe", keys=sources({"getter": f"{__name__}:answer_late"}))
    try:
        with own_variable("A"), ThreadPoolExecutor(1) as pool:
            for _ in range(3):
                assert pool.submit(lambda: "ran").result(10) == "ran"
    finally:
        _release.set()
    assert faults.counted() == {"getter": 1}
    assert len(faults.logged()) == 1


class Hanging(SpanExporter):
    """An exporter whose collector does not answer."""

    def __init__(self) -> None:
        self.asked, self.release = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        self.release.wait(30)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.release.set()


@each_mode
def test_the_work_runs_while_an_exporter_hangs(
    install: Install, alerts: list[Mismatch], faults: Faults, mode: str
) -> None:
    exporter = Hanging()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1))
    tracer = provider.get_tracer("app")
    install(mode=mode, keys=sources())
    tracer.start_span("first").end()
    assert exporter.asked.wait(10)
    try:
        with own_variable("A"), tracer.start_as_current_span("turn"), ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: "ran").result(10) == "ran"
    finally:
        exporter.release.set()
        provider.shutdown()
    assert told(alerts) == ([("lost", "A", None, None, "observed")] if mode == "observe" else [])
    assert faults.counted() == {}


def test_a_tracer_that_cannot_start_our_span_leaves_the_work_as_it_is(
    install: Install, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(trace.NoOpTracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            raise ZeroDivisionError

    install(mode="repair", spans="always", keys=sources())
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", Broken())
    with own_variable("A"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: KEY.get(None)).result() == "A"
    assert faults.counted() == {"arrival": 1}
