"""One run of the traffic, in a gateway of its own, and what is to be said about it."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from otelctx.cli.demo.gateway import (
    LOG_FILE,
    METRICS_FILE,
    PLAIN,
    TRACES_FILE,
    WORKER_PREFIX,
    GatewayError,
    environment,
    running,
)
from otelctx.cli.demo.traffic import JOB, Outcome, drive
from otelctx.cli.store import Span, read_counter, read_spans
from otelctx.cli.tree import alerts


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of the traffic in `mode` gave. Its files are in `directory`."""

    mode: str
    outcome: Outcome
    spans: tuple[Span, ...]
    alerts: int
    seconds: float
    directory: Path

    @property
    def problem(self) -> str | None:
        """Why this run did not do what a run in its mode has to do, in one line; None where it did."""
        problems = list(self._problems())
        return f"{self.mode}: {'; '.join(problems)}" if problems else None

    def _problems(self) -> Iterator[str]:
        outcome = self.outcome
        faults = {
            "approvals misrouted": len(outcome.misrouted),
            "wake-ups misrouted": len(outcome.misled),
            "tasks closed by a job": len(outcome.stolen),
        }
        if self.mode == "repair":
            faults["approvals shown to nobody"] = outcome.unseen
            faults["tasks not closed"] = sum(task.closed_by is None for task in outcome.tasks)
            yield from (f"{count} {what}" for what, count in faults.items() if count)
        else:
            yield from (f"no {what}, so the fault did not show" for what, count in faults.items() if not count)
        if self.mode == "observe" and not self.alerts:
            yield "all of it without an alert"
        if not all(task.held for task in outcome.tasks):
            yield "a worker's heartbeat lost its task"

    def misrouted_approval(self) -> list[Span]:
        """The spans of the trace of a misrouted approval, one with an alert where there is one; else none."""
        approvals = {card.approval for card in self.outcome.misrouted}
        return self._trace(lambda span: span.attributes.get("gateway.approval") in approvals)

    def rerouted_wake_up(self) -> list[Span]:
        """The spans of the trace of a wake-up that went to its owner in spite of the gateway's record; else none."""
        return self._trace(
            lambda span: any(alert.attributes.get("otelctx.mismatch.action") == "rerouted" for alert in alerts(span))
        )

    def job(self) -> list[Span]:
        """The spans of the trace of a cron job; else none."""
        return self._trace(lambda span: span.attributes.get("gateway.run") == JOB)

    def _trace(self, has: Callable[[Span], bool]) -> list[Span]:
        """A trace that has a span for which `has` is true, preferably one with an alert in it."""
        traces: dict[str, list[Span]] = {}
        for span in self.spans:
            traces.setdefault(span.trace_id, []).append(span)
        found = [trace for trace in traces.values() if any(map(has, trace))]
        return next((trace for trace in found if any(map(alerts, trace))), found[0] if found else [])


async def run(mode: str, turns: int, directory: Path, on_round: Callable[[], None], patience: float) -> Run:
    """Run the traffic through a new gateway in `mode`, recording in `directory`; an earlier run's files are replaced.

    `patience` is the time in seconds that the traffic may take beside a second for each turn. Raises `GatewayError`
    when the gateway fails, and when otelctx does not come up in it; `OSError` when `directory` cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = [f"{prefix}{name}" for prefix in ("", WORKER_PREFIX) for name in (TRACES_FILE, METRICS_FILE)]
    for name in (LOG_FILE, *files):
        (directory / name).unlink(missing_ok=True)
    began = time.monotonic()
    async with running(directory, environment(mode, directory, os.environ)) as http:
        async with asyncio.timeout(patience + turns):
            outcome = await drive(http, turns, on_round)
    spans, alerted = _recorded(directory, "")
    worker_spans, worker_alerted = _recorded(directory, WORKER_PREFIX)
    if mode != PLAIN and spans and not any("session.id" in span.attributes for span in spans):
        raise GatewayError(
            f"{mode}: otelctx was asked for by OTELCTX_ENABLED and did not come up in the gateway: "
            "it has to be installed in this environment (a source tree: pip install -e .)",
            directory,
        )
    took = time.monotonic() - began
    return Run(mode, outcome, (*spans, *worker_spans), alerted + worker_alerted, took, directory)


def _recorded(directory: Path, prefix: str) -> tuple[list[Span], int]:
    """What one process has recorded: its spans, and the number of its alerts."""
    spans = read_spans(directory / f"{prefix}{TRACES_FILE}")
    counted = read_counter(directory / f"{prefix}{METRICS_FILE}", "otelctx.mismatches")
    # The metric counts each; in the traces, alerts beyond the rate limit are not repeated.
    return spans, sum(len(alerts(span)) for span in spans) if counted is None else counted


class Rounds(AbstractContextManager["Rounds"]):
    """The progress of the runs: a bar for each, on a console."""

    def __init__(self, console: Console, modes: Sequence[str], rounds: int, *, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            console=console,
            disable=not shown,
        )
        self._tasks = {mode: self._progress.add_task(f"{mode:8}", total=rounds, start=False) for mode in modes}

    def of(self, mode: str) -> Callable[[], None]:
        """Begin the run in `mode`; the function that is returned is called after each round."""
        task = self._tasks[mode]
        self._progress.start_task(task)
        return lambda: self._progress.advance(task)

    def __enter__(self) -> "Rounds":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()
