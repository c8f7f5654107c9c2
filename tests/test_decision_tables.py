"""The two tables by which a mismatch is stated, at an arrival and at the start of any span: row by row, by column."""

from __future__ import annotations

import _thread
import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, ContextVar
from multiprocessing.pool import ThreadPool
from typing import Any, TypeAlias

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, set_span_in_context

import otelctx
from otelctx import Mismatch, MismatchError, metrics

KEY: ContextVar[str] = ContextVar("key")
VARIABLE = f"contextvar:{__name__}:KEY"
BINDING = "contextvar:otelctx.flow:STATE"
ENV = "DECISION_TABLE_SESSION"
_fallback: list[str] = []


def whose_work_is_this() -> str:
    """An application's getter: its variable, and a process-wide fallback that the last session wrote."""
    return KEY.get("") or (_fallback[-1] if _fallback else "")


GETTER = f"getter:{__name__}:whose_work_is_this"

Install: TypeAlias = Callable[..., None]
Told: TypeAlias = tuple[str, str | None, str | None, str | None, str]
Work: TypeAlias = Callable[[], str | None]
Hop: TypeAlias = Callable[[Callable[[], object], Work], "str | None"]
Bound: TypeAlias = Callable[[str], AbstractContextManager[None]]


def told(alerts: list[Mismatch]) -> list[Told]:
    return [(alert.reason, alert.expected, alert.observed, alert.source, alert.action) for alert in alerts]


def lost(key: str) -> Told:
    return ("lost", key, None, None, "observed")


