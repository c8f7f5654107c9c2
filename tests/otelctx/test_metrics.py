"""What the four metrics say, read by the SDK as a backend would read them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import set_span_in_context

from otelctx import metrics, scope
from otelctx.mismatch import Mismatch
from otelctx.ticks import Ticks

if TYPE_CHECKING:
    from collections.abc import Iterator

FOREIGN = Mismatch("session", "foreign", "slack:A", "slack:B", "env:SESSION", "observed", "executor")


class Backend:
    """A meter provider of the SDK, and what it would export."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    def metric(self, name: str) -> Any:
        """The metric as exported, or None; there must be only one of the name."""
        data = self.reader.get_metrics_data()
        found = [
            metric
            for resource in (data.resource_metrics if data else ())
            for scoped in resource.scope_metrics
            if (scoped.scope.name, scoped.scope.version) == (scope.NAME, scope.VERSION)
            for metric in scoped.metrics
            if metric.name == name
        ]
        assert len(found) <= 1
        return found[0] if found else None

    def points(self, name: str) -> dict[tuple[tuple[str, str], ...], int]:
        metric = self.metric(name)
        return {} if metric is None else {_label(point.attributes): point.value for point in metric.data.data_points}


def _label(attributes: Any) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(attributes.items()))


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = Backend()
    metrics._unsent.clear()  # what other tests counted without a provider
    metrics.register(backend.provider)
    yield backend
    metrics.register(None)
    backend.provider.shutdown()


