"""`otelctx demo`: its gateway, its traffic, what it reads back, what it prints, and how it ends."""

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from otelctx.cli.app import cli
from otelctx.cli.demo.gateway import (
    LOG_FILE,
    METRICS_FILE,
    TRACES_FILE,
    WORKER_PREFIX,
    GatewayError,
    environment,
    running,
)
from otelctx.cli.demo.report import show
from otelctx.cli.demo.runs import Run, run
from otelctx.cli.demo.traffic import CHANNELS, Card, Outcome, Task, WakeUp, drive
from otelctx.cli.store import Span, Value, read_counter, read_spans
from otelctx.cli.tree import trace_tree

RECORDED = Path(__file__).with_name("observed_traces.jsonl")
MAIN = "from otelctx.cli import main; main()"
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""A shell that starts the tests in the background has SIGINT ignored in all that they start."""


def plain_traffic(directory: Path, rounds: int) -> Outcome:
    async def traffic() -> Outcome:
        async with running(directory, environment("plain", directory, os.environ)) as http:
            async with asyncio.timeout(30):
                return await drive(http, rounds, lambda: None)

    return asyncio.run(traffic())


def test_in_the_plain_gateway_each_round_shows_one_card_to_the_channel_that_began_last(tmp_path: Path) -> None:
    outcome = plain_traffic(tmp_path, 4)
    assert (outcome.approvals, outcome.unseen) == (8, 0)
    shown = {card.command: card.shown_to for card in outcome.cards}
    for number in range(4):
        last = CHANNELS[1 - number % 2]
        cards = [shown[f"rm -rf /srv/{channel.replace(':', '-')}/build-{number}"] for channel in CHANNELS]
        assert cards == [last, last]


def test_the_plain_gateways_trace_looks_right_and_its_tools_have_the_wrong_channel(tmp_path: Path) -> None:
    outcome = plain_traffic(tmp_path, 1)
    (misrouted,) = outcome.misrouted
    spans = read_spans(tmp_path / TRACES_FILE)
    approval = next(span for span in spans if span.attributes.get("gateway.approval") == misrouted.approval)
    tool = next(span for span in spans if span.span_id == approval.parent_id)
    turn = next(span for span in spans if span.span_id == tool.parent_id)
    assert (turn.name, turn.attributes["gateway.channel"]) == ("turn", misrouted.asked_by)
    assert (tool.name, tool.attributes["gateway.channel"]) == ("tool shell", misrouted.shown_to)
    assert (approval.attributes["gateway.channel"], approval.attributes["gateway.decision"]) == (
        misrouted.shown_to,
        "deny",
    )


def test_a_gateway_that_does_not_start_is_reported_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "uvicorn.py").write_text("raise RuntimeError('no uvicorn today')")
    monkeypatch.setenv("PYTHONPATH", str(broken), prepend=os.pathsep)
    with pytest.raises(GatewayError, match=r"(?s)did not start: it ended with status 1\n.*\| RuntimeError: no uvicorn"):
        plain_traffic(tmp_path, 1)


def test_a_gateway_that_dies_under_traffic_ends_the_run_with_an_error(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill() -> None:
        if not killed:
            killed.append(gateway_pid(tmp_path / LOG_FILE))
            os.kill(killed[0], signal.SIGKILL)

    async def traffic() -> None:
        async with running(tmp_path, environment("plain", tmp_path, os.environ)) as http:
            async with asyncio.timeout(30):
                await drive(http, 1000, kill)

    with pytest.raises(GatewayError, match="the gateway failed: "):
        asyncio.run(traffic())


def test_traffic_that_is_not_answered_in_time_ends_the_run_with_an_error(tmp_path: Path) -> None:
    async def traffic() -> None:
        async with running(tmp_path, environment("plain", tmp_path, os.environ)) as http:
            async with asyncio.timeout(0.3):
                await http.get(f"/sessions/{CHANNELS[0]}/events")

    with pytest.raises(GatewayError, match="the gateway failed: TimeoutError"):
        asyncio.run(traffic())


def test_the_gateways_environment_keeps_opentelemetrys_variables_and_neither_otelctxs_nor_the_gateways() -> None:
    inherited = {
        "PATH": "/bin",
        "PYTHONPATH": "/their/own",
        "OTEL_TRACES_SAMPLER": "always_on",
        "OTEL_RESOURCE_ATTRIBUTES": "team=a",
        "OTELCTX_MODE": "enforce",
        "OTELCTX_SPANS": "never",
        "GATEWAY_SESSION_KEY": "stale",
    }
    variables = environment("observe", Path("records"), inherited)
    assert variables["OTEL_TRACES_SAMPLER"] == "always_on"
    assert variables["OTEL_RESOURCE_ATTRIBUTES"] == "team=a,demo.run=observe"
    assert variables["PYTHONPATH"].endswith(f"{os.pathsep}/their/own")
    assert {name: variables[name] for name in variables if name.startswith("OTELCTX_")} == {
        "OTELCTX_ENABLED": "true",
        "OTELCTX_MODE": "observe",
        "OTELCTX_CONFIG": variables["OTELCTX_CONFIG"],
    }
    assert Path(variables["OTELCTX_CONFIG"]).is_file()
    assert {name for name in variables if name.startswith("GATEWAY_")} == {
        "GATEWAY_TELEMETRY_DIR",
        "GATEWAY_WAKE_RESOLVER",
    }
    plain = environment("plain", Path("records"), inherited)
    assert [name for name in plain if name.startswith("OTELCTX_")] == ["OTELCTX_ENABLED"]
    assert plain["OTELCTX_ENABLED"] == "false"
    assert not any("otelctx:" in value for value in plain.values())


@pytest.mark.timeout(120)
def test_everything_goes_wrong_plain_and_in_observe_with_an_alert_in_the_trace_and_nothing_in_repair(
    tmp_path: Path,
) -> None:
    demo = subprocess.run(
        [sys.executable, "-c", MAIN, "demo", "--turns", "4", "--json", "--no-progress", "--keep", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert demo.returncode == 0, demo.stderr
    assert demo.stderr == ""
    report = json.loads(demo.stdout)
    assert report["ok"] is True
    assert report["problems"] == []
    assert [tuple(each[name] for name in ("mode", "approvals", "misrouted", "unseen")) for each in report["runs"]] == [
        ("plain", 8, 4, 0),
        ("observe", 8, 4, 0),
        ("repair", 8, 0, 0),
    ]
    assert [
        tuple(each[name] for name in ("wake_ups", "wake_ups_misrouted", "tasks", "tasks_closed_by_a_job"))
        for each in report["runs"]
    ] == [(9, 4, 1, 1), (9, 4, 1, 1), (9, 0, 1, 0)]
    # In observe one for each of the two tools of the four turns whose key another turn's had replaced, and one for the
    # job; in repair, one for each wake-up whose record another turn had replaced.
    assert [each["alerts"] for each in report["runs"]] == [0, 9, 4]
    trace = report["misrouted_trace"]
    assert trace["mode"] == "observe"
    turn = next(span for span in trace["spans"] if span["name"] == "turn")
    approval = next(span for span in trace["spans"] if span["name"] == "approval")
    assert turn["attributes"]["session.id"] == turn["attributes"]["gateway.channel"]
    alerts = [event["attributes"] for span in trace["spans"] for event in span["events"]]
    assert {(alert["otelctx.mismatch.reason"], alert["otelctx.mismatch.action"]) for alert in alerts} == {
        ("foreign", "observed")
    }
    assert {alert["otelctx.mismatch.expected"] for alert in alerts} == {turn["attributes"]["gateway.channel"]}
    assert {alert["otelctx.mismatch.observed"] for alert in alerts} == {approval["attributes"]["gateway.channel"]}
    assert {alert["otelctx.mismatch.source"] for alert in alerts} == {"env:GATEWAY_SESSION_KEY"}
    assert [report[name]["mode"] for name in ("rerouted_trace", "job_trace")] == ["repair", "repair"]
    assert "wake-up" in {span["name"] for span in report["rerouted_trace"]["spans"]}
    assert "cron nightly" in {span["name"] for span in report["job_trace"]["spans"]}
    for each in report["runs"]:
        assert {Path(each[name]).name for name in ("traces", "metrics", "log")} == {TRACES_FILE, METRICS_FILE, LOG_FILE}
        assert {Path(each[name]).name for name in ("worker_traces", "worker_metrics")} == {
            f"{WORKER_PREFIX}{name}" for name in (TRACES_FILE, METRICS_FILE)
        }
        assert Path(each["traces"]).stat().st_size > 0
        assert Path(each["worker_traces"]).stat().st_size > 0


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGKILL, -signal.SIGKILL)], ids=str
)
def test_a_demo_that_is_stopped_leaves_no_gateway_and_no_worker_behind(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    log = tmp_path / "plain" / LOG_FILE
    arguments = ["demo", "--mode", "plain", "--turns", "1000", "--no-progress", "--keep", str(tmp_path)]
    command = [sys.executable, "-c", INTERRUPTIBLE + MAIN, *arguments]
    demo = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: log.exists() and "goes to the worker" in log.read_text())
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=30)
    finally:
        demo.kill()
    assert demo.returncode == status
    assert errors.strip() in ("Aborted!", "")
    eventually(lambda: "Finished server process" in log.read_text())
    eventually(lambda: not is_running(gateway_pid(log)))
    eventually(lambda: not is_running(worker_pid(log)))


def test_a_worker_ends_with_a_gateway_that_is_killed(tmp_path: Path) -> None:
    async def traffic() -> None:
        async with running(tmp_path, environment("plain", tmp_path, os.environ)) as http:
            (await http.post(f"/sessions/{CHANNELS[0]}/tasks", json={"text": "Never to be done."})).raise_for_status()
            os.kill(gateway_pid(tmp_path / LOG_FILE), signal.SIGKILL)

    with pytest.raises(GatewayError, match="ended with status -9"):
        asyncio.run(traffic())
    eventually(lambda: not is_running(worker_pid(tmp_path / LOG_FILE)))


def test_the_tree_has_the_alert_below_its_span_and_says_where_the_wrong_value_came_from() -> None:
    trace = recorded_misrouted_trace()
    lines = rendered(trace_tree(trace, ("session.id", "gateway.channel")))
    assert lines == EXPECTED_TREE


def test_a_span_whose_parent_was_not_recorded_hangs_from_the_top() -> None:
    trace = [span for span in recorded_misrouted_trace() if span.name != "turn"]
    lines = rendered(trace_tree(trace, ()))
    tops = [re.sub(r"  .*", "", line[4:]) for line in lines if line[0] in "├└"]
    assert tops == [
        each for tool in ("search", "read_file", "shell") for each in ("executor Tools.run", f"tool {tool}")
    ]


def test_what_was_recorded_is_printed_as_it_is_and_not_as_markup() -> None:
    span = Span("t", "s", "", "[red]turn[/red]", 0, 10**6, {"gateway.command": "rm -rf [bold]"}, (), False)
    assert rendered(trace_tree([span], ("gateway.command",)))[1:] == [
        "└── [red]turn[/red]  1.0 ms  gateway.command=rm -rf [bold]"
    ]


def test_every_kind_of_attribute_value_is_read_back(tmp_path: Path) -> None:
    values: dict[str, tuple[dict[str, object], Value]] = {
        "text": ({"stringValue": "a"}, "a"),
        "yes": ({"boolValue": False}, False),
        "whole": ({"intValue": "9007199254740993"}, 9007199254740993),
        "fraction": ({"doubleValue": 0.5}, 0.5),
        "list": ({"arrayValue": {"values": [{"stringValue": "a"}, {"intValue": 1}]}}, ["a", 1]),
        "map": ({"kvlistValue": {"values": [{"key": "k", "value": {"stringValue": "v"}}]}}, {"k": "v"}),
        "empty": ({}, None),
    }
    span = {
        "traceId": "t",
        "spanId": "s",
        "startTimeUnixNano": "5",
        "endTimeUnixNano": "7",
        "status": {"code": 2},
        "attributes": [{"key": key, "value": value} for key, (value, _) in values.items()],
    }
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
    assert read_spans(path) == [
        Span("t", "s", "", "", 5, 7, {key: read for key, (_, read) in values.items()}, (), True)
    ]


def test_half_a_line_at_the_end_of_a_store_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / TRACES_FILE
    path.write_text(RECORDED.read_text() + '{"resourceSpans":[{"sco')
    assert read_spans(path) == read_spans(RECORDED) != []


def test_a_store_that_is_not_there_has_no_spans_and_no_counter(tmp_path: Path) -> None:
    assert read_spans(tmp_path / TRACES_FILE) == []
    assert read_counter(tmp_path / METRICS_FILE, "otelctx.mismatches") is None


@pytest.mark.parametrize(("temporality", "total"), [(1, 1 + 4 + 2), (2, 4 + 2)], ids=["delta", "cumulative"])
def test_a_counter_is_the_sum_of_its_series(tmp_path: Path, temporality: int, total: int) -> None:
    def point(value: int, reason: str) -> dict[str, Any]:
        return {"asInt": str(value), "attributes": [{"key": "reason", "value": {"stringValue": reason}}]}

    path = tmp_path / METRICS_FILE
    with path.open("w") as file:
        for points in ([point(1, "lost")], [point(4, "lost"), point(2, "foreign")]):
            metrics = [
                {"name": "mine", "sum": {"aggregationTemporality": temporality, "dataPoints": points}},
                {"name": "another", "sum": {"aggregationTemporality": temporality, "dataPoints": points}},
            ]
            file.write(json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}) + "\n")
    assert read_counter(path, "mine") == total


ASTRAY = Card("approval-1", "rm -rf a", "slack:ops", "telegram:family")
AT_HOME = Card("approval-1", "rm -rf a", "slack:ops", "slack:ops")
MISLED = WakeUp("process-1", "slack:ops", "telegram:family")
WOKEN = WakeUp("process-1", "slack:ops", "slack:ops")
LOST = "repair: a worker's heartbeat lost its task"
STOLEN = Task("task-1", "nightly", ("task-1",))
DONE = Task("task-1", "worker", ("task-1",))
FAULTY = Outcome(1, (ASTRAY,), (MISLED,), (STOLEN,))
FAULTLESS = Outcome(1, (AT_HOME,), (WOKEN,), (DONE,))


@pytest.mark.parametrize(
    ("mode", "outcome", "alerts", "problem"),
    [
        ("plain", FAULTY, 0, None),
        ("plain", replace(FAULTY, cards=(AT_HOME,)), 0, "plain: no approvals misrouted, so the fault did not show"),
        ("plain", replace(FAULTY, wake_ups=(WOKEN,)), 0, "plain: no wake-ups misrouted, so the fault did not show"),
        ("plain", replace(FAULTY, tasks=(DONE,)), 0, "plain: no tasks closed by a job, so the fault did not show"),
        ("observe", FAULTY, 1, None),
        ("observe", FAULTY, 0, "observe: all of it without an alert"),
        ("observe", replace(FAULTY, cards=(AT_HOME,)), 1, "observe: no approvals misrouted, so the fault did not show"),
        ("repair", FAULTLESS, 0, None),
        ("repair", FAULTY, 0, "repair: 1 approvals misrouted; 1 wake-ups misrouted; 1 tasks closed by a job"),
        ("repair", replace(FAULTLESS, cards=()), 0, "repair: 1 approvals shown to nobody"),
        ("repair", replace(FAULTLESS, tasks=(replace(DONE, closed_by=None),)), 0, "repair: 1 tasks not closed"),
        ("repair", replace(FAULTLESS, tasks=(replace(DONE, heartbeats=()),)), 0, LOST),
        ("repair", replace(FAULTLESS, tasks=(replace(DONE, heartbeats=("task-1", None)),)), 0, LOST),
    ],
)
def test_only_a_run_that_did_what_its_mode_must_do_has_no_problem(
    mode: str, outcome: Outcome, alerts: int, problem: str | None
) -> None:
    assert Run(mode, outcome, (), alerts, 0.1, Path()).problem == problem


def test_the_report_has_the_counts_the_tree_and_where_the_files_are() -> None:
    spans = tuple(read_spans(RECORDED))
    approval = next(span for span in recorded_misrouted_trace() if span.name == "approval")
    astray = Card(str(approval.attributes["gateway.approval"]), "rm -rf a", "slack:ops", "telegram:family")
    runs = [
        Run("plain", replace(FAULTY, cards=(astray,)), (), 0, 0.1, Path()),
        Run("observe", replace(FAULTY, cards=(astray,)), spans, 3, 0.1, Path()),
        Run("repair", replace(FAULTLESS, cards=()), (), 0, 0.1, Path()),
    ]
    output = io.StringIO()
    show(Console(file=output, width=160), runs, Path("the-directory"))
    rows = [re.split(r"\s*│\s*", line)[1:-1] for line in output.getvalue().splitlines() if line.startswith("│")]
    assert [row[1:] for row in rows] == [
        ["1 of 1", "1 of 1", "0 of 1"],
        ["0 of 1", "0 of 1", "1 of 1"],
        ["1 of 1", "1 of 1", "0 of 1"],
        ["1 of 1", "1 of 1", "0 of 1"],
        ["0", "3", "0"],
    ]
    assert "An approval that went astray (observe):" in output.getvalue()
    assert "otelctx.mismatch: foreign session" in output.getvalue()
    assert "in the-directory" in output.getvalue()
    assert "Not as it should be: repair: 1 approvals shown to nobody" in output.getvalue()


def test_a_gateway_in_which_otelctx_does_not_come_up_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the interpreter sees where otelctx is not installed: no line of its .pth file runs.
    monkeypatch.setattr("otelctx.cli.demo.runs.environment", environment_without_otelctx)
    with pytest.raises(GatewayError, match="observe: otelctx was asked for by OTELCTX_ENABLED and did not come up"):
        asyncio.run(run("observe", 1, tmp_path, lambda: None, 20))


def test_without_click_the_command_line_names_the_extra_in_one_line() -> None:
    script = f"import sys; sys.modules['click'] = None; {MAIN}"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "otelctx: the command line needs click: pip install 'otelctx[cli]'\n"


def test_without_the_gateways_libraries_the_demo_names_the_extra_in_one_line() -> None:
    script = f"import sys; sys.modules['httpx'] = sys.modules['uvicorn'] = None; {MAIN}"
    result = subprocess.run([sys.executable, "-c", script, "demo"], capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "Error: needs httpx, uvicorn: pip install 'otelctx[demo]'\n"


def test_the_list_of_commands_does_not_need_the_demos_libraries() -> None:
    script = f"import sys; sys.modules['httpx'] = sys.modules['opentelemetry'] = None; {MAIN}"
    result = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, timeout=30)
    assert result.returncode == 0
    assert "See a gateway misroute approvals" in result.stdout


@pytest.mark.parametrize("arguments", [["--turns", "0"], ["--mode", "repaired"], ["extra"]], ids=" ".join)
def test_a_wrong_option_is_a_usage_error_and_runs_nothing(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, ["demo", *arguments]).exit_code == 2


def environment_without_otelctx(mode: str, directory: Path, inherited: dict[str, str]) -> dict[str, str]:
    return environment(mode, directory, inherited) | {"OTELCTX_ENABLED": "false"}


def recorded_misrouted_trace() -> list[Span]:
    """The first trace of the recorded store in which an approval went to another channel than the turn's."""
    traces: dict[str, list[Span]] = {}
    for span in read_spans(RECORDED):
        traces.setdefault(span.trace_id, []).append(span)
    return next(trace for trace in traces.values() if len(channels(trace)) > 1)


