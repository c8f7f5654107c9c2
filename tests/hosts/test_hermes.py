"""hermes-agent 0.19.0, its code untouched: whose approval card is it that a sub-agent's `rm -rf` raises?

`hermes_gateway.py` describes the process. Each mode runs it once, in a process of its own, and every test reads that
report.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypedDict

import pytest

Mode = Literal["plain", "observe", "repair", "enforce"]
MODES: tuple[Mode, ...] = ("plain", "observe", "repair", "enforce")
WORKING: tuple[Mode, ...] = ("plain", "observe", "repair")  # in which all of the host's work is done
A, B = "agent:main:webui:A", "agent:main:webui:B"
RUN_TIMEOUT = 200.0  # seconds; a run takes about six

# The first test may have to install the host.
pytestmark = [pytest.mark.hosts, pytest.mark.timeout(900)]


class Sighting(TypedDict):
    session: str
    approval_contextvar: str
    gateway_contextvar: str | None
    environment: str | None
    undeclared: str | None
    thread: int


class Card(Sighting):
    shown_to: str
    command: str


class Event(TypedDict):
    name: str
    attributes: dict[str, object]


class Span(TypedDict):
    name: str
    trace: int
    id: int
    parent: int | None
    status: str
    attributes: dict[str, object]
    events: list[Event]


class Record(TypedDict):
    level: str
    message: str
    attributes: dict[str, object]


class Result(TypedDict):
    status: str | list[str]
    caller: int
    sightings: list[Sighting]


class Turn(TypedDict):
    result: Result
    cards: list[Card]
    log: list[Record]
    spans: list[Span]
    environment: tuple[str | None, str | None]


class Report(TypedDict):
    otelctx: bool
    turns: dict[str, Turn]  # "child", "other" and "agents"


Hermes = Callable[[Mode], Report]


@pytest.fixture(scope="session")
def hermes(hermes_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Hermes:
    """Run the process in a mode, once, and give its report."""

    @functools.cache
    def run(mode: Mode) -> Report:
        folder = tmp_path_factory.mktemp(f"hermes-{mode}")
        home = folder / "home"
        home.mkdir()
        inherited = ("OTELCTX_", "OTEL_", "HERMES_", "PYTHON")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
        environ |= {"HOME": str(home), "HERMES_HOME": str(home)}
        # Nothing but this machine answers: the host looks for model lists and for updates.
        environ |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
        environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        if mode != "plain":
            environ |= {"OTELCTX_ENABLED": "true", "OTELCTX_PRESETS": "hermes", "OTELCTX_MODE": mode}
        done = subprocess.run(
            [str(hermes_python), str(Path(__file__).with_name("hermes_gateway.py")), str(folder / "report.json")],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        report: Report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return report

    return run


def mismatches(turn: Turn) -> list[dict[str, object]]:
    return [
        event["attributes"] for span in turn["spans"] for event in span["events"] if event["name"] == "otelctx.mismatch"
    ]


def ours(attributes: Mapping[str, object]) -> list[tuple[str, str]]:
    """The alert's own attributes; in a log record, a name has underscores where it has dots elsewhere."""
    return sorted(
        (name.replace(".", "_"), str(value)) for name, value in attributes.items() if name.startswith("otelctx")
    )


def span_named(turn: Turn, name: str) -> Span:
    (span,) = [span for span in turn["spans"] if span["name"] == name]
    return span


def told(sighting: Sighting) -> tuple[str, str, str | None, str | None]:
    """All that a sub-agent can know of its session."""
    return (
        sighting["session"],
        sighting["approval_contextvar"],
        sighting["gateway_contextvar"],
        sighting["environment"],
    )


def test_without_otelctx_a_sub_agent_takes_the_other_session_for_its_own(hermes: Hermes) -> None:
    report = hermes("plain")
    assert not report["otelctx"]
    turn = report["turns"]["child"]
    assert [told(sighting) for sighting in turn["result"]["sightings"]] == [(B, "", None, B)]
    assert [card["shown_to"] for card in turn["cards"]] == [B]


def test_without_otelctx_the_cards_of_a_real_batch_are_shown_to_the_other_session(hermes: Hermes) -> None:
    assert [card["shown_to"] for card in hermes("plain")["turns"]["agents"]["cards"]] == [B, B]


@pytest.mark.parametrize("mode", WORKING)
def test_the_host_does_its_work_in_pool_workers_and_to_the_end(hermes: Hermes, mode: Mode) -> None:
    turns = hermes(mode)["turns"]
    assert {name: turn["result"]["status"] for name, turn in turns.items()} == {
        "child": "completed",
        "agents": ["completed", "completed"],
        "other": "completed",
    }
    for turn in turns.values():
        assert turn["cards"]
        assert turn["result"]["caller"] not in {card["thread"] for card in turn["cards"]}
        assert {card["command"] for card in turn["cards"]} == {"rm -rf build"}


def test_observe_leaves_a_sub_agent_what_it_sees_without_otelctx(hermes: Hermes) -> None:
    plain, observe = hermes("plain")["turns"], hermes("observe")["turns"]
    for name, turn in observe.items():
        assert [told(card) for card in turn["cards"]] == [told(card) for card in plain[name]["cards"]]
        assert [card["shown_to"] for card in turn["cards"]] == [card["shown_to"] for card in plain[name]["cards"]]


