"""One run of the traffic, in a gateway of its own, and what is to be said about it."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from otelctx.cli.demo.gateway import LOG_FILE, METRICS_FILE, PLAIN, TRACES_FILE, GatewayError, environment, running
from otelctx.cli.demo.traffic import Outcome, drive
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
        misrouted, unseen = len(self.outcome.misrouted), self.outcome.unseen
        if self.mode == "repair":
            return f"repair: {misrouted} misrouted, {unseen} shown to nobody" if misrouted or unseen else None
        if not misrouted:
            return f"{self.mode}: nothing was misrouted, so the fault did not show"
        if self.mode == "observe" and not self.alerts:
            return "observe: approvals were misrouted without an alert"
        return None

    def misrouted_trace(self) -> list[Span]:
        """The spans of the trace of a misrouted approval, one with an alert where there is one; else none."""
        approvals = {card.approval for card in self.outcome.misrouted}
        traces: dict[str, list[Span]] = {}
        for span in self.spans:
            traces.setdefault(span.trace_id, []).append(span)
        candidates = [
            trace
            for trace in traces.values()
            if any(span.attributes.get("gateway.approval") in approvals for span in trace)
        ]
        return next((trace for trace in candidates if any(map(alerts, trace))), candidates[0] if candidates else [])


async def run(mode: str, turns: int, directory: Path, on_round: Callable[[], None], patience: float) -> Run:
    """Run the traffic through a new gateway in `mode`, recording in `directory`; an earlier run's files are replaced.

    `patience` is the time in seconds that the traffic may take beside a second for each turn. Raises `GatewayError`
    when the gateway fails, and when otelctx does not come up in it; `OSError` when `directory` cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in (LOG_FILE, TRACES_FILE, METRICS_FILE):
        (directory / name).unlink(missing_ok=True)
    began = time.monotonic()
    async with running(directory, environment(mode, directory, os.environ)) as http:
        async with asyncio.timeout(patience + turns):
            outcome = await drive(http, turns, on_round)
    spans = tuple(read_spans(directory / TRACES_FILE))
    if mode != PLAIN and spans and not any("session.id" in span.attributes for span in spans):
        raise GatewayError(
            f"{mode}: otelctx was asked for by OTELCTX_ENABLED and did not come up in the gateway: "
            "it has to be installed in this environment (a source tree: pip install -e .)",
            directory,
        )
    counted = read_counter(directory / METRICS_FILE, "otelctx.mismatches")
    # The metric counts each; in the traces, alerts beyond the rate limit are not repeated.
    alerted = sum(len(alerts(span)) for span in spans) if counted is None else counted
    return Run(mode, outcome, spans, alerted, time.monotonic() - began, directory)


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