def channels(trace: list[Span]) -> set[object]:
    return {span.attributes["gateway.channel"] for span in trace if "gateway.channel" in span.attributes}


def rendered(renderable: object) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=160).print(renderable)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def gateway_pid(log: Path) -> int:
    return pid_in(log, "Started server process")


def worker_pid(log: Path) -> int:
    return pid_in(log, "goes to the worker")


def pid_in(log: Path, words: str) -> int:
    found = re.search(rf"{words} \[(\d+)\]", log.read_text())
    assert found is not None
    return int(found[1])


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def eventually(holds: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


EXPECTED_TREE = """\
trace c00a3e8961739d83fb268f04fe6a7e43
└── turn  186.6 ms  session.id=slack:ops  gateway.channel=slack:ops
    ├── executor Tools.run  0.9 ms
    │   └── ! otelctx.mismatch: foreign session (observed)
    │         expected slack:ops, observed telegram:family
    │         read from env:GATEWAY_SESSION_KEY
    │         departed from Agent._run (agent.py:66)
    ├── tool search  0.0 ms  gateway.channel=telegram:family
    ├── executor Tools.run  0.4 ms
    │   └── ! otelctx.mismatch: foreign session (observed)
    │         expected slack:ops, observed telegram:family
    │         read from env:GATEWAY_SESSION_KEY
    │         departed from Agent._run (agent.py:66)
    ├── tool read_file  0.0 ms  gateway.channel=telegram:family
    ├── executor Tools.run  9.1 ms
    │   └── ! otelctx.mismatch: foreign session (observed)
    │         expected slack:ops, observed telegram:family
    │         read from env:GATEWAY_SESSION_KEY
    │         departed from Agent._run (agent.py:66)
    └── tool shell  8.8 ms  gateway.channel=telegram:family
        └── approval  8.6 ms  gateway.channel=telegram:family
""".splitlines()
