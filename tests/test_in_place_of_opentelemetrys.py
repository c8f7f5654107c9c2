"""What OpenTelemetry expects of an instrumentor of threads holds where otelctx stands in its place.

The behaviours are those of its threading instrumentor: the current span in a thread, a timer and a pool; who is whose
parent; turned on twice, turned off, and on again. otelctx may put a span of its own for the hop in between
(``spans = "auto"``); with ``never`` the parents are exactly what they are there.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

import otelctx
from otelctx_instrumentation import OtelctxInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from tests.conftest import Install

TIMEOUT: Final = 20.0

tracer = trace.get_tracer(__name__)


@pytest.fixture(params=["never", "auto"])
def on(request: pytest.FixtureRequest, install: Install) -> str:
    """Otelctx on, with hop spans or without; no key is declared, and none is bound."""
    install(spans=request.param)
    return str(request.param)


def current() -> trace.SpanContext:
    return trace.get_current_span().get_span_context()


def family(exporter: InMemorySpanExporter) -> dict[str, str | None]:
    """Each of the application's finished spans, with the name of its nearest ancestor that is the application's."""
    spans = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context is not None}

    def parent_of(span: ReadableSpan) -> str | None:
        while span.parent is not None:
            span = spans[span.parent.span_id]
            if not is_hop(span):
                return span.name
        return None

    return {span.name: parent_of(span) for span in spans.values() if not is_hop(span)}


def is_hop(span: ReadableSpan) -> bool:
    return "otelctx.hop.kind" in (span.attributes or {})


def within(name: str, *then: Callable[[], None]) -> None:
    """A span `name`, and in it each of `then`."""
    with tracer.start_as_current_span(name):
        for do in then:
            do()


def threaded(do: Callable[[], None]) -> Callable[[], None]:
    """What does `do` in a thread, to its end."""

    def call() -> None:
        thread = threading.Thread(target=do)
        thread.start()
        thread.join(TIMEOUT)

    return call


# --- the current span -------------------------------------------------------------------------------------------------


def thread_of(do: Callable[[], None]) -> threading.Thread:
    return threading.Thread(target=do)


def timer_of(do: Callable[[], None]) -> threading.Thread:
    return threading.Timer(0, do)


@pytest.mark.parametrize("make", [thread_of, timer_of])
def test_a_thread_and_a_timer_are_in_the_trace_and_under_the_span_of_whoever_starts_them(
    on: str, make: Callable[[Callable[[], None]], threading.Thread]
) -> None:
    seen: list[trace.SpanContext] = []
    thread = make(lambda: seen.append(current()))
    with tracer.start_as_current_span("root") as root:
        thread.start()
        thread.join(TIMEOUT)
    [there] = seen
    assert there.trace_id == root.get_span_context().trace_id
    if on == "never":
        assert there == root.get_span_context()


@pytest.mark.parametrize("workers", [1, 10])
def test_each_task_of_a_pool_has_the_span_that_it_was_submitted_under(on: str, workers: int) -> None:
    expected, futures = [], []
    with ThreadPoolExecutor(workers) as pool:
        for number in range(10):
            with tracer.start_as_current_span(f"trace {number}") as span:
                expected.append(span.get_span_context())
                futures += [pool.submit(current), pool.submit(current)]
        seen = [future.result(TIMEOUT) for future in futures]
    assert [one.trace_id for one in seen] == [one.trace_id for one in expected for _ in range(2)]
    if on == "never":
        assert seen == [one for one in expected for _ in range(2)]


@pytest.mark.usefixtures("on")
def test_an_idle_worker_has_no_span_of_any_task_and_no_task_complains(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(2) as pool:
        with tracer.start_as_current_span("root"):
            wait([pool.submit(within, "task") for _ in range(20)], TIMEOUT)
        assert [pool.submit(current).result(TIMEOUT).is_valid for _ in range(4)] == [False] * 4
    assert caplog.records == []  # "Failed to detach context", for one


@pytest.mark.usefixtures("on")
def test_whoever_starts_and_submits_keeps_its_own_span() -> None:
    with tracer.start_as_current_span("root") as root:
        before = otel_context.get_current()
        threaded(lambda: within("thread"))()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(within, "task").result(TIMEOUT)
        assert trace.get_current_span() is root
        assert otel_context.get_current() == before
    assert current() == trace.INVALID_SPAN_CONTEXT


# --- whose parent is whose --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on")
def test_a_span_in_a_thread_is_the_starters_child(spans: InMemorySpanExporter) -> None:
    within("root", threaded(lambda: within("square")))
    assert family(spans) == {"square": "root", "root": None}


@pytest.mark.usefixtures("on")
def test_threads_in_threads_are_children_of_children(spans: InMemorySpanExporter) -> None:
    within("root", threaded(lambda: within("square", threaded(lambda: within("cube")))))
    assert family(spans) == {"cube": "square", "square": "root", "root": None}


@pytest.mark.usefixtures("on")
def test_two_threads_of_one_thread_are_siblings(spans: InMemorySpanExporter) -> None:
    square, cube = (threaded(lambda name=name: within(name)) for name in ("square", "cube"))  # type: ignore[misc]
    within("root", threaded(lambda: within("calculate", square, cube)))
    assert family(spans) == {"square": "calculate", "cube": "calculate", "calculate": "root", "root": None}


@pytest.mark.usefixtures("on")
def test_spans_in_a_pool_are_children_of_whoever_submitted(spans: InMemorySpanExporter) -> None:
    with ThreadPoolExecutor(1) as pool:
        for name in ("one", "two"):
            with tracer.start_as_current_span(name):
                wait([pool.submit(within, f"task of {name}"), pool.submit(within, f"another of {name}")], TIMEOUT)
                assert [*pool.map(within, [f"item of {name}"])] == [None]
    owed = {f"{what} of {name}": name for name in ("one", "two") for what in ("task", "another", "item")}
    assert family(spans) == {**owed, "one": None, "two": None}


@pytest.mark.usefixtures("on")
def test_a_run_without_a_start_is_the_callers(spans: InMemorySpanExporter) -> None:
    thread = threading.Thread(target=within, args=("square",))
    within("root", thread.run)
    assert family(spans) == {"square": "root", "root": None}


@pytest.mark.usefixtures("on")
def test_a_run_of_its_own_that_is_called_twice_is_each_callers(spans: InMemorySpanExporter) -> None:
    class Own(threading.Thread):
        count = 0

        def run(self) -> None:  # without `super().run()`, which works once
            self.count += 1
            within(f"square {self.count}")

    thread = Own()
    within("first", thread.run)
    within("second", thread.run)
    assert family(spans) == {"square 1": "first", "first": None, "square 2": "second", "second": None}


# --- on, twice, and off -----------------------------------------------------------------------------------------------


@pytest.fixture
def instrumentor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The entry point that ``opentelemetry-instrument`` loads; with ``never``, a hop adds no span."""
    monkeypatch.setenv("OTELCTX_SPANS", "never")
    one = OtelctxInstrumentor()
    yield one
    if one.is_instrumented_by_opentelemetry:
        one.uninstrument()


