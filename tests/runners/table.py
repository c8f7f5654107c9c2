"""The table of `docs/runners.md`: what a job sees, each cell as a program that runs has seen it.

``python -m tests.runners.table`` (``make runners-table``) writes the table anew; `test_table` compares each cell.
A runner's tests add their rows to `ROWS`. Task queues have a table of their own, in `docs/task-queues.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.runners.scheduled import OFF, ON, OPENTELEMETRY, run

DOCUMENT = Path(__file__).parents[2] / "docs" / "runners.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

MODES = {"without otelctx": OFF, "OpenTelemetry's own": OPENTELEMETRY, "with otelctx": ON}
"""The columns, and what turns them on."""


class Row(NamedTuple):
    """One runner in one situation; `cell` gives what a job sees in a mode (a value of `MODES`)."""

    runner: str
    situation: str
    cell: Callable[[dict[str, str]], str]


APSCHEDULER = ("apscheduler==3.11.3", "gevent", "sqlalchemy", "tornado", "twisted")
APSCHEDULER_4 = ("apscheduler==4.0.0a6", "sqlalchemy[asyncio]", "trio")
SCHEDULE = ("schedule==1.2.2",)
TELEGRAM = ("python-telegram-bot[job-queue]==22.8",)
DISCORD = ("discord.py==2.7.1",)
AIOCRON = ("aiocron==2.1",)


def shown(values: set[str | None]) -> str:
    """What several runs have seen, in a word."""
    words = {
        "–"
        if value is None
        else "minted"
        if value.startswith("cron:")
        else "the last one's"
        if "left" in value
        else value
        for value in values
    }
    sessions = {word for word in words if word in "ABCDE"}
    if len(sessions) > 1:
        return "whoever touched it last"
    return " or ".join(sorted(words - sessions)) if not sessions else " or ".join(sorted(sessions))


def of(requirements: tuple[str, ...], program: str, *arguments: str, label: str) -> Callable[[dict[str, str]], str]:
    """A cell of a program's: OpenTelemetry's baggage, and the application's own variable; or that the run is minted."""

    def cell(mode: dict[str, str]) -> str:
        runs = run(requirements, program, *arguments, **mode).of(label)
        assert runs, label
        keys = {run["key"] for run in runs}
        if mode is ON and all(key is not None and key.startswith("cron:") for key in keys):
            assert {(run["baggage"], run["app"]) for run in runs} == {(None, None)}, (label, runs)
            return "minted"
        return f"{shown({run['baggage'] for run in runs})} / {shown({run['app'] for run in runs})}"

    return cell


def _apscheduler(scenario: str, label: str) -> Callable[[dict[str, str]], str]:
    return of(APSCHEDULER, "apscheduler_jobs.py", scenario, label=label)


def _apscheduler_4(*scenario: str, label: str) -> Callable[[dict[str, str]], str]:
    return of(APSCHEDULER_4, "apscheduler4_jobs.py", *scenario, label=label)


def _stdlib(scenario: str, label: str) -> Callable[[dict[str, str]], str]:
    return of((), "stdlib_jobs.py", scenario, label=label)


