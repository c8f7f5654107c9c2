"""The examples of schedulers run by the command that they name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.runners.scheduled import python_with

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install

EXAMPLES = Path(__file__).parents[2] / "examples"


def output(example: str, *requirements: str) -> list[str]:
    kept = ("OTELCTX_", "OTEL_", "PYTHON", "VIRTUAL_ENV")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(kept)}
    done = subprocess.run(
        [str(python_with(*requirements)), str(EXAMPLES / example)],
        env={**environ, "OTELCTX_ENABLED": "true"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_each_run_of_the_croniter_loop_has_a_session_of_its_own() -> None:
    turn, *runs = output("croniter_loop.py", "croniter")
    assert turn == "turn: session telegram:42"
    assert len(set(runs)) == 3
    assert all(run.startswith("report: session cron:croniter:report:") for run in runs)


def test_the_bots_reminders_are_their_chats_and_its_digest_is_nobodys() -> None:
    lines = output("telegram_bot.py", "python-telegram-bot[job-queue]==22.8")
    for chat in (1, 2):
        assert f"reminder for chat {chat}: session telegram:{chat}" in lines
    digests = [line for line in lines if line.startswith("digest")]
    assert len(digests) >= 2
    assert all(line.startswith("digest: session cron:apscheduler:digest:") for line in digests)