def test_the_instrumentor_turns_it_on_off_and_on_again(instrumentor: Any, spans: InMemorySpanExporter) -> None:
    def parent_in_a_thread() -> str | None:
        spans.clear()
        within("root", threaded(lambda: within("square")))
        return family(spans)["square"]

    assert parent_in_a_thread() is None
    instrumentor.instrument()
    assert parent_in_a_thread() == "root"
    instrumentor.uninstrument()
    assert not otelctx.is_installed()
    assert parent_in_a_thread() is None
    instrumentor.instrument()
    assert parent_in_a_thread() == "root"


def test_instrumented_twice_a_thread_is_one_hop_and_one_uninstrument_is_enough(
    instrumentor: Any, spans: InMemorySpanExporter
) -> None:
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit
    instrumentor.instrument()
    once = threading.Thread.start, ThreadPoolExecutor.submit
    instrumentor.instrument()
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == once
    within("root", threaded(lambda: within("square")))
    assert [span.name for span in spans.get_finished_spans()] == ["square", "root"]
    instrumentor.uninstrument()
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == (start, submit)


def test_uninstrumented_a_thread_starts_a_trace_of_its_own(instrumentor: Any, spans: InMemorySpanExporter) -> None:
    instrumentor.instrument()
    instrumentor.uninstrument()
    threaded(lambda: within("square"))()
    [span] = spans.get_finished_spans()
    assert span.parent is None
