"""hermes-agent 0.19.0, its code untouched: whose task is it that a cron job in a dispatcher's worker completes?

`hermes_dispatcher.py` and `hermes_worker.py` describe the processes. Each mode runs them once, and every test reads
that report.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest

Mode = Literal["plain", "scope"]
SERVED = "agent:main:webui:served"
RunHost = Callable[[Path, str, Path, Mapping[str, str]], Any]

# The first test may have to install the host.
pytestmark = [pytest.mark.hosts, pytest.mark.timeout(900)]


class Sighting(TypedDict):
    default_task: str | None
    explicit_task: str
    is_kanban_worker: bool
    environment: str | None
    names: list[str]
    process: str | None
    session: str
    cron_session: str | None
    claim: str


class Heartbeat(Sighting):
    extended: bool


class Job(TypedDict):
    tools: list[str]
    seen: Sighting
    shell: str
    completed: str


class Worker(TypedDict):
    otelctx: bool
    started_with: dict[str, str]
    marker: str | None
    claim: dict[str, str] | None
    before: Sighting
    between: Sighting
    after: Sighting
    direct: str | None
    ticked: int
    changed: list[str]
    jobs: dict[str, Job]
    heartbeats: list[Heartbeat]
    last_heartbeat: Heartbeat
    log: list[str]


class Claimed(TypedDict):
    run: str
    lock: str


class Report(TypedDict):
    task: str
    claim: Claimed
    spawned: list[str]
    status: str
    marker: str | None
    child: dict[str, str]
    log: list[str]
    worker: Worker


Hermes = Callable[[Mode], Report]


@pytest.fixture(scope="session")
def hermes(hermes_python: Path, run_host: RunHost, tmp_path_factory: pytest.TempPathFactory) -> Hermes:
    """Run the dispatcher and its worker in a mode, once, and give the report."""

    @functools.cache
    def run(mode: Mode) -> Report:
        variables = {"OTELCTX_CLAIM": "none"}
        if mode == "scope":
            variables |= {"OTELCTX_ENABLED": "true", "OTELCTX_PRESETS": "hermes", "OTELCTX_SCOPED_ENV__MODE": "scope"}
        report: Report = run_host(
            hermes_python, "hermes_dispatcher.py", tmp_path_factory.mktemp(f"kanban-{mode}"), variables
        )
        return report

    return run


# --- the dispatcher --------------------------------------------------------------------------------------------------


def test_without_otelctx_a_worker_takes_itself_for_the_session_that_its_dispatcher_served_last(hermes: Hermes) -> None:
    worker = hermes("plain")["worker"]
    assert not worker["otelctx"]
    assert worker["started_with"]["HERMES_SESSION_KEY"] == SERVED
    assert worker["before"]["session"] == SERVED


@pytest.mark.parametrize("mode", ["plain", "scope"])
def test_a_worker_has_all_that_its_dispatcher_gave_it(hermes: Hermes, mode: Mode) -> None:
    report = hermes(mode)
    task, given = report["task"], report["worker"]["started_with"]
    assert report["spawned"] == [task]
    assert given["HERMES_KANBAN_TASK"] == task
    assert given["HERMES_KANBAN_RUN_ID"] == report["claim"]["run"]
    assert given["HERMES_KANBAN_CLAIM_LOCK"] == report["claim"]["lock"]
    assert Path(given["HERMES_KANBAN_WORKSPACE"]).name == task
    assert {"HERMES_KANBAN_DB", "HERMES_KANBAN_BOARD", "HERMES_KANBAN_WORKSPACES_ROOT"} <= given.keys()


def test_a_worker_holds_its_claim_though_its_dispatcher_was_started_by_a_holder(hermes: Hermes) -> None:
    report = hermes("scope")
    worker = report["worker"]
    assert report["marker"] == "none"
    assert worker["marker"] is None
    assert worker["claim"] == {"task": report["task"], **report["claim"]}
    assert worker["before"]["claim"] == "held"


def test_a_worker_is_given_no_session(hermes: Hermes) -> None:
    worker = hermes("scope")["worker"]
    assert "HERMES_SESSION_KEY" not in worker["started_with"]
    assert worker["before"]["session"] == ""


def test_an_ordinary_child_of_the_dispatcher_holds_nothing_and_is_given_no_session(hermes: Hermes) -> None:
    child = hermes("scope")["child"]
    assert child["OTELCTX_CLAIM"] == "none"
    assert not [name for name in child if name.startswith(("HERMES_KANBAN_", "HERMES_SESSION_"))]


def test_no_variable_that_the_dispatcher_gives_to_a_worker_is_undeclared(hermes: Hermes) -> None:
    assert hermes("scope")["log"] == []


# --- cron jobs in the worker -----------------------------------------------------------------------------------------


def test_without_otelctx_a_cron_job_takes_itself_for_the_worker(hermes: Hermes) -> None:
    report = hermes("plain")
    task, job = report["task"], report["worker"]["jobs"]["report-one"]
    assert job["seen"]["default_task"] == task
    assert job["seen"]["is_kanban_worker"]
    assert "kanban_complete" in job["tools"]
    assert json.loads(job["shell"])["output"] == f"task=[{task}]"


def test_without_otelctx_a_cron_job_completes_the_workers_task_under_its_hands(hermes: Hermes) -> None:
    report = hermes("plain")
    assert json.loads(report["worker"]["jobs"]["report-one"]["completed"])["task_id"] == report["task"]
    assert not report["worker"]["last_heartbeat"]["extended"]
    assert report["status"] == "done"


@pytest.mark.parametrize("mode", ["plain", "scope"])
def test_all_jobs_run_to_their_end(hermes: Hermes, mode: Mode) -> None:
    worker = hermes(mode)["worker"]
    assert (worker["direct"], worker["ticked"]) == (None, 2)
    assert worker["jobs"].keys() == {"report-one", "report-two", "report-three"}
    assert all(job["completed"] for job in worker["jobs"].values())


@pytest.fixture(params=["one", "two", "three"])
def job(request: pytest.FixtureRequest, hermes: Hermes) -> Job:
    """One of the worker's jobs; two and three run at once."""
    return hermes("scope")["worker"]["jobs"][f"report-{request.param}"]


