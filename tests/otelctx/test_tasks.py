"""What a task's message carries, and how its run arrives: whatever the worker held, whatever somebody made of it."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind

import otelctx
from otelctx import Claim, metrics, policy, tasks
from tests.conftest import set_to

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from otelctx import Mismatch
    from tests.conftest import Install

KEY: ContextVar[Any] = ContextVar(f"{__name__}:KEY")
TENANT: ContextVar[Any] = ContextVar(f"{__name__}:TENANT")
KEYS: dict[str, dict[str, Any]] = {
    "session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}]},
    "tenant": {"sources": [{"contextvar": f"{__name__}:TENANT"}]},
}

tracer = trace.get_tracer(__name__)


@pytest.fixture(autouse=True)
def _on(install: Install) -> None:
    install(keys=KEYS)


def _elsewhere(fn: Callable[..., Any], *args: Any) -> Any:
    """Call `fn` in a thread in which nobody has set anything."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(_in_empty(fn, *args)))
    thread.start()
    thread.join()
    return result[0]


def _in_empty(fn: Callable[..., Any], *args: Any) -> Any:
    from contextvars import Context

    return Context().run(fn, *args)


def _sees() -> tuple[Any, ...]:
    return otelctx.get("session"), KEY.get("absent"), otelctx.claim_state()


def _run(carrier: object, fn: Callable[..., Any] = _sees, **about: Any) -> Any:
    return tasks.arrival(carrier, **{"runner": "r", "job": "mail", **about}).run(fn)


def _by_two_calls(carrier: object, fn: Callable[..., Any] = _sees, **about: Any) -> Any:
    block = tasks.arrival(carrier, **{"runner": "r", "job": "mail", **about})
    block.__enter__()
    try:
        return fn()
    finally:
        block.__exit__(None, None, None)


both_ways = pytest.mark.parametrize("run", [_run, _by_two_calls], ids=["function", "two calls"])


@both_ways
def test_a_message_arrives_as_it_departed_whatever_the_worker_holds(run: Any) -> None:
    def send() -> tuple[str, str]:
        with otelctx.bind(session="A"):
            bound = tasks.depart()
        KEY.set("A")
        return bound, tasks.depart()

    bound, set_by_the_application = _elsewhere(send)
    with set_to(KEY, "B"), otelctx.bind(session="B"):
        assert run(bound)[0] == "A"
        assert run(set_by_the_application) == ("A", "A", "shed")
        assert _sees()[:2] == ("B", "B")


def test_a_variable_that_was_absent_at_departure_is_absent_in_the_run() -> None:
    with otelctx.bind(session="A"):
        carrier = tasks.depart()
    with set_to(KEY, "stale"):
        assert _run(carrier)[:2] == ("A", "absent")


@both_ways
@pytest.mark.parametrize("value", ["A", 7, UUID(int=3)])
def test_a_variable_of_a_module_that_the_task_imports_by_itself_is_as_it_departed(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any, value: object
) -> None:
    late = f"late_{uuid4().hex}"
    (tmp_path / f"{late}.py").write_text("from contextvars import ContextVar\nKEY = ContextVar('KEY')\n")
    monkeypatch.syspath_prepend(tmp_path)
    keys = {"session": {"sources": [{"contextvar": f"{late}:KEY"}]}}

    def sees() -> tuple[object, object]:
        return importlib.import_module(late).KEY.get("absent"), otelctx.get("session")

    install(keys=keys)
    with set_to(importlib.import_module(late).KEY, value):
        carrier = tasks.depart()
    otelctx.uninstall()
    del sys.modules[late]  # the worker's process has not imported it
    install(keys=keys)
    with set_to(TENANT, "the worker's"):
        assert run(carrier, sees) == (value, str(value))
        assert sees() == ("absent", None)
    del sys.modules[late]


@pytest.mark.parametrize("value", ["", None, 0, 7, "7", UUID(int=3), "a b\n\0%,;=é€😀", "x" * 1024])
def test_an_applications_variable_has_its_own_value_and_type_in_the_run(value: object) -> None:
    with set_to(KEY, value), set_to(TENANT, "t"):
        carrier = tasks.depart()
    seen = _elsewhere(_run, carrier, lambda: (KEY.get("absent"), TENANT.get("absent"), otelctx.get("session")))
    key = None if value in ("", None) else str(value)
    if key is None:
        assert seen[:2] == ("", "t")
        assert seen[2].startswith("task:r:mail:")
    else:
        assert seen == (value, "t", key)
        assert type(seen[0]) is type(value)