ROWS = [
    Row(
        "APScheduler 3, `AsyncIOScheduler`",
        "recurring coroutine of B's; started by A, C adds another job, D pauses it",
        _apscheduler("asyncio_scheduler", "recurring coroutine"),
    ),
    Row(
        "APScheduler 3, `AsyncIOScheduler`",
        "recurring function of C's, in the loop's pool",
        _apscheduler("asyncio_scheduler", "recurring function"),
    ),
    Row(
        "APScheduler 3, `AsyncIOScheduler`",
        "one-shot coroutine of E's; started by A",
        _apscheduler("asyncio_scheduler", "one-shot coroutine"),
    ),
    Row("APScheduler 3, thread pool", "recurring job of B's; started by A", _apscheduler("threads", "recurring")),
    Row("APScheduler 3, thread pool", "one-shot job of C's; started by A", _apscheduler("threads", "one-shot")),
    Row("APScheduler 3, thread pool", "a job sets its variable and never resets it", _apscheduler("leaving", "leaves")),
    Row("APScheduler 3, debug executor", "recurring job of B's; started by A", _apscheduler("debug", "recurring")),
    Row(
        "APScheduler 3, `BlockingScheduler`",
        "recurring job of B's; started by A",
        _apscheduler("blocking", "recurring"),
    ),
    Row(
        "APScheduler 3, `TwistedScheduler`", "recurring job of B's; started by A", _apscheduler("twisted", "recurring")
    ),
    Row("APScheduler 3, `TwistedScheduler`", "one-shot jobs of C's; started by A", _apscheduler("twisted", "one-shot")),
    Row(
        "APScheduler 4, `AsyncScheduler`",
        "recurring coroutine of B's; started by A, C adds another schedule, D pauses it",
        _apscheduler_4("async_scheduler", label="recurring coroutine"),
    ),
    Row(
        "APScheduler 4, `AsyncScheduler`",
        "recurring function of C's, in a thread",
        _apscheduler_4("async_scheduler", label="recurring function"),
    ),
    Row(
        "APScheduler 4, `AsyncScheduler`",
        "`add_job` of E's; started by A",
        _apscheduler_4("async_scheduler", label="one-shot coroutine"),
    ),
    Row(
        "APScheduler 4, `AsyncScheduler`",
        "schedule of E's for one date; started by A",
        _apscheduler_4("async_scheduler", label="date"),
    ),
    Row(
        "APScheduler 4, `Scheduler`",
        "recurring job of B's; started by A",
        _apscheduler_4("threads", "threadpool", label="recurring"),
    ),
    Row(
        "APScheduler 4, `Scheduler`",
        "one-shot jobs of C's; started by A",
        _apscheduler_4("threads", "threadpool", label="one-shot"),
    ),
    Row(
        "APScheduler 4, `Scheduler`",
        "a job sets its variable and never resets it; started by A",
        _apscheduler_4("leaving", label="leaves"),
    ),
    Row(
        "APScheduler 4, process pool",
        "recurring job of D's; started by A",
        _apscheduler_4("processes", label="recurring"),
    ),
    Row(
        "APScheduler 4, process pool",
        "one-shot job of C's; started by A",
        _apscheduler_4("processes", label="one-shot of C"),
    ),
    Row(
        "python-telegram-bot, `JobQueue`",
        "`run_repeating` of B's; started by A, C and D add others",
        of(TELEGRAM, "telegram_bot.py", label="repeating"),
    ),
    Row("python-telegram-bot, `JobQueue`", "`run_once` of C's", of(TELEGRAM, "telegram_bot.py", label="once")),
    Row(
        "`schedule`",
        "set up by A; run by B, by nobody and by A",
        of(SCHEDULE, "schedule_jobs.py", "turns", label="job"),
    ),
    Row(
        "`schedule` in a thread",
        "set up by B; A starts the thread",
        of(SCHEDULE, "schedule_jobs.py", "in_a_thread", label="in a thread"),
    ),
    Row("`sched`", "entered by B; run by C", _stdlib("events", "one-shot")),
    Row("`sched`", "entered by A, and again by its own runs; run by C", _stdlib("events", "later runs")),
    Row("`threading.Timer`", "set by A", _stdlib("timer", "first run")),
    Row("`threading.Timer`", "set again by its own run, first by A", _stdlib("timer", "later runs")),
    Row(
        "discord.py, `tasks.loop`",
        "started by A; it sets its variable and never resets it",
        of(DISCORD, "discord_loops.py", label="loop"),
    ),
    Row("aiocron", "a coroutine that A has started", of(AIOCRON, "aiocron_jobs.py", "turns", label="coroutine")),
    Row("aiocron", "a function that C waits for", of(AIOCRON, "aiocron_jobs.py", "turns", label="waited for")),
    Row("a loop in a thread", "started by A, with `@cron_job`", _stdlib("thread_loop", "run")),
    Row("a loop of asyncio's", "started by A, with `@cron_job`", _stdlib("asyncio_loop", "run")),
]


def lines() -> list[str]:
    """The table, as it is measured now."""
    head = ["runner", "situation", *MODES]
    measured = [[row.runner, row.situation, *(row.cell(mode) for mode in MODES.values())] for row in ROWS]
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *measured)]


def documented() -> dict[tuple[str, str, str], str]:
    """What the document says, by runner, situation and column."""
    table = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in (table[0], *table[2:])]
    return {(row[0], row[1], name): cell for row in rows[1:] for name, cell in zip(rows[0][2:], row[2:], strict=True)}


def write() -> None:
    """Write the table into the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    DOCUMENT.write_text("\n".join([before + BEGIN, *lines(), END + after]), encoding="utf-8")


if __name__ == "__main__":
    write()
    sys.stdout.write(DOCUMENT.read_text(encoding="utf-8"))
