"""What the demo says at its end: a table, traces of what went wrong or was put right, and where the files are."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from otelctx.cli.demo.gateway import LOG_FILE, METRICS_FILE, TRACES_FILE, WORKER_PREFIX
from otelctx.cli.demo.runs import Run
from otelctx.cli.extras import installed
from otelctx.cli.store import Span
from otelctx.cli.tree import trace_tree

_MEANING = {"plain": "without\notelctx", "observe": "otelctx\nreports", "repair": "otelctx\nrepairs"}


@dataclass(frozen=True, slots=True)
class _Exhibit:
    """A trace that tells a part of the story, and the attributes that do."""

    name: str
    title: str
    mode: str
    trace: list[Span]
    shown: tuple[str, ...]


def show(console: Console, runs: Sequence[Run], directory: Path) -> None:
    """Print the report. Everything that was recorded is printed as it is, never as markup."""
    console.print(_table(runs))
    for exhibit in _exhibits(runs):
        console.print()
        console.print(Text(f"{exhibit.title} ({exhibit.mode}):", style="bold"))
        if exhibit.trace:
            console.print(Padding(trace_tree(exhibit.trace, exhibit.shown), (0, 0, 0, 2)))
        else:
            console.print(Text("  no span of it was recorded: is OpenTelemetry off, or its sampler?", style="yellow"))
    console.print()
    files = f"[{WORKER_PREFIX}]{TRACES_FILE}, [{WORKER_PREFIX}]{METRICS_FILE}, {LOG_FILE}"
    console.print(Text(f"Recorded for each run: {files}, in {directory}", overflow="fold"), soft_wrap=True)
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if endpoint:
        console.print(Text(_sent_to(endpoint)), soft_wrap=True)
    for problem in filter(None, (run.problem for run in runs)):
        console.print(Text(f"Not as it should be: {problem}", style="bold red"), soft_wrap=True)


def as_mapping(runs: Sequence[Run], directory: Path) -> dict[str, Any]:
    """The report for programs. Its keys are stable; times are seconds, those in spans nanoseconds since the epoch."""
    traces = {exhibit.name: {"mode": exhibit.mode, "spans": _spans(exhibit.trace)} for exhibit in _exhibits(runs)}
    return {
        "ok": not any(run.problem for run in runs),
        "problems": [run.problem for run in runs if run.problem],
        "directory": str(directory),
        "runs": [
            {
                "mode": run.mode,
                "approvals": run.outcome.approvals,
                "misrouted": len(run.outcome.misrouted),
                "unseen": run.outcome.unseen,
                "wake_ups": len(run.outcome.wake_ups),
                "wake_ups_misrouted": len(run.outcome.misled),
                "tasks": len(run.outcome.tasks),
                "tasks_closed_by_a_job": len(run.outcome.stolen),
                "alerts": run.alerts,
                "seconds": round(run.seconds, 3),
                "traces": str(run.directory / TRACES_FILE),
                "metrics": str(run.directory / METRICS_FILE),
                "worker_traces": str(run.directory / f"{WORKER_PREFIX}{TRACES_FILE}"),
                "worker_metrics": str(run.directory / f"{WORKER_PREFIX}{METRICS_FILE}"),
                "log": str(run.directory / LOG_FILE),
            }
            for run in runs
        ],
        "misrouted_trace": traces.get("misrouted"),
        "rerouted_trace": traces.get("rerouted"),
        "job_trace": traces.get("job"),
    }


def _sent_to(endpoint: str) -> str:
    protocol = "grpc" if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc" else "http"
    if installed(f"opentelemetry.exporter.otlp.proto.{protocol}"):
        return f"Sent to {endpoint} as well; what went wrong there, if anything, is in {LOG_FILE}"
    return f"Not sent to {endpoint}: that needs pip install 'otelctx[otlp]'"


def _table(runs: Sequence[Run]) -> Table:
    table = Table(title="The same traffic through the same gateway", title_style="bold", title_justify="left")
    table.add_column("what went wrong", vertical="bottom")
    for run in runs:
        table.add_column(Text.assemble(run.mode, "\n", (_MEANING[run.mode], "not bold dim")), justify="right")

    def add(what: str, counts: Sequence[tuple[int, int]]) -> None:
        cells = [Text(f"{wrong} of {all_}", style="bold red" if wrong else "bold green") for wrong, all_ in counts]
        table.add_row(what, *cells)

    outcomes = [run.outcome for run in runs]
    add("approvals shown to the wrong channel", [(len(each.misrouted), each.approvals) for each in outcomes])
    if any(each.unseen for each in outcomes):
        add("approvals shown to nobody", [(each.unseen, each.approvals) for each in outcomes])
    add("wake-ups of the wrong channel", [(len(each.misled), len(each.wake_ups)) for each in outcomes])
    add("tasks closed by a job, not their worker", [(len(each.stolen), len(each.tasks)) for each in outcomes])
    table.add_section()
    table.add_row("alerts", *(Text(str(run.alerts), style="yellow" if run.alerts else "") for run in runs))
    return table


def _exhibits(runs: Sequence[Run]) -> Iterator[_Exhibit]:
    misrouting = [run for run in runs if run.outcome.misrouted]
    if misrouting:
        # Observe's has the alert.
        run = next((run for run in misrouting if run.mode == "observe"), misrouting[0])
        yield _Exhibit(
            "misrouted",
            "An approval that went astray",
            run.mode,
            run.misrouted_approval(),
            ("session.id", "gateway.channel", "gateway.command", "gateway.decision"),
        )
    for run in runs:
        if run.mode == "repair" and run.spans:
            yield _Exhibit(
                "rerouted",
                "A wake-up that went to its owner, whatever the gateway's record says",
                run.mode,
                run.rerouted_wake_up(),
                ("session.id", "gateway.channel", "gateway.process"),
            )
            yield _Exhibit(
                "job",
                "A cron job in a worker's process, and nobody's worker",
                run.mode,
                run.job(),
                ("session.id", "otelctx.claim.state", "gateway.closes"),
            )


def _spans(trace: Sequence[Span]) -> list[dict[str, Any]]:
    def mapping(span: Span) -> dict[str, Any]:
        return asdict(span)

    return [mapping(span) for span in trace]
