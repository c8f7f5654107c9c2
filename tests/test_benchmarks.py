"""The benchmarks run, and say something. Whether the budget holds is for ``make bench``: it needs a quiet moment."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=50, check=False)


@pytest.fixture(scope="module")
def table() -> str:
    done = run("--rounds", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    "row",
    [
        "pool hop, two keys bound by otelctx",
        "pool hop, two ContextVars of the application's",
        "pool hop, nothing bound",
        "pool hop, a new OpenTelemetry Context each time",
        "pool hop, to a worker with a context of its own",
        "pool hop, parent recorded (a hop span each)",
        "Thread.start",
    ],
)
def test_each_row_says_what_otelctx_adds_beside_what_opentelemetry_adds(table: str, row: str) -> None:
    found = re.search(rf"^{re.escape(row)} +1\.00 +(\d+\.\d\d) +(\d+\.\d\d) +(\d+\.\d\d)$", table, re.MULTILINE)
    assert found, table
    theirs, ours, ratio = map(float, found.groups())
    assert theirs > 1
    assert ours > 1
    assert 0 < ratio < 1000


def test_a_hop_that_opentelemetry_does_not_carry_has_no_ratio(table: str) -> None:
    assert re.search(r"^add_done_callback +1\.00 +\d+\.\d\d +\d+\.\d\d +–$", table, re.MULTILINE), table


def test_rounds_are_at_least_one() -> None:
    done = run("--rounds", "0")
    assert done.returncode == 2
    assert "--rounds: at least one" in done.stderr