def test_a_cron_job_sees_nothing_of_the_workers_task(job: Job) -> None:
    seen = job["seen"]
    assert (seen["default_task"], seen["environment"], seen["names"]) == (None, None, [])
    assert not seen["is_kanban_worker"]
    assert seen["claim"] == "shed"


def test_a_task_that_a_cron_job_names_itself_is_honoured(job: Job) -> None:
    assert job["seen"]["explicit_task"] == "t_other"


def test_the_kanban_tools_are_not_forced_upon_a_cron_job(job: Job) -> None:
    assert {"look_around", "terminal"} <= set(job["tools"])
    assert not [tool for tool in job["tools"] if tool.startswith("kanban_")]


def test_a_shell_of_a_cron_job_is_told_of_no_task(job: Job) -> None:
    assert json.loads(job["shell"])["output"] == "task=[]"


def test_a_cron_job_is_marked_as_one_for_itself(job: Job) -> None:
    assert job["seen"]["cron_session"] == "1"
    assert job["seen"]["session"] == ""


def test_the_process_has_its_variables_while_a_cron_job_sees_none(hermes: Hermes, job: Job) -> None:
    assert job["seen"]["process"] == hermes("scope")["task"]


def test_no_cron_job_completes_the_workers_task(hermes: Hermes) -> None:
    report = hermes("scope")
    for job in report["worker"]["jobs"].values():
        assert '"ok": true' not in job["completed"]
    assert report["status"] == "running"


def test_a_heartbeat_that_the_holder_started_sees_the_task_and_extends_the_claim_all_the_while(hermes: Hermes) -> None:
    report = hermes("scope")
    worker = report["worker"]
    assert len(worker["heartbeats"]) >= 4 * len(worker["jobs"])
    for heartbeat in [*worker["heartbeats"], worker["last_heartbeat"]]:
        assert heartbeat["extended"]
        assert heartbeat["claim"] == "held"
        assert {heartbeat["default_task"], heartbeat["environment"], heartbeat["process"]} == {report["task"]}


def test_the_worker_is_the_worker_before_between_and_after_its_jobs(hermes: Hermes) -> None:
    report = hermes("scope")
    worker = report["worker"]
    assert worker["before"]["default_task"] == report["task"]
    assert worker["before"] == worker["between"] == worker["after"]


def test_no_job_leaves_anything_of_the_claim_or_of_itself_in_the_environment(hermes: Hermes) -> None:
    changed = hermes("scope")["worker"]["changed"]
    assert not [name for name in changed if name.startswith(("HERMES_KANBAN_", "HERMES_CRON_"))]
    assert "HERMES_CRON_SESSION" in hermes("plain")["worker"]["changed"]


def test_what_was_carried_and_shed_as_it_should_raises_no_alert(hermes: Hermes) -> None:
    assert hermes("scope")["worker"]["log"] == []