@both_ways
def test_a_message_without_a_key_is_minted_and_is_never_the_workers(run: Any) -> None:
    nothing = _elsewhere(tasks.depart)
    with set_to(KEY, "worker"), otelctx.bind(session="worker"):
        seen = [run(carrier) for carrier in (nothing, None, "")]
    for key, variable, claim in seen:
        assert key.startswith("task:r:mail:")
        assert (variable, claim) == ("", "shed")
    assert len({key for key, _, _ in seen}) == 3


def test_the_key_that_a_message_got_is_the_same_for_each_of_its_attempts() -> None:
    one, other = _elsewhere(tasks.depart), _elsewhere(tasks.depart)
    first, again, of_another = _run(one)[0], _run(one, attempt=2)[0], _run(other)[0]
    assert first == again != of_another


def test_a_retry_that_is_sent_from_within_the_run_keeps_the_messages_key() -> None:
    with otelctx.bind(session="A"):
        carrier = tasks.depart()
    again = _run(carrier, lambda: tasks.depart(policy.RETRY))
    unbound = _run(None, lambda: (otelctx.get("session"), tasks.depart(policy.RETRY)))
    with otelctx.bind(session="B"):
        assert _run(again, attempt=2)[0] == "A"
        assert _run(unbound[1], attempt=2)[:2] == (unbound[0], "")


@both_ways
def test_what_a_run_leaves_behind_is_gone_for_the_next(run: Any) -> None:
    def leave() -> None:
        KEY.set("left")
        otelctx.attach(session="left")

    with ThreadPoolExecutor(1) as worker:
        worker.submit(run, None, leave).result()
        with otelctx.bind(session="A"):
            carrier = tasks.depart()
        assert worker.submit(run, carrier).result()[0] == "A"
        worker.submit(run, carrier, leave).result()
        key, variable, _ = worker.submit(run, None).result()
        assert key.startswith("task:")
        assert variable in ("", "absent")


@pytest.mark.parametrize("before", ["absent", "", "other"])
def test_what_a_run_by_two_calls_leaves_in_a_variable_does_not_stay_there(before: str) -> None:
    def worker() -> Any:
        if before != "absent":
            KEY.set(before)
        _by_two_calls(None, lambda: KEY.set("left"))
        return KEY.get("absent")

    assert _elsewhere(worker) == before


def test_what_a_run_by_two_calls_leaves_in_a_variable_that_was_to_be_absent_is_cleared() -> None:
    with otelctx.bind(session="A"):
        carrier = tasks.depart()

    def worker() -> Any:
        _by_two_calls(carrier, lambda: KEY.set("left"))
        return KEY.get("absent"), otelctx.get("session")

    assert _elsewhere(worker) == ("", None)


@both_ways
def test_a_claim_is_granted_from_the_message_for_each_attempt_and_only_there(run: Any) -> None:
    with otelctx.grant_claim(Claim("t1", "me", token="secret")):
        carrier = tasks.depart()
        plain = tasks.depart(policy.CRON, runner="beat", job="mail")
        assert "secret" not in carrier
        assert run(None)[2] == "shed"
    assert run(carrier)[2] == "held"
    assert run(plain)[2] == "shed"

    def within() -> Claim | None:
        return otelctx.current_claim()

    first, second = run(carrier, within), run(carrier, within, attempt=2)
    assert (first.task_id, first.holder, first.token, first.attempt, second.attempt) == ("t1", "me", None, "1", "2")
    assert otelctx.claim_state() == "none"


def test_where_a_runner_does_not_count_the_attempts_of_a_message_its_carrier_does() -> None:
    with otelctx.grant_claim(Claim("t1")):
        first = tasks.depart()

    def again() -> str:
        return tasks.depart(policy.RETRY, attempt=2)

    arriving = tasks.arrival(_run(first, again), runner="r", job="mail")
    assert (arriving.attempt, policy.NAMES[arriving.departure.kind]) == (2, "retry")
    assert arriving.run(lambda: getattr(otelctx.current_claim(), "attempt", None)) == "2"
    assert tasks.arrival(first, runner="r", job="mail", attempt=3).attempt == 3


