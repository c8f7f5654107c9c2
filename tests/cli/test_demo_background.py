"""The demo's background work: whom the end of a process wakes, and whose task a cron job closes."""

import asyncio
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from otelctx.cli.app import cli
from otelctx.cli.demo.gateway import GatewayError, environment, running, source_directory
from otelctx.cli.demo.runs import Run, run
from otelctx.cli.demo.traffic import CHANNELS, Task, WakeUp
from otelctx.cli.store import Span, Value
from otelctx.cli.tree import alerts

ROUNDS = 2

pytestmark = pytest.mark.timeout(90)

Demo = Callable[[str], Run]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """Run the traffic in a mode, once for all tests."""

    @functools.cache
    def run_in(mode: str) -> Run:
        return asyncio.run(run(mode, ROUNDS, tmp_path_factory.mktemp(mode), lambda: None, 60))

    return run_in


# --- background processes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "observe"])
def test_the_end_of_a_build_wakes_the_channel_whose_build_began_last(demo: Demo, mode: str) -> None:
    slack, family = CHANNELS
    assert ends(demo(mode)) == [
        (slack, slack),  # no turn's process: as the gateway was told
        (slack, family),
        (family, family),
        (family, slack),
        (slack, slack),
    ]


def test_in_repair_the_end_of_each_process_wakes_its_owner(demo: Demo) -> None:
    slack, family = CHANNELS
    assert ends(demo("repair")) == [(slack, slack), (slack, slack), (family, family), (family, family), (slack, slack)]


def test_in_repair_a_wake_up_has_an_alert_where_the_record_is_anothers_and_nowhere_else(demo: Demo) -> None:
    wake_ups = {str(span.attributes["gateway.process"]): span for span in named("wake-up", demo("repair"))}
    told = {process: [alert.attributes for alert in alerts(span)] for process, span in wake_ups.items()}
    slack, family = CHANNELS
    assert {process: list(map(mismatch, found)) for process, found in told.items()} == {
        "process-1": [],  # nobody's: the owner is not known
        "process-2": [("foreign", slack, family, "rerouted")],
        "process-3": [],  # agreement
        "process-4": [("foreign", family, slack, "rerouted")],
        "process-5": [],
    }
    assert {alert["code.function.name"] for found in told.values() for alert in found} == {"Processes._watch"}
    assert {process: span.attributes["gateway.channel"] for process, span in wake_ups.items()} == {
        each.process: each.owner for each in demo("repair").outcome.wake_ups
    }


def test_in_observe_what_leads_to_a_wrong_wake_up_has_an_alert_in_its_trace(demo: Demo) -> None:
    observed = demo("observe")
    misled = {each.process for each in observed.outcome.misled}
    wrong = [span for span in named("wake-up", observed) if span.attributes["gateway.process"] in misled]
    assert len(wrong) == ROUNDS
    for wake_up in wrong:
        trace = [span for span in observed.spans if span.trace_id == wake_up.trace_id]
        found = [mismatch(alert.attributes) for span in trace for alert in alerts(span)]
        assert ("foreign", owner_of(observed, wake_up), wake_up.attributes["gateway.channel"], "observed") in found


def test_a_gateway_whose_resolver_is_not_there_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match=r"(?s)did not start: it ended with status .*no_such_module"):
        asyncio.run(
            start(tmp_path, environment("plain", tmp_path, os.environ) | {"GATEWAY_WAKE_RESOLVER": "no_such_module:f"})
        )


# --- the worker and the cron job -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "observe"])
def test_a_job_in_a_workers_process_closes_the_workers_task_and_the_worker_cannot(demo: Demo, mode: str) -> None:
    assert demo(mode).outcome.tasks == (Task("task-1", "nightly", ("task-1",) * 3),)
    assert closes(demo(mode)) == {"nightly": "task-1", "worker": "task-1"}


def test_in_repair_the_job_closes_nothing_and_the_worker_its_task_and_the_heartbeat_holds_all_the_while(
    demo: Demo,
) -> None:
    assert demo("repair").outcome.tasks == (Task("task-1", "worker", ("task-1",) * 3),)
    assert closes(demo("repair")) == {"nightly": "nothing", "worker": "task-1"}


def test_in_repair_the_job_is_a_root_of_its_own_with_a_fresh_session_and_no_claim(demo: Demo) -> None:
    trace = demo("repair").job()
    root = next(span for span in trace if not span.parent_id)
    assert [span.name for span in trace] == ["cron nightly", "agent", "finish"]
    assert str(root.attributes["session.id"]).startswith("cron:gateway.jobs:nightly:")
    assert {span.attributes["session.id"] for span in trace} == {root.attributes["session.id"]}
    assert {span.attributes["otelctx.claim.state"] for span in trace} == {"shed"}


def test_in_observe_a_job_that_sees_the_workers_task_has_an_alert(demo: Demo) -> None:
    (cron,) = named("cron nightly", demo("observe"))
    (alert,) = (alert.attributes for alert in alerts(cron))
    assert (alert["otelctx.key"], alert["otelctx.mismatch.reason"], alert["otelctx.mismatch.action"]) == (
        "claim",
        "leaked",
        "observed",
    )
    assert (alert["otelctx.mismatch.observed"], alert["otelctx.mismatch.source"]) == ("task-1", "env:GATEWAY_TASK")


def test_what_a_library_prints_in_a_worker_is_not_taken_for_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    outcome = asyncio.run(run("plain", 1, tmp_path, lambda: None, 60)).outcome
    assert outcome.tasks == (Task("task-1", "nightly", ("task-1",) * 3),)
    assert '"name": "finish"' in (tmp_path / "gateway.log").read_text()


def test_all_that_the_gateways_dispatcher_gives_a_worker_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source_directory())
    arguments = ["drift", "gateway.dispatcher:spawn", "--prefix", "GATEWAY_", "--config", "otelctx.toml"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert "GATEWAY_TASK, GATEWAY_TASK_TOKEN" in result.output


@pytest.mark.parametrize("path", ["/processes/process-1/end", "/tasks/task-1/jobs", "/tasks/task-1/completion"])
def test_what_is_not_there_is_not_found(tmp_path: Path, path: str) -> None:
    assert asyncio.run(start(tmp_path, environment("plain", tmp_path, os.environ), path)) == 404


async def start(directory: Path, variables: Mapping[str, str], path: str = "/health") -> int:
    """Start a gateway, post to `path`, and give the status of the answer."""
    async with running(directory, variables) as http:
        return (await http.post(path, json={"job": "nightly"})).status_code


def ends(run: Run) -> list[tuple[str, str]]:
    """For each process, in the order of their starts: the channel that it belongs to, and the one that was woken."""
    return [(each.owner, each.woken) for each in sorted(run.outcome.wake_ups, key=number)]


def number(wake_up: WakeUp) -> int:
    return int(wake_up.process.removeprefix("process-"))


def named(name: str, run: Run) -> list[Span]:
    return [span for span in run.spans if span.name == name]


def closes(run: Run) -> dict[Value, Value]:
    """What each run of an agent in the worker's process took for its task."""
    return {span.attributes["gateway.run"]: span.attributes["gateway.closes"] for span in named("finish", run)}


def owner_of(run: Run, wake_up: Span) -> str:
    return next(each.owner for each in run.outcome.wake_ups if each.process == wake_up.attributes["gateway.process"])


def mismatch(alert: Mapping[str, Value]) -> tuple[Value, ...]:
    names = ("reason", "expected", "observed", "action")
    return tuple(alert[f"otelctx.mismatch.{name}"] for name in names)