def python(script: str) -> str:
    """Run a program of its own, where nothing is imported or set yet; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.strip()


def test_a_mismatch_is_counted_by_key_reason_action_and_hop_kind_and_by_no_value(backend: Backend) -> None:
    metrics.mismatch_counted(FOREIGN)
    metrics.mismatch_counted(FOREIGN)
    metric = backend.metric("otelctx.mismatches")
    assert (metric.unit, metric.data.is_monotonic) == ("{mismatch}", True)
    (point,) = metric.data.data_points
    assert point.value == 2
    assert point.attributes == {
        "otelctx.key": "session",
        "otelctx.mismatch.reason": "foreign",
        "otelctx.mismatch.action": "observed",
        "otelctx.hop.kind": "executor",
    }


def test_a_mismatch_away_from_any_hop_has_no_hop_kind(backend: Backend) -> None:
    metrics.mismatch_counted(Mismatch("claim", "split", None, None, None, "observed"))
    (point,) = backend.metric("otelctx.mismatches").data.data_points
    assert "otelctx.hop.kind" not in point.attributes


def test_the_exemplar_of_a_mismatch_is_the_trace_that_it_is_in(backend: Backend) -> None:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("test").start_span("work")
    metrics.mismatch_counted(FOREIGN, set_span_in_context(span))
    (point,) = backend.metric("otelctx.mismatches").data.data_points
    assert [exemplar.trace_id for exemplar in point.exemplars] == [span.get_span_context().trace_id]


def test_hops_are_observed_by_kind_and_outcome(backend: Backend) -> None:
    label = (("otelctx.hop.kind", "executor"), ("otelctx.hop.outcome", "carried"))
    before = backend.points("otelctx.hops").get(label, 0)
    for _ in range(3):
        metrics.hop_counter("executor", "carried")()
    metric = backend.metric("otelctx.hops")
    assert (metric.unit, metric.data.is_monotonic) == ("{hop}", True)
    assert backend.points("otelctx.hops")[label] == before + 3


def test_a_kind_of_hop_that_never_happened_is_not_exported(backend: Backend) -> None:
    metrics.hop_counter("never", "carried")
    assert (("otelctx.hop.kind", "never"), ("otelctx.hop.outcome", "carried")) not in backend.points("otelctx.hops")
    assert metrics.hop_counts()["never", "carried"] == 0


def test_internal_errors_are_counted_by_component(backend: Backend) -> None:
    metrics.error_counted("test component")
    metrics.error_counted("test component")
    assert backend.metric("otelctx.internal_errors").unit == "{error}"
    assert backend.points("otelctx.internal_errors")[(("otelctx.component", "test component"),)] == 2
    assert metrics.error_counts()["test component"] == 2


def test_a_wait_is_recorded_in_seconds_with_buckets_that_tell_a_warm_pool_from_a_queue(backend: Backend) -> None:
    metrics.record_wait("executor", 0.0005)
    metrics.record_wait("executor", 42.0)
    metric = backend.metric("otelctx.hop.wait")
    (point,) = metric.data.data_points
    assert (metric.unit, point.attributes, point.count) == ("s", {"otelctx.hop.kind": "executor"}, 2)
    assert point.explicit_bounds == metrics.WAIT_BOUNDARIES
    assert [index for index, number in enumerate(point.bucket_counts) if number] == [1, 10]


def test_registering_twice_is_registering_once(backend: Backend) -> None:
    metrics.register(backend.provider)
    counter = metrics.hop_counter("thread", "carried")
    counter()
    label = (("otelctx.hop.kind", "thread"), ("otelctx.hop.outcome", "carried"))
    assert backend.points("otelctx.hops")[label] == metrics.hop_counts()["thread", "carried"]


def test_a_provider_need_not_be_hashable(caplog: pytest.LogCaptureFixture) -> None:
    class Unhashable(MeterProvider):
        __hash__ = None  # type: ignore[assignment]

    reader = InMemoryMetricReader()
    provider = Unhashable([reader])
    try:
        metrics.register(provider)
        metrics.mismatch_counted(FOREIGN)
        assert reader.get_metrics_data() is not None
        assert caplog.records == []
    finally:
        metrics.register(None)
        provider.shutdown()


def test_a_provider_that_raises_is_one_internal_error_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MeterProvider):
        def get_meter(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no meter today")

    before = metrics.error_counts().get("metrics", 0)
    broken = Broken(shutdown_on_exit=False)
    try:
        metrics.register(broken)
        metrics.mismatch_counted(FOREIGN)
        metrics.record_wait("thread", 1.0)
    finally:
        metrics.register(None)
        broken.shutdown()
    assert metrics.error_counts()["metrics"] == before + 3


def test_no_count_is_lost_between_threads_and_reads_do_not_disturb() -> None:
    ticks: Ticks[str] = Ticks()
    start = threading.Barrier(9)

    def work() -> None:
        tick = ticks.counter("hop")
        start.wait()
        for _ in range(20_000):
            tick()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    start.wait()
    seen = [ticks.counts()["hop"] for _ in range(200)]
    for thread in threads:
        thread.join()
    assert seen == sorted(seen)
    assert ticks.counts() == ticks.counts() == {"hop": 160_000}


def test_the_counter_of_a_hop_is_the_same_for_the_same_kind_and_outcome() -> None:
    assert metrics.hop_counter("timer", "carried") is metrics.hop_counter("timer", "carried")
    assert metrics.hop_counter("timer", "carried") is not metrics.hop_counter("timer", "shed")


def test_nothing_imports_opentelemetry_before_the_process_does() -> None:
    assert (
        python("""
        import sys
        from otelctx import metrics
        from otelctx.mismatch import Mismatch
        metrics.register()
        metrics.hop_counter("thread", "carried")()
        metrics.error_counted("test")
        metrics.record_wait("thread", 1.0)
        metrics.mismatch_counted(Mismatch("session", "lost", "A", None, None, "observed", "thread"))
        print([name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "logging", "threading")])
    """)
        == "[]"
    )


@pytest.mark.parametrize("registered", ["before", "after", "before and after"])
def test_what_was_counted_before_there_was_a_provider_reaches_the_one_that_is_set(registered: str) -> None:
    assert (
        python(f"""
        from otelctx import metrics
        from otelctx.mismatch import Mismatch
        lost = Mismatch("session", "lost", "A", None, None, "observed", "thread")
        metrics.register()
        metrics.mismatch_counted(lost)
        metrics.hop_counter("thread", "carried")()
        metrics.error_counted("test")

        import opentelemetry.metrics
        if "before" in {registered!r}:
            metrics.register()
        metrics.mismatch_counted(lost)

        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        reader = InMemoryMetricReader()
        opentelemetry.metrics.set_meter_provider(MeterProvider([reader]))
        if "after" in {registered!r}:
            metrics.register()
        reader.get_metrics_data()  # the first collection finds out that there is a provider
        metrics.hop_counter("thread", "carried")()
        (resource,) = reader.get_metrics_data().resource_metrics
        (scope,) = resource.scope_metrics
        print(sorted((metric.name, point.value) for metric in scope.metrics for point in metric.data.data_points))
    """)
        == "[('otelctx.hops', 2), ('otelctx.internal_errors', 1), ('otelctx.mismatches', 2)]"
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_counts_on_even_if_a_thread_that_is_gone_held_the_locks() -> None:
    assert (
        python("""
        import os, signal, threading
        from otelctx import metrics
        from otelctx.mismatch import Mismatch
        lost = Mismatch("session", "lost", "A", None, None, "observed", "thread")
        metrics.mismatch_counted(lost)
        held, done = threading.Event(), threading.Event()

        def hold():
            with metrics._lock, metrics._hops._lock, metrics._errors._lock:
                held.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        import warnings
        warnings.simplefilter("ignore")  # that the process has threads is the point
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            metrics.mismatch_counted(lost)
            metrics.hop_counter("thread", "carried")()
            metrics.error_counted("test")
            counts = metrics.hop_counts(), metrics.error_counts(), list(metrics._unsent.values())
            os._exit(0 if counts == ({("thread", "carried"): 1}, {"test": 1}, [1]) else 1)
        status = os.waitpid(child, 0)[1]
        done.set()
        thread.join()
        print(os.waitstatus_to_exitcode(status))
    """)
        == "0"
    )