def test_a_ticks_message_is_minted_when_it_is_sent_and_keeps_its_key() -> None:
    with otelctx.bind(session="A"), set_to(KEY, "A"):
        ticks = [tasks.depart(policy.CRON, runner="beat", job="nightly") for _ in range(2)]
        assert otelctx.get("session") == "A"
    runs = [_run(tick, job="nightly", attempt=attempt) for tick in ticks for attempt in (1, 2)]
    assert [variable for _, variable, _ in runs] == [""] * 4
    first, again, second, _ = (key for key, _, _ in runs)
    assert first == again != second
    assert first.startswith("cron:beat:nightly:")


def test_a_run_that_the_runner_calls_recurring_is_minted_whatever_its_message_says() -> None:
    with otelctx.bind(session="A"):
        carrier = tasks.depart()
        key, variable, claim = _run(carrier, is_cron=True, job="nightly")
    assert key.startswith("cron:r:nightly:")
    assert (variable, claim) == ("", "shed")


def test_a_schedules_message_is_minted_for_each_of_its_runs_unless_it_departed_for_a_single_one() -> None:
    with otelctx.bind(session="A"), set_to(KEY, "A"):
        recurring = tasks.depart(policy.CRON, message="s", runner="r", job="nightly")
        once = tasks.depart(policy.DEFERRED, message="s")
    for carrier in (recurring, None, "nonsense"):
        runs = [_run(carrier, is_schedule=True, message="s", job="nightly") for _ in range(2)]
        assert [(variable, claim) for _, variable, claim in runs] == [("", "shed")] * 2
        assert len({key for key, _, _ in runs}) == 2
        assert all(key.startswith("cron:r:nightly:") for key, _, _ in runs)
    assert _run(once, is_schedule=True, message="s", job="nightly") == ("A", "A", "shed")


def test_a_task_has_a_consumer_span_under_whoever_sent_it(spans: InMemorySpanExporter) -> None:
    with tracer.start_as_current_span("send") as sent, otelctx.bind(session="A"):
        carrier = tasks.depart()

    def work() -> None:
        with tracer.start_as_current_span("work"):
            pass

    _elsewhere(_run, carrier, work)
    _elsewhere(_by_two_calls, carrier, work)
    _elsewhere(_run, None, work)
    found = [span for span in spans.get_finished_spans() if span.name == "task mail"]
    assert [span.kind for span in found] == [SpanKind.CONSUMER] * 3
    assert [span.parent and span.parent.span_id for span in found] == [sent.get_span_context().span_id] * 2 + [None]
    assert all(span.attributes and "otelctx.hop.wait" in span.attributes for span in found)
    inner = [span.parent and span.parent.span_id for span in spans.get_finished_spans() if span.name == "work"]
    assert inner == [span.context.span_id for span in found]


def test_a_ticks_run_has_a_root_span_with_a_link_to_the_tick(spans: InMemorySpanExporter) -> None:
    with tracer.start_as_current_span("tick") as tick:
        carrier = tasks.depart(policy.CRON, runner="beat", job="nightly")
    _elsewhere(lambda: _run(carrier, job="nightly"))
    (run,) = (span for span in spans.get_finished_spans() if span.name == "cron nightly")
    assert run.parent is None
    assert [link.context.span_id for link in run.links] == [tick.get_span_context().span_id]
    assert run.context.trace_id != tick.get_span_context().trace_id


def test_a_job_whose_name_is_no_text_has_a_span_that_can_be_exported(spans: InMemorySpanExporter) -> None:
    for job, carrier in (("a\ud800", None), ("b", tasks.depart(policy.CRON, runner="r", job="a\ud800"))):
        spans.clear()
        with tracer.start_as_current_span("worker"):
            _run(carrier, job=job)
        names = [span.name for span in spans.get_finished_spans()]
        assert [name for name in names if name != "worker"] == [f"{'cron' if carrier else 'task'} a\\ud800"]
        texts = [text for span in spans.get_finished_spans() for text in (span.name, *(span.attributes or {}).values())]
        assert json.dumps(texts, ensure_ascii=False).encode()