@pytest.fixture(autouse=True)
def _no_fallback(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(ENV, raising=False)
    _fallback.clear()
    yield
    _fallback.clear()


@pytest.fixture
def on(install: Install) -> Install:
    """Turn otelctx on in a mode, with an application's variable (and with what else is given)."""

    def turn_on(mode: str, *more: dict[str, Any], **settings: Any) -> None:
        sources = [{"contextvar": f"{__name__}:KEY", "empty": [""]}, *more]
        session = {"sources": sources, **settings.pop("session", {})}
        install(mode=mode, keys={"session": session}, **settings)

    return turn_on


class Counted:
    """The counter of mismatches, as a backend would read it; counts from when it is made."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        metrics.register(self.provider)
        # A new provider gets what was counted before there was any.
        self.before = {reason: self._total(reason) for reason in ("lost", "foreign", "leaked")}

    def of(self, reason: str) -> int:
        return self._total(reason) - self.before[reason]

    def _total(self, reason: str) -> int:
        data = self.reader.get_metrics_data()
        counted: list[int] = [
            getattr(point, "value", 0)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "otelctx.mismatches"
            for point in metric.data.data_points
            if (point.attributes or {})["otelctx.mismatch.reason"] == reason
        ]
        return sum(counted)


# --- how work hops ---------------------------------------------------------------------------------------------------


def nothing() -> None:
    """A worker whose context is as it comes."""


def by_submit(prepare: Callable[[], object], work: Work) -> str | None:
    with ThreadPoolExecutor(1, initializer=prepare) as pool:
        return pool.submit(work).result()


def by_map(prepare: Callable[[], object], work: Work) -> str | None:
    with ThreadPoolExecutor(1, initializer=prepare) as pool:
        return next(iter(pool.map(lambda _: work(), [0])))


def by_run_in_executor(prepare: Callable[[], object], work: Work) -> str | None:
    async def main(pool: ThreadPoolExecutor) -> str | None:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    with ThreadPoolExecutor(1, initializer=prepare) as pool:
        return asyncio.run(main(pool))


def by_thread_pool(prepare: Callable[[], object], work: Work) -> str | None:
    with ThreadPool(1, initializer=prepare) as pool:
        return pool.apply(work)


def by_thread(prepare: Callable[[], object], work: Work) -> str | None:
    assert prepare is nothing, "a new thread's context is empty"
    seen: list[str | None] = []
    thread = threading.Thread(target=lambda: seen.append(work()))
    thread.start()
    thread.join()
    return seen[0]


def by_callback(prepare: Callable[[], object], work: Work) -> str | None:
    seen: list[str | None] = []
    future: Future[None] = Future()
    future.add_done_callback(lambda _: seen.append(work()))

    def resolve() -> None:
        prepare()
        future.set_result(None)

    Context().run(resolve)
    return seen[0]


INTO_POOLS = (by_submit, by_map, by_run_in_executor, by_thread_pool)
ALL_HOPS = (*INTO_POOLS, by_thread, by_callback)


@contextmanager
def own_variable(key: str) -> Iterator[None]:
    token = KEY.set(key)
    try:
        yield
    finally:
        KEY.reset(token)


@contextmanager
def binding(key: str) -> Iterator[None]:
    with otelctx.bind(session=key):
        yield


def left_in_variable() -> None:
    KEY.set("B")


def left_bound() -> None:
    otelctx.attach(session="B")


def session() -> str | None:
    return otelctx.get("session")


each_binder = pytest.mark.parametrize("bound", [own_variable, binding], ids=["own variable", "bind"])
each_stale = pytest.mark.parametrize(
    "stale, source", [(left_in_variable, VARIABLE), (left_bound, BINDING)], ids=["stale variable", "stale binding"]
)
each_mode = pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
replaying = pytest.mark.parametrize("mode", ["repair", "enforce"])
each_hop = pytest.mark.parametrize("hop", ALL_HOPS)
each_warm_hop = pytest.mark.parametrize("hop", [*INTO_POOLS, by_callback])

# --- at an arrival: value → nothing ----------------------------------------------------------------------------------


@each_hop
@each_binder
def test_a_value_that_finds_nothing_is_lost_in_observe(
    on: Install, alerts: list[Mismatch], hop: Hop, bound: Bound
) -> None:
    on("observe")
    with bound("A"):
        assert hop(nothing, session) is None
    assert told(alerts) == [lost("A")]


@replaying
@each_hop
@each_binder
def test_a_value_that_finds_nothing_is_carried_without_an_alert(
    on: Install, alerts: list[Mismatch], mode: str, hop: Hop, bound: Bound
) -> None:
    on(mode)
    counted = Counted()
    with bound("A"):
        assert hop(nothing, session) == "A"
    assert told(alerts) == []
    assert counted.of("lost") == 0


@each_warm_hop
@each_binder
def test_a_value_that_finds_a_cleared_variable_is_lost_in_observe_whatever_the_environment_says(
    on: Install, alerts: list[Mismatch], hop: Hop, bound: Bound, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("observe", {"env": ENV})
    monkeypatch.setenv(ENV, "B")
    with bound("A"):
        hop(lambda: KEY.set(""), session)
    assert told(alerts) == [lost("A")]


@each_binder
def test_lost_is_told_once_per_place_and_counted_each_time(on: Install, alerts: list[Mismatch], bound: Bound) -> None:
    on("observe")
    counted = Counted()
    with ThreadPoolExecutor(1) as pool:
        for key in ("A", "A", "B"):
            with bound(key):
                pool.submit(session).result()
        with bound("A"):
            pool.submit(session).result()  # another place
            threading_place = threading.Thread(target=session)
            threading_place.start()
            threading_place.join()
    assert told(alerts) == [lost("A"), lost("A"), lost("A")]
    assert [alert.hop_kind for alert in alerts] == ["executor", "executor", "thread"]
    assert counted.of("lost") == 5


def test_the_place_of_a_loss_is_the_applications_own_line(on: Install, alerts: list[Mismatch]) -> None:
    on("observe")
    with own_variable("A"), ThreadPoolExecutor(1) as pool:
        pool.submit(session).result()
        list(pool.map(lambda _: session(), [0]))
    assert [(alert.place.function, alert.place.file) for alert in alerts if alert.place] == [
        ("test_the_place_of_a_loss_is_the_applications_own_line", __file__)
    ] * 2


# --- at an arrival: value → another, from an ambient source ----------------------------------------------------------


@each_hop
@each_binder
def test_a_value_that_falls_back_to_anothers_environment_variable_is_foreign_in_observe(
    on: Install, alerts: list[Mismatch], hop: Hop, bound: Bound, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("observe", {"env": ENV})
    monkeypatch.setenv(ENV, "B")
    with bound("A"):
        hop(nothing, session)
    assert told(alerts) == [("foreign", "A", "B", f"env:{ENV}", "observed")]


@each_hop
def test_a_value_that_falls_back_to_anothers_by_a_getter_is_foreign_in_observe(
    on: Install, alerts: list[Mismatch], hop: Hop
) -> None:
    on("observe", {"getter": f"{__name__}:whose_work_is_this", "empty": [""]})
    _fallback.append("B")
    with own_variable("A"):
        assert hop(nothing, whose_work_is_this) == "B"
    assert told(alerts) == [("foreign", "A", "B", GETTER, "observed")]


@each_hop
def test_a_value_that_falls_back_to_itself_raises_no_alert_in_observe(
    on: Install, alerts: list[Mismatch], hop: Hop, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("observe", {"env": ENV})
    monkeypatch.setenv(ENV, "A")
    with own_variable("A"):
        hop(nothing, session)
    assert told(alerts) == []


@each_hop
@each_binder
def test_a_value_where_the_environment_says_another_is_carried_without_an_alert_in_repair(
    on: Install, alerts: list[Mismatch], hop: Hop, bound: Bound, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("repair", {"env": ENV})
    monkeypatch.setenv(ENV, "B")
    with bound("A"):
        assert hop(nothing, session) == "A"
    assert told(alerts) == []


@replaying
@each_hop
def test_a_value_where_a_getter_would_fall_back_to_anothers_is_carried_without_an_alert(
    on: Install, alerts: list[Mismatch], mode: str, hop: Hop
) -> None:
    on(mode, {"getter": f"{__name__}:whose_work_is_this", "empty": [""]})
    _fallback.append("B")
    with own_variable("A"):
        assert hop(nothing, whose_work_is_this) == "A"
    assert told(alerts) == []


def test_enforce_reads_each_source_alone_and_raises_before_the_work_where_one_still_says_another(
    on: Install, alerts: list[Mismatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    on("enforce", {"env": ENV})
    monkeypatch.setenv(ENV, "B")
    ran: list[None] = []
    with own_variable("A"), ThreadPoolExecutor(1) as pool, pytest.raises(MismatchError) as raised:
        pool.submit(lambda: ran.append(None)).result()
    assert ran == []
    assert told(alerts) == told([raised.value.mismatch]) == [("foreign", "A", "B", f"env:{ENV}", "raised")]


# --- at an arrival: value → another, from a ContextVar ---------------------------------------------------------------


@each_warm_hop
@each_binder
@each_stale
def test_a_value_that_finds_anothers_in_a_context_variable_is_foreign_in_observe(
    on: Install, alerts: list[Mismatch], hop: Hop, bound: Bound, stale: Callable[[], None], source: str
) -> None:
    on("observe")
    with bound("A"):
        assert hop(stale, session) == "B"
    assert told(alerts) == [("foreign", "A", "B", source, "observed")]


@replaying
@each_warm_hop
@each_binder
@each_stale
def test_a_value_that_finds_anothers_in_a_context_variable_is_foreign_and_repaired(
    on: Install, alerts: list[Mismatch], mode: str, hop: Hop, bound: Bound, stale: Callable[[], None], source: str
) -> None:
    on(mode)
    with bound("A"):
        assert hop(stale, session) == "A"
    assert told(alerts) == [("foreign", "A", "B", source, "repaired")]


@each_mode
@each_warm_hop
@each_binder
def test_a_value_that_finds_itself_raises_no_alert(
    on: Install, alerts: list[Mismatch], mode: str, hop: Hop, bound: Bound
) -> None:
    on(mode)
    with bound("A"):
        assert hop(lambda: KEY.set("A"), session) == "A"
    assert told(alerts) == []


# --- at an arrival: nothing → a value --------------------------------------------------------------------------------


@pytest.mark.parametrize("hop", INTO_POOLS)
@each_stale
def test_nothing_that_finds_a_value_in_a_context_variable_has_leaked_in_observe(
    on: Install, alerts: list[Mismatch], hop: Hop, stale: Callable[[], None], source: str
) -> None:
    on("observe")
    assert hop(stale, session) == "B"
    assert told(alerts) == [("leaked", None, "B", source, "observed")]


@replaying
@pytest.mark.parametrize("hop", INTO_POOLS)
@each_stale
def test_nothing_that_finds_a_value_in_a_context_variable_has_leaked_and_is_repaired(
    on: Install, alerts: list[Mismatch], mode: str, hop: Hop, stale: Callable[[], None], source: str
) -> None:
    on(mode)
    assert hop(stale, session) is None
    assert told(alerts) == [("leaked", None, "B", source, "repaired")]


@each_mode
@each_stale
def test_nothing_that_finds_a_value_in_a_callback_is_no_leak(
    on: Install, alerts: list[Mismatch], mode: str, stale: Callable[[], None], source: str
) -> None:
    on(mode)
    by_callback(stale, session)
    assert told(alerts) == []


@each_mode
@each_hop
def test_nothing_that_finds_an_ambient_value_is_nothing(
    on: Install, alerts: list[Mismatch], mode: str, hop: Hop, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(mode, {"env": ENV}, {"getter": f"{__name__}:whose_work_is_this", "empty": [""]})
    monkeypatch.setenv(ENV, "B")
    _fallback.append("C")
    assert hop(nothing, lambda: KEY.get(None)) is None
    assert told(alerts) == []


@each_mode
@each_hop
def test_nothing_that_finds_nothing_is_nothing(on: Install, alerts: list[Mismatch], mode: str, hop: Hop) -> None:
    on(mode)
    assert hop(nothing, session) is None
    assert told(alerts) == []


# --- at an arrival: shed → a source still says the old value ---------------------------------------------------------

SHED = {"policy": {"executor": "shed", "thread": "shed", "callback": "shed"}}


@replaying
@each_hop
@each_binder
def test_a_key_whose_policy_is_shed_arrives_without_it_and_without_an_alert(
    on: Install, alerts: list[Mismatch], mode: str, hop: Hop, bound: Bound
) -> None:
    on(mode, session=SHED)
    with bound("A"):
        assert hop(nothing, session) is None
    assert told(alerts) == []


@each_binder
def test_a_key_whose_policy_is_shed_is_not_lost_in_observe(on: Install, alerts: list[Mismatch], bound: Bound) -> None:
    on("observe", session=SHED)
    with bound("A"):
        by_submit(nothing, session)
    assert told(alerts) == []


@each_mode
@each_hop
def test_a_shed_key_that_the_environment_still_says_has_leaked(
    on: Install, alerts: list[Mismatch], mode: str, hop: Hop, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(mode, {"env": ENV}, session=SHED)
    monkeypatch.setenv(ENV, "A")
    with own_variable("A"):
        hop(nothing, session)
    assert told(alerts) == [("leaked", None, "A", f"env:{ENV}", "observed")]


@pytest.mark.parametrize(("wanted", "outcome"), [("mint", "minted"), ("shed", "shed"), ("inherit", "carried")])
def test_a_hop_is_counted_by_what_its_policy_has_done(on: Install, wanted: str, outcome: str) -> None:
    on("repair", session={"policy": {"executor": wanted}})
    before = metrics.hop_counts()
    with otelctx.bind(session="A"):
        by_submit(nothing, session)
    now = metrics.hop_counts()
    assert {name: number - before.get(name, 0) for name, number in now.items() if number != before.get(name, 0)} == {
        ("executor", outcome): 1,
        ("service", "cleared"): 1,
    }


# --- at an arrival: each key by itself, and what stands for the alert ------------------------------------------------


def test_each_key_is_compared_by_itself(install: Install, alerts: list[Mismatch]) -> None:
    install(
        mode="observe", keys={"session": {"sources": [{"contextvar": f"{__name__}:KEY"}]}, "tenant": {"sources": []}}
    )
    with own_variable("A"), otelctx.bind(tenant="acme"):
        by_submit(lambda: KEY.set("A"), session)
    assert [(alert.key, *told([alert])[0]) for alert in alerts] == [("tenant", *lost("acme"))]


def test_the_alert_of_an_arrival_is_an_event_on_the_hops_span(on: Install, spans: Any) -> None:
    on("observe")
    with trace.get_tracer("app").start_as_current_span("turn"), own_variable("A"):
        by_submit(left_in_variable, session)
    (hop,) = [span for span in spans.get_finished_spans() if span.name.startswith("executor ")]
    assert hop.attributes["otelctx.mismatch"] is True
    (event,) = hop.events
    assert event.name == "otelctx.mismatch"
    assert {name: event.attributes[name] for name in event.attributes if "mismatch" in name} == {
        "otelctx.mismatch.reason": "foreign",
        "otelctx.mismatch.expected": "A",
        "otelctx.mismatch.observed": "B",
        "otelctx.mismatch.source": VARIABLE,
        "otelctx.mismatch.action": "observed",
    }


# --- at the start of any span ----------------------------------------------------------------------------------------

unsampled = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)


def tracer(*, sampled: bool) -> trace.Tracer:
    return trace.get_tracer("app") if sampled else unsampled.get_tracer("app")


def unpatched(span: Span, prepare: Callable[[], object], work: Callable[[], object]) -> None:
    """A hop that nobody patched: another context, to which the author brought the span and nothing else."""

    def arrive() -> None:
        otel_context.attach(set_span_in_context(span))
        prepare()
        work()

    Context().run(arrive)


def set_b_unseen() -> None:
    KEY.set("B")


each_sampling = pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "unsampled"])


@each_mode
@each_sampling
@each_binder
def test_a_span_without_a_key_under_a_parent_that_had_one_is_lost_in_every_mode(
    on: Install, alerts: list[Mismatch], caplog: pytest.LogCaptureFixture, mode: str, sampled: bool, bound: Bound
) -> None:
    on(mode)
    counted = Counted()
    with bound("A"), tracer(sampled=sampled).start_as_current_span("turn") as turn:
        unpatched(turn, nothing, lambda: tracer(sampled=sampled).start_span("tool").end())
    assert told(alerts) == [lost("A")]
    assert counted.of("lost") == 1
    assert [(r.name, r.levelno) for r in caplog.records] == [("otelctx", logging.WARNING)]


@each_mode
@each_sampling
@each_binder
def test_a_span_with_another_key_than_its_parents_is_foreign_in_every_mode(
    on: Install, alerts: list[Mismatch], caplog: pytest.LogCaptureFixture, mode: str, sampled: bool, bound: Bound
) -> None:
    on(mode)
    counted = Counted()
    with bound("A"), tracer(sampled=sampled).start_as_current_span("turn") as turn:
        unpatched(turn, set_b_unseen, lambda: tracer(sampled=sampled).start_span("tool").end())
    assert told(alerts) == [("foreign", "A", "B", VARIABLE, "observed")]
    assert counted.of("foreign") == 1
    assert [(r.name, r.levelno) for r in caplog.records] == [("otelctx", logging.WARNING)]


def test_the_alert_is_on_the_span_that_showed_it(on: Install, spans: Any) -> None:
    on("repair")
    app = trace.get_tracer("app")
    with own_variable("A"), app.start_as_current_span("turn") as turn:
        unpatched(turn, nothing, lambda: app.start_span("tool").end())
    (tool,) = [span for span in spans.get_finished_spans() if span.attributes.get("otelctx.mismatch")]
    assert tool.name == "tool"
    assert [event.name for event in tool.events] == ["otelctx.mismatch"]


@each_mode
@each_sampling
@each_binder
def test_a_span_with_its_parents_key_raises_no_alert_however_it_came_there(
    on: Install, alerts: list[Mismatch], mode: str, sampled: bool, bound: Bound
) -> None:
    on(mode)
    with bound("A"), tracer(sampled=sampled).start_as_current_span("turn") as turn:
        unpatched(turn, lambda: KEY.set("A"), lambda: tracer(sampled=sampled).start_span("tool").end())
    assert told(alerts) == []


@each_mode
@each_sampling
@each_binder
def test_a_span_under_a_parent_without_a_key_raises_no_alert(
    on: Install, alerts: list[Mismatch], mode: str, sampled: bool, bound: Bound
) -> None:
    on(mode)
    with tracer(sampled=sampled).start_as_current_span("loop") as loop:
        unpatched(loop, lambda: KEY.set("B"), lambda: tracer(sampled=sampled).start_span("tool").end())
        with bound("C"):
            tracer(sampled=sampled).start_span("tool").end()
    assert told(alerts) == []


@each_mode
@pytest.mark.parametrize("remote", [True, False], ids=["remote", "unknown"])
def test_a_span_under_a_parent_of_another_process_or_an_unknown_one_raises_no_alert(
    on: Install, alerts: list[Mismatch], mode: str, remote: bool
) -> None:
    on(mode)
    with own_variable("A"), tracer(sampled=True).start_as_current_span("turn") as turn:
        known = turn.get_span_context()
    parent = NonRecordingSpan(SpanContext(known.trace_id, known.span_id, remote, TraceFlags(TraceFlags.SAMPLED)))
    unpatched(parent, nothing, lambda: tracer(sampled=True).start_span("tool").end())
    unpatched(parent, lambda: KEY.set("B"), lambda: tracer(sampled=True).start_span("tool").end())
    assert told(alerts) == []


@each_mode
@each_sampling
@each_binder
def test_a_root_span_raises_no_alert(
    on: Install, alerts: list[Mismatch], mode: str, sampled: bool, bound: Bound
) -> None:
    on(mode)
    with bound("A"), tracer(sampled=sampled).start_as_current_span("turn"):
        Context().run(lambda: tracer(sampled=sampled).start_span("housekeeping").end())
    assert told(alerts) == []


@each_mode
@each_sampling
@each_binder
def test_a_context_that_went_through_its_parents_flow_and_was_bound_anew_raises_no_alert(
    on: Install, alerts: list[Mismatch], mode: str, sampled: bool, bound: Bound
) -> None:
    on(mode)
    with bound("A"), tracer(sampled=sampled).start_as_current_span("turn"):
        for number in range(7):
            with bound(f"A.{number}"):
                tracer(sampled=sampled).start_span("tool").end()
        with own_variable(""):
            tracer(sampled=sampled).start_span("tool").end()
    assert told(alerts) == []


@each_mode
def test_an_environment_variable_does_not_stand_in_for_a_lost_key_at_a_spans_start(
    on: Install, alerts: list[Mismatch], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(mode, {"env": ENV})
    monkeypatch.setenv(ENV, "B")
    with own_variable("A"), tracer(sampled=True).start_as_current_span("turn") as turn:
        unpatched(turn, nothing, lambda: tracer(sampled=True).start_span("tool").end())
    assert told(alerts) == [lost("A")]


# --- one cause, one alert --------------------------------------------------------------------------------------------


@each_mode
@each_sampling
def test_many_spans_of_one_unpatched_arrival_are_one_alert(
    on: Install, alerts: list[Mismatch], mode: str, sampled: bool
) -> None:
    on(mode)
    counted = Counted()

    def work() -> None:
        for _ in range(3):
            with tracer(sampled=sampled).start_as_current_span("tool"):
                tracer(sampled=sampled).start_span("part of the tool").end()

    with own_variable("A"), tracer(sampled=sampled).start_as_current_span("turn") as turn:
        unpatched(turn, nothing, work)
    assert told(alerts) == [lost("A")]
    assert counted.of("lost") == 1


@each_mode
def test_one_unpatched_arrival_that_fans_out_into_tasks_is_one_alert(
    on: Install, alerts: list[Mismatch], mode: str
) -> None:
    on(mode)

    async def part() -> None:
        tracer(sampled=True).start_span("part").end()

    async def tool() -> None:
        await asyncio.gather(part(), part(), part())

    with own_variable("A"), tracer(sampled=True).start_as_current_span("turn") as turn:
        unpatched(turn, nothing, lambda: asyncio.run(tool()))
    assert told(alerts) == [lost("A")]


@each_mode
def test_two_unpatched_arrivals_are_two_alerts(on: Install, alerts: list[Mismatch], mode: str) -> None:
    on(mode)
    both_there = threading.Barrier(3)

    def work(span: Span) -> None:
        otel_context.attach(set_span_in_context(span))
        tracer(sampled=True).start_span("tool").end()
        both_there.wait(10)

    with own_variable("A"), tracer(sampled=True).start_as_current_span("turn") as turn:
        for _ in range(2):
            _thread.start_new_thread(work, (turn,))
        both_there.wait(10)
    assert told(alerts) == [lost("A"), lost("A")]


@each_mode
def test_one_unpatched_arrival_that_shows_two_values_is_two_alerts(
    on: Install, alerts: list[Mismatch], mode: str
) -> None:
    on(mode)

    def work() -> None:
        tracer(sampled=True).start_span("tool").end()
        KEY.set("B")
        tracer(sampled=True).start_span("tool").end()

    with own_variable("A"), tracer(sampled=True).start_as_current_span("turn") as turn:
        unpatched(turn, nothing, work)
    assert told(alerts) == [lost("A"), ("foreign", "A", "B", VARIABLE, "observed")]


@each_stale
@pytest.mark.parametrize("hop", INTO_POOLS)
def test_spans_in_work_whose_arrival_was_stated_state_it_no_more(
    on: Install, alerts: list[Mismatch], hop: Hop, stale: Callable[[], None], source: str
) -> None:
    on("observe")

    def work() -> str | None:
        with trace.use_span(turn), tracer(sampled=True).start_as_current_span("tool"):
            tracer(sampled=True).start_span("part").end()
        return None

    with own_variable("A"), tracer(sampled=True).start_as_current_span("turn", end_on_exit=False) as turn:
        hop(stale, work)
    turn.end()
    assert told(alerts) == [("foreign", "A", "B", source, "observed")]


def test_a_thread_that_nobody_patches_shows_at_its_first_span(on: Install, alerts: list[Mismatch]) -> None:
    on("repair")
    done = threading.Event()

    def work(span: Span) -> None:
        otel_context.attach(set_span_in_context(span))
        tracer(sampled=True).start_span("tool").end()
        done.set()

    with own_variable("A"), tracer(sampled=True).start_as_current_span("turn") as turn:
        _thread.start_new_thread(work, (turn,))
        assert done.wait(10)
    assert told(alerts) == [lost("A")]


def test_alerts_beyond_the_limit_are_held_back_and_counted(on: Install, alerts: list[Mismatch]) -> None:
    on("repair", alerts={"per_minute": 2})
    counted = Counted()
    with ThreadPoolExecutor(1, initializer=left_in_variable) as pool, own_variable("A"):
        for _ in range(5):
            pool.submit(session).result()
    assert told(alerts) == [("foreign", "A", "B", VARIABLE, "repaired")] * 2
    assert counted.of("foreign") == 5
