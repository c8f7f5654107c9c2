"""The benchmarks run, and say something. Whether the budget holds is for ``make bench``: it needs a quiet moment."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.__main__ import is_above
from benchmarks.pool_hop import ROWS, Cost, Row, submit

ROOT = Path(__file__).parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=50, check=False)


@pytest.fixture(scope="module")
def table() -> str:
    done = run("--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("row", [row.name for row in ROWS])
def test_each_row_says_what_the_three_cost_beside_each_other(table: str, row: str) -> None:
    # A busy machine may make any of them the dearest, and what OpenTelemetry adds nothing to speak of.
    found = re.search(rf"^{re.escape(row)} +1\.00 +(\d+\.\d\d) +(\d+\.\d\d) +(-?\d+\.\d\d|–)$", table, re.MULTILINE)
    assert found, table
    theirs, ours = float(found[1]), float(found[2])
    assert theirs > 0
    assert ours > 0


def test_the_ratio_is_what_otelctx_adds_over_what_opentelemetry_adds() -> None:
    assert Cost(plain=2.0, opentelemetry=6.0, otelctx=4.0).ratio == pytest.approx(0.5)
    assert Cost(plain=2.0, opentelemetry=3.0, otelctx=5.0).ratio == pytest.approx(3.0)


def test_there_is_no_ratio_where_opentelemetry_adds_nothing_to_speak_of() -> None:
    assert Cost(plain=2.0, opentelemetry=2.05, otelctx=4.0).ratio is None


def test_a_row_is_above_its_budget_where_the_ratio_is_or_where_there_is_none() -> None:
    row = Row("row", nullcontext, submit, budget=0.5)
    assert not is_above(row, Cost(plain=2.0, opentelemetry=6.0, otelctx=4.0))
    assert is_above(row, Cost(plain=2.0, opentelemetry=6.0, otelctx=4.1))
    assert is_above(row, Cost(plain=2.0, opentelemetry=2.0, otelctx=2.0))
    assert not is_above(Row("row", nullcontext, submit), Cost(plain=2.0, opentelemetry=2.0, otelctx=9.0))


def test_rounds_are_at_least_one() -> None:
    done = run("--rounds", "0")
    assert done.returncode == 2
    assert "--rounds: at least one" in done.stderr