def test_a_run_is_under_the_span_that_the_runners_own_instrumentation_has_for_it(spans: InMemorySpanExporter) -> None:
    with tracer.start_as_current_span("send") as sent:
        carrier = tasks.depart()
    with tracer.start_as_current_span("stale"), tracer.start_as_current_span("run", kind=SpanKind.CONSUMER) as theirs:
        _run(None)
    with otel_context_of(sent), tracer.start_as_current_span("run"):
        _run(carrier)
    with tracer.start_as_current_span("stale"):
        _run(carrier)
    found = {span.context.span_id: span.name for span in spans.get_finished_spans()}
    parents = [span.parent for span in spans.get_finished_spans() if span.name == "task mail"]
    assert parents[0] is not None
    assert parents[0].span_id == theirs.get_span_context().span_id
    assert [found[parent.span_id] for parent in parents if parent is not None] == ["run", "run", "send"]


def otel_context_of(span: trace.Span) -> Any:
    return trace.use_span(span)


def test_the_wait_is_the_time_since_the_message_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[tuple[str, float]] = []
    monkeypatch.setattr(metrics, "record_wait", lambda kind, seconds, context: recorded.append((kind, seconds)))
    said = json.loads(tasks.depart().split(".", 2)[2])

    def sent(seconds_ago: float) -> str:
        return "1.." + json.dumps({**said, "t": said["t"] - seconds_ago})

    for mode in ("auto", "never"):
        otelctx.install({}, keys=KEYS, spans=mode)
        _run(sent(100))
        _run(sent(-100))  # a clock that is ahead
        _run(sent(50), is_cron=True)
        _run(sent(70), attempt=2)
    assert [kind for kind, _ in recorded] == ["task", "task", "cron", "retry"] * 2
    for (_, seconds), expected in zip(recorded, [100, 0, 50, 70] * 2, strict=True):
        assert expected <= seconds < expected + 30


def _mended(text: str, **changes: Any) -> str:
    version, signature, said = text.split(".", 2)
    return f"{version}.{signature}.{json.dumps({**json.loads(said), **changes})}"