def test_observe_alerts_in_the_trace_that_the_pool_took_a_foreign_session_from_the_environment(hermes: Hermes) -> None:
    turn = hermes("observe")["turns"]["child"]
    alerts = mismatches(turn)
    # The pool's, and one of the heartbeat thread that watches the child.
    assert Counter(alert["otelctx.hop.kind"] for alert in alerts) == {"executor": 1, "thread": 1}
    for alert in alerts:
        assert_is_foreign(alert)
        assert str(alert["code.function.name"]).endswith("_run_single_child")
        assert str(alert["code.file.path"]).endswith("delegate_tool.py")

    showing = [span for span in turn["spans"] if span["attributes"].get("otelctx.mismatch")]
    assert len(showing) == len(alerts)
    assert {span["trace"] for span in showing} == {span_named(turn, "turn")["trace"]}
    assert {span["status"] for span in showing} == {"ERROR"}


def test_observe_alerts_once_for_each_real_agent_of_a_batch(hermes: Hermes) -> None:
    alerts = mismatches(hermes("observe")["turns"]["agents"])
    for alert in alerts:
        if alert["otelctx.hop.kind"] in ("executor", "thread"):
            assert_is_foreign(alert)
    pool = [alert for alert in alerts if str(alert["code.function.name"]).endswith("_execute_and_aggregate")]
    assert [alert["otelctx.hop.kind"] for alert in pool] == ["executor", "executor"]


def test_observe_logs_one_warning_for_each_alert_that_says_the_same(hermes: Hermes) -> None:
    turn = hermes("observe")["turns"]["child"]
    assert [record["level"] for record in turn["log"]] == ["WARNING", "WARNING"]
    logged = [ours(record["attributes"]) for record in turn["log"]]
    assert sorted(logged) == sorted(ours(alert) for alert in mismatches(turn))
    for record in turn["log"]:
        for told_in_words in ("session", A, B, "env:HERMES_SESSION_KEY"):
            assert told_in_words in record["message"]


def test_repair_lets_a_sub_agent_work_for_the_session_that_delegated_to_it(hermes: Hermes) -> None:
    turn = hermes("repair")["turns"]["child"]
    assert [told(sighting) for sighting in turn["result"]["sightings"]] == [(A, A, A, B)]
    assert [card["shown_to"] for card in turn["cards"]] == [A]


def test_repair_shows_the_cards_of_a_real_batch_to_the_session_that_delegated(hermes: Hermes) -> None:
    cards = hermes("repair")["turns"]["agents"]["cards"]
    assert [card["shown_to"] for card in cards] == [A, A]
    assert [told(card) for card in cards] == [(A, A, A, B), (A, A, A, B)]


def test_repair_raises_no_alert_for_what_it_carried(hermes: Hermes) -> None:
    for turn in hermes("repair")["turns"].values():
        assert (mismatches(turn), turn["log"]) == ([], [])


def test_repair_puts_a_sub_agents_spans_into_the_turns_trace_and_labels_them_with_its_session(hermes: Hermes) -> None:
    turn = hermes("repair")["turns"]["child"]
    assert span_named(turn, "sub-agent")["trace"] == span_named(turn, "turn")["trace"]
    assert {span["attributes"].get("session.id") for span in turn["spans"]} == {A}


def test_enforce_runs_no_sub_agent_where_the_mirror_still_says_the_other_session(hermes: Hermes) -> None:
    turns = hermes("enforce")["turns"]
    assert (turns["child"]["result"]["status"], turns["agents"]["result"]["status"]) == ("error", ["error", "error"])
    for turn in (turns["child"], turns["agents"]):
        assert turn["cards"] == []
        for alert in mismatches(turn):
            assert_is_foreign(alert, action="raised")
        assert "executor" in {alert["otelctx.hop.kind"] for alert in mismatches(turn)}
        assert {record["level"] for record in turn["log"]} == {"ERROR"}


@pytest.mark.parametrize("mode", MODES)
def test_a_session_that_the_mirror_happens_to_name_is_served_and_raises_no_alert(hermes: Hermes, mode: Mode) -> None:
    turn = hermes(mode)["turns"]["other"]
    assert [sighting["session"] for sighting in turn["result"]["sightings"]] == [B]
    assert [card["shown_to"] for card in turn["cards"]] == [B]
    assert (mismatches(turn), turn["log"]) == ([], [])


@pytest.mark.parametrize("mode", WORKING)
def test_a_variable_that_nobody_declared_does_not_travel(hermes: Hermes, mode: Mode) -> None:
    for turn in hermes(mode)["turns"].values():
        assert {card["undeclared"] for card in turn["cards"]} == {None}


@pytest.mark.parametrize("mode", MODES)
def test_the_environment_is_left_alone(hermes: Hermes, mode: Mode) -> None:
    for turn in hermes(mode)["turns"].values():
        assert list(turn["environment"]) == [B, B]
        assert {card["environment"] for card in turn["cards"]} <= {B}


def assert_is_foreign(alert: dict[str, object], action: str = "observed") -> None:
    assert {name: alert.get(f"otelctx.{name}") for name in ("key", "mismatch.reason", "mismatch.action")} == {
        "key": "session",
        "mismatch.reason": "foreign",
        "mismatch.action": action,
    }
    assert (alert["otelctx.mismatch.expected"], alert["otelctx.mismatch.observed"]) == (A, B)
    assert alert["otelctx.mismatch.source"] == "env:HERMES_SESSION_KEY"
