"""hermes-agent 0.19.0, its code untouched: is a user's session one of cron once a job has run, and whose is a job?

`hermes_cron_gateway.py` describes the process. Each mode runs it once, and every test reads that report.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest

Mode = Literal["plain", "observe", "scope"]
A = "agent:main:webui:A"
OTELCTX: dict[Mode, dict[str, str]] = {
    "plain": {},
    "observe": {"OTELCTX_MODE": "observe"},
    "scope": {"OTELCTX_SCOPED_ENV__MODE": "scope"},
}
RunHost = Callable[[Path, str, Path, Mapping[str, str]], Any]

# The first test may have to install the host.
pytestmark = [pytest.mark.hosts, pytest.mark.timeout(900)]


class Sighting(TypedDict):
    session: str
    approval_contextvar: str
    gateway_contextvar: str | None
    cron_session: str | None
    bindings: dict[str, str]


class Turn(TypedDict):
    before: Sighting
    result: dict[str, Any]
    after: Sighting
    cards: list[str]


class Job(TypedDict):
    seen: Sighting
    verdict: dict[str, Any]


class Span(TypedDict):
    name: str
    trace: int
    parent: int | None
    links: list[int]
    attributes: dict[str, str]


class Record(TypedDict):
    message: str
    attributes: dict[str, str]


class Report(TypedDict):
    otelctx: bool
    job: str
    first: Turn
    during: Turn
    ticked: list[Job]
    ticked_spans: list[Span]
    later: Turn
    run_now: Turn
    ran: list[Job]
    ran_spans: list[Span]
    log: list[Record]


Hermes = Callable[[Mode], Report]


@pytest.fixture(scope="session")
def hermes(hermes_python: Path, run_host: RunHost, tmp_path_factory: pytest.TempPathFactory) -> Hermes:
    """Run the process in a mode, once, and give its report."""

    @functools.cache
    def run(mode: Mode) -> Report:
        variables = dict(OTELCTX[mode])
        if mode != "plain":
            variables |= {"OTELCTX_ENABLED": "true", "OTELCTX_PRESETS": "hermes"}
        folder = tmp_path_factory.mktemp(f"cron-{mode}")
        report: Report = run_host(hermes_python, "hermes_cron_gateway.py", folder, variables)
        return report

    return run


def is_cron_policy(verdict: Mapping[str, Any]) -> bool:
    """Whether a script was refused without asking anybody, since cron jobs have no user."""
    return verdict["approved"] is False and "Cron jobs run without a user" in verdict["message"]


def cron_spans(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span["attributes"].get("otelctx.hop.kind") == "cron"]


# --- HERMES_CRON_SESSION ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "observe", "scope"])
def test_before_any_cron_job_ran_the_user_is_asked(hermes: Hermes, mode: Mode) -> None:
    first = hermes(mode)["first"]
    assert first["cards"] == ["execute_code"]
    assert not is_cron_policy(first["result"])


@pytest.mark.parametrize("turn", ["during", "later"])
@pytest.mark.parametrize("mode", ["plain", "observe"])
def test_without_a_scope_a_cron_job_makes_every_users_session_one_of_cron(
    hermes: Hermes, mode: Mode, turn: Literal["during", "later"]
) -> None:
    found = hermes(mode)[turn]
    assert found["before"]["cron_session"] == "1"
    assert found["cards"] == []
    assert is_cron_policy(found["result"])


@pytest.mark.parametrize("turn", ["during", "later", "run_now"])
def test_a_users_session_is_none_of_cron_while_a_job_runs_and_after_it(
    hermes: Hermes, turn: Literal["during", "later", "run_now"]
) -> None:
    found = hermes("scope")[turn]
    assert (found["before"]["cron_session"], found["after"]["cron_session"]) == (None, None)


@pytest.mark.parametrize("turn", ["during", "later"])
def test_the_user_is_asked_while_a_job_runs_and_after_it(hermes: Hermes, turn: Literal["during", "later"]) -> None:
    found = hermes("scope")[turn]
    assert found["cards"] == ["execute_code"]
    assert not is_cron_policy(found["result"])


@pytest.mark.parametrize("mode", ["plain", "observe", "scope"])
def test_a_job_is_one_of_cron_and_is_judged_as_such(hermes: Hermes, mode: Mode) -> None:
    report = hermes(mode)
    for job in [*report["ticked"], *report["ran"]]:
        assert job["seen"]["cron_session"] == "1"
        assert is_cron_policy(job["verdict"])


@pytest.mark.parametrize("mode", ["plain", "observe", "scope"])
def test_each_job_runs_once(hermes: Hermes, mode: Mode) -> None:
    report = hermes(mode)
    assert (len(report["ticked"]), len(report["ran"])) == (1, 1)


# --- run now ---------------------------------------------------------------------------------------------------------


def test_without_otelctx_a_job_that_a_turn_runs_carries_the_turns_session(hermes: Hermes) -> None:
    report = hermes("plain")
    assert not report["otelctx"]
    assert [job["seen"]["session"] for job in report["ran"]] == [A]


@pytest.mark.parametrize("mode", ["plain", "observe"])
def test_without_repair_a_job_that_a_turn_runs_takes_the_turns_own_bindings_away(hermes: Hermes, mode: Mode) -> None:
    turn = hermes(mode)["run_now"]
    assert turn["before"]["bindings"]["HERMES_SESSION_CHAT_ID"] == "chat-A"
    assert set(turn["after"]["bindings"].values()) == {""}


def test_observe_reports_that_a_job_carries_the_session_of_the_turn_that_runs_it(hermes: Hermes) -> None:
    report = hermes("observe")
    assert [job["seen"]["session"] for job in report["ran"]] == [A]
    alerts = [record["attributes"] for record in report["log"]]
    (alert,) = [alert for alert in alerts if alert["otelctx_hop_kind"] == "cron"]
    assert (alert["otelctx_mismatch_reason"], alert["otelctx_mismatch_observed"]) == ("leaked", A)
    assert alert["otelctx_mismatch_source"] == "contextvar:tools.approval:_approval_session_key"


def test_a_job_that_a_turn_runs_does_not_carry_the_turns_session(hermes: Hermes) -> None:
    (job,) = hermes("scope")["ran"]
    seen = job["seen"]
    assert (seen["session"], seen["approval_contextvar"], seen["gateway_contextvar"]) == ("", "", "")


def test_a_turn_that_runs_a_job_keeps_its_own_bindings(hermes: Hermes) -> None:
    turn = hermes("scope")["run_now"]
    assert turn["result"]["job"]["executed"]
    assert turn["before"]["session"] == A
    assert turn["before"] == turn["after"]


def test_a_job_that_a_turn_runs_is_one_run_with_a_root_span_linked_to_the_turn(hermes: Hermes) -> None:
    report = hermes("scope")
    (run,) = cron_spans(report["ran_spans"])
    (turn,) = [span for span in report["ran_spans"] if span["name"] == "turn"]
    assert run["parent"] is None
    assert run["links"] == [turn["trace"]]
    assert run["trace"] != turn["trace"]


@pytest.mark.parametrize("which", ["ticked_spans", "ran_spans"])
def test_what_a_job_does_is_labelled_as_that_run_of_it(
    hermes: Hermes, which: Literal["ticked_spans", "ran_spans"]
) -> None:
    report = hermes("scope")
    (run,) = cron_spans(report[which])
    labels = {span["attributes"].get("session.id") for span in report[which] if span["trace"] == run["trace"]}
    assert len(labels) == 1
    assert str(labels.pop()).startswith(f"cron:cron.scheduler:{report['job']}:")
    assert "look around" in {span["name"] for span in report[which] if span["trace"] == run["trace"]}


# --- the scheduler ---------------------------------------------------------------------------------------------------


def test_a_scheduler_that_was_started_in_a_turn_works_for_nobody(hermes: Hermes) -> None:
    report = hermes("scope")
    (run,) = cron_spans(report["ticked_spans"])
    assert (run["parent"], run["links"]) == (None, [])
    assert [job["seen"]["session"] for job in report["ticked"]] == [""]


def test_what_is_right_raises_no_alert(hermes: Hermes) -> None:
    assert hermes("scope")["log"] == []
