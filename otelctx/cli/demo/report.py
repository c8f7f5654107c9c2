"""What the demo says at its end: a table, the trace of one misrouted approval, and where the files are."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from otelctx.cli.demo.gateway import LOG_FILE, METRICS_FILE, TRACES_FILE
from otelctx.cli.demo.runs import Run
from otelctx.cli.extras import installed
from otelctx.cli.store import Span
from otelctx.cli.tree import trace_tree

_MEANING = {"plain": "without otelctx", "observe": "otelctx reports", "repair": "otelctx repairs"}

# What tells the story: whose work it is by otelctx, what the gateway itself took it for, and what was asked.
_SHOWN = ("session.id", "gateway.channel", "gateway.command", "gateway.decision")


def show(console: Console, runs: Sequence[Run], directory: Path) -> None:
    """Print the report. Everything that was recorded is printed as it is, never as markup."""
    console.print(_table(runs))
    subject = _subject(runs)
    if subject is not None:
        console.print()
        console.print(Text(f"One misrouted approval, in its trace ({subject.mode}):", style="bold"))
        trace = subject.misrouted_trace()
        if trace:
            console.print(Padding(trace_tree(trace, _SHOWN), (0, 0, 0, 2)))
        else:
            console.print(Text("  no span of it was recorded: is OpenTelemetry off, or its sampler?", style="yellow"))
    console.print()
    files = f"{TRACES_FILE}, {METRICS_FILE}, {LOG_FILE}"
    console.print(Text(f"Recorded for each run: {files}, in {directory}", overflow="fold"), soft_wrap=True)
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if endpoint:
        console.print(Text(_sent_to(endpoint)), soft_wrap=True)
    for problem in filter(None, (run.problem for run in runs)):
        console.print(Text(f"Not as it should be: {problem}", style="bold red"), soft_wrap=True)


def as_mapping(runs: Sequence[Run], directory: Path) -> dict[str, Any]:
    """The report for programs. Its keys are stable; times are seconds, those in spans nanoseconds since the epoch."""
    subject = _subject(runs)
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
                "alerts": run.alerts,
                "seconds": round(run.seconds, 3),
                "traces": str(run.directory / TRACES_FILE),
                "metrics": str(run.directory / METRICS_FILE),
                "log": str(run.directory / LOG_FILE),
            }
            for run in runs
        ],
        "misrouted_trace": None if subject is None else {"mode": subject.mode, "spans": _spans(subject)},
    }


def _sent_to(endpoint: str) -> str:
    protocol = "grpc" if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc" else "http"
    if installed(f"opentelemetry.exporter.otlp.proto.{protocol}"):
        return f"Sent to {endpoint} as well; what went wrong there, if anything, is in {LOG_FILE}"
    return f"Not sent to {endpoint}: that needs pip install 'otelctx[otlp]'"


def _table(runs: Sequence[Run]) -> Table:
    table = Table(title="The same traffic through the same gateway", title_style="bold", title_justify="left")
    table.add_column("run")
    table.add_column("")
    for heading in ("approvals", "reached the wrong channel", "alerts"):
        table.add_column(heading, justify="right")
    unseen = any(run.outcome.unseen for run in runs)
    if unseen:
        table.add_column("shown to nobody", justify="right", style="red")
    for run in runs:
        misrouted = len(run.outcome.misrouted)
        cells: list[str | Text] = [
            Text(run.mode, style="bold"),
            _MEANING[run.mode],
            str(run.outcome.approvals),
            Text(str(misrouted), style="bold red" if misrouted else "bold green"),
            Text(str(run.alerts), style="yellow" if run.alerts else ""),
        ]
        table.add_row(*cells, *([str(run.outcome.unseen)] if unseen else []))
    return table


def _subject(runs: Sequence[Run]) -> Run | None:
    """The run whose misrouted approval is shown: observe's has the alert."""
    misrouting = [run for run in runs if run.outcome.misrouted]
    return next((run for run in misrouting if run.mode == "observe"), misrouting[0] if misrouting else None)


def _spans(run: Run) -> list[dict[str, Any]]:
    def mapping(span: Span) -> dict[str, Any]:
        return asdict(span)

    return [mapping(span) for span in run.misrouted_trace()]