BROKEN: dict[str, Callable[[str], object]] = {
    "cut short": lambda text: text[:-1],
    "its half": lambda text: text[: len(text) // 2],
    "too long": lambda text: text + " " * tasks.LIMIT,
    "of another version": lambda text: "2" + text[1:],
    "of no version": lambda text: text.partition(".")[2],
    "words": lambda text: "hello",
    "bytes": lambda text: text.encode(),
    "a number": lambda text: 5,
    "a mapping": lambda text: {"session": "B"},
    "a list for a mapping": lambda text: "1..[]",
    "deep": lambda text: "1.." + "[" * 8000,
    "without a time": lambda text: _mended(text, t=None),
    "at no time": lambda text: _mended(text, t=float("nan")),
    "with a number for a key": lambda text: _mended(text, keys={"session": {"v": 3}}),
    "with a key that is too long": lambda text: _mended(text, keys={"session": {"v": "x" * 1025}}),
    "with an object for a variable": lambda text: _mended(text, keys={"session": {"v": "B", "r": {"a:b": [1]}}}),
    "with a claim without a task": lambda text: _mended(text, claim={"holder": "me"}),
    "with half a parent": lambda text: _mended(text, parent="00-1-2-3"),
    "as no attempt": lambda text: _mended(text, **{"try": 0}),
    "as a word's attempt": lambda text: _mended(text, **{"try": "2"}),
    "as an attempt that is none": lambda text: _mended(text, **{"try": True}),
    "as too many attempts": lambda text: _mended(text, **{"try": 10**6}),
    "with an empty key": lambda text: _mended(text, keys={"session": {"v": ""}}),
    "with an empty claim": lambda text: _mended(text, claim={"task_id": ""}),
    "with a number that is too large": lambda text: _mended(text, keys={"session": {"v": "B", "r": {"a:b": 1 << 999}}}),
    "with a nonce of other characters": lambda text: _mended(text, n="other:job:1\n"),
    "without a nonce": lambda text: _mended(text, n=""),
    "with a list of keys": lambda text: _mended(text, keys=["session"]),
}


@both_ways
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_carrier_is_dropped_with_one_alert_and_the_work_runs(
    run: Any, broken: str, alerts: list[Mismatch]
) -> None:
    with otelctx.bind(session="A"), otelctx.grant_claim(Claim("t")):
        carrier = BROKEN[broken](tasks.depart())
    errors = metrics.error_counts()
    key, variable, claim = _elsewhere(run, carrier)
    assert key.startswith("task:r:mail:")
    assert (variable, claim) == ("", "shed")
    assert [(alert.reason, alert.action, alert.hop_kind) for alert in alerts] == [("forged", "dropped", "task")]
    assert metrics.error_counts() == errors


def test_a_message_that_departs_with_an_empty_key_or_claim_is_one_without(alerts: list[Mismatch]) -> None:
    with otelctx.bind(session=""), otelctx.grant_claim(Claim("")):
        key, _, claim = _elsewhere(_run, tasks.depart())
    assert (key.startswith("task:r:mail:"), claim) == (True, "shed")
    assert alerts == []


def test_a_number_that_is_too_large_for_a_carrier_arrives_as_its_text() -> None:
    with set_to(KEY, 1 << 999):
        carrier = tasks.depart()
    assert _elsewhere(_run, carrier, KEY.get) == str(1 << 999)


def test_an_attempt_has_any_number_and_the_work_runs() -> None:
    with otelctx.bind(session="A"), otelctx.grant_claim(Claim("t")):
        carriers = tasks.depart(), tasks.depart(policy.RETRY, attempt=10**5000)
    for carrier in carriers:
        arriving = tasks.arrival(carrier, runner="r", job="mail", attempt=10**5000)
        assert arriving.run(lambda: (otelctx.get("session"), otelctx.claim_state())) == ("A", "held")


def test_a_carrier_is_printable_ascii_without_blanks_and_bounded(alerts: list[Mismatch]) -> None:
    for value in ("a b\tc\n", "é€😀\udc80", "\0\x7f", '"\\', "x" * 1024):
        with set_to(KEY, value):
            carrier = tasks.depart()
        assert _run(carrier)[:2] == (value, value)
        assert carrier.isascii()
        assert carrier.isprintable()
        assert " " not in carrier
        assert len(carrier) <= tasks.LIMIT
    assert not alerts


def test_what_is_too_long_for_a_message_stays_out_and_the_rest_travels(install: Install) -> None:
    names = [f"k{number}" for number in range(12)]
    otelctx.uninstall()
    install(keys={**KEYS, **{name: {} for name in names}})
    with (
        otelctx.bind(**dict.fromkeys(names, "x" * 1024)),
        otelctx.grant_claim(Claim("t" * 2000)),
        set_to(KEY, "y" * 2000),
        set_to(TENANT, "t"),
    ):
        carrier = tasks.depart()
    assert len(carrier) <= tasks.LIMIT

    def seen() -> list[str | None]:
        return [otelctx.get(name) for name in ("session", "tenant", *names)]

    session, tenant, *others = _elsewhere(_run, carrier, seen)
    assert session.startswith("task:")
    assert tenant == "t"
    assert others.count("x" * 1024) == 7
    assert otelctx.claim_state() == "none"


def test_observe_reports_what_a_run_sees_and_changes_nothing(install: Install, alerts: list[Mismatch]) -> None:
    otelctx.uninstall()
    install(keys=KEYS, mode="observe")

    def send() -> str:
        KEY.set("A")
        return tasks.depart()

    carrier = _elsewhere(send)
    assert _elsewhere(_run, carrier) == (None, "absent", "none")
    with set_to(KEY, "B"):
        assert _run(carrier) == ("B", "B", "none")
        assert _by_two_calls(carrier) == ("B", "B", "none")
        assert _run(None) == ("B", "B", "none")
    assert [(alert.key, alert.reason, alert.expected, alert.observed) for alert in alerts][:3] == [
        ("session", "lost", "A", None),
        ("session", "foreign", "A", "B"),
        ("session", "foreign", "A", "B"),
    ]
    (leaked,) = (alert for alert in alerts if alert.reason == "leaked")
    assert (leaked.observed, leaked.action) == ("B", "observed")


def test_enforce_refuses_a_run_whose_other_source_says_somebody_else(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    otelctx.uninstall()
    source = {"env": "APP_SESSION"}
    install(keys={"session": {"sources": [*KEYS["session"]["sources"], source]}}, mode="enforce")
    with otelctx.bind(session="A"):
        carrier = tasks.depart()
    assert _run(carrier)[0] == "A"
    monkeypatch.setenv("APP_SESSION", "B")
    with pytest.raises(otelctx.MismatchError):
        _run(carrier)


def test_a_policy_of_the_operators_counts_at_a_task_hop(install: Install) -> None:
    for wanted, expected in (("shed", None), ("mint", "task:"), ("inherit", "A")):
        otelctx.uninstall()
        install(keys={"session": {**KEYS["session"], "policy": {"task": wanted}}})
        with otelctx.bind(session="A"):
            carrier = tasks.depart()
        key = _run(carrier)[0]
        assert key is None if expected is None else key.startswith(expected)


def test_work_that_a_run_hands_on_goes_on_as_the_run() -> None:
    with otelctx.bind(session="A"), otelctx.grant_claim(Claim("t")):
        carrier = tasks.depart()

    def hand_on() -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(_sees).result()

    assert _elsewhere(_run, carrier, hand_on) == ("A", "absent", "held")
    key, _, claim = _elsewhere(_run, None, hand_on)
    assert key.startswith("task:")
    assert claim == "shed"


def test_a_sender_and_a_worker_that_declare_other_keys_agree_on_those_that_both_have(install: Install) -> None:
    otelctx.uninstall()
    install(keys={"session": {}, "colour": {}})
    with otelctx.bind(session="A", colour="red"):
        carrier = tasks.depart()
    otelctx.uninstall()
    install(keys=KEYS)
    assert _run(carrier)[0] == "A"


def test_undeclared_variables_are_the_workers_own() -> None:
    other: ContextVar[str] = ContextVar("other")
    with ThreadPoolExecutor(1) as worker:
        worker.submit(lambda: _run(None, lambda: other.set("kept"))).result()
        assert worker.submit(lambda: _run(None, lambda: other.get("gone"))).result() == "kept"


def test_a_run_that_raises_leaves_the_context_as_it_was(alerts: list[Mismatch]) -> None:
    otel = otel_context.get_current()
    with otelctx.bind(session="A"):
        carrier = tasks.depart()
    for run in (_run, _by_two_calls):
        with pytest.raises(ZeroDivisionError):
            run(carrier, lambda: 1 / 0)
    assert otel_context.get_current() is otel
    assert otelctx.get("session") is None
    assert not alerts


SECRET = "a secret of more than sixteen bytes"


def _forged(alerts: list[Mismatch]) -> int:
    assert {alert.reason for alert in alerts} <= {"forged"}
    return len(alerts)


def test_with_a_secret_only_what_is_signed_for_this_message_is_believed(
    monkeypatch: pytest.MonkeyPatch, alerts: list[Mismatch]
) -> None:
    with otelctx.bind(session="A"):
        unsigned = tasks.depart(message="m1")
        monkeypatch.setenv("OTELCTX_SECRET", "another secret that nobody here knows")
        by_a_stranger = tasks.depart(message="m1")
        monkeypatch.setenv("OTELCTX_SECRET", SECRET)
        carrier = tasks.depart(message="m1")
    assert _run(carrier, message="m1")[0] == "A"
    assert not alerts
    version, signature, said = carrier.split(".", 2)
    changed = ".".join((version, signature, said.replace('"A"', '"B"')))
    for number, dropped in enumerate((unsigned, by_a_stranger, changed, carrier[:-1]), 1):
        assert _run(dropped, message="m1")[0].startswith("task:")
        assert _forged(alerts) == number
    assert _run(carrier, message="m2")[0].startswith("task:")
    assert _forged(alerts) == 5


def test_with_a_secret_a_message_of_a_sender_without_otelctx_is_minted_without_an_alert(
    monkeypatch: pytest.MonkeyPatch, alerts: list[Mismatch]
) -> None:
    monkeypatch.setenv("OTELCTX_SECRET", SECRET)
    assert _run(None)[0].startswith("task:")
    assert not alerts


def test_while_a_secret_is_being_rotated_either_one_proves_a_message(
    monkeypatch: pytest.MonkeyPatch, alerts: list[Mismatch]
) -> None:
    monkeypatch.setenv("OTELCTX_SECRET", SECRET)
    with otelctx.bind(session="A"):
        carrier = tasks.depart()
    monkeypatch.setenv("OTELCTX_SECRET", f"the next secret of the same length,{SECRET}")
    assert _run(carrier)[0] == "A"
    assert not alerts


def test_a_secret_that_cannot_be_used_lets_nothing_pass(
    monkeypatch: pytest.MonkeyPatch, alerts: list[Mismatch]
) -> None:
    with otelctx.bind(session="A"):
        unsigned = tasks.depart()
        monkeypatch.setenv("OTELCTX_SECRET", "short")
        assert tasks.depart() == ""
    assert _run(unsigned)[0].startswith("task:")
    assert _forged(alerts) == 1
