"""``python -m benchmarks [--rounds N] [--check]``: a table of ratios; with ``--check``, an error above a budget."""

from __future__ import annotations

import argparse
import platform
import sys
from typing import Final

from benchmarks.pool_hop import ROWS, Cost, Row, measure

ATTEMPTS: Final = 3
"""How often `--check` measures a row before it says that its budget is exceeded: the machine may be busy."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="how often each variant is installed and measured")
    parser.add_argument("--check", action="store_true", help="fail where a row is above its budget")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds: at least one")
    if arguments.check:
        return _check(arguments.rounds)
    _show(measure(arguments.rounds))
    return 0


def _check(rounds: int) -> int:
    rows = tuple(row for row in ROWS if row.budget is not None)
    for attempt in range(ATTEMPTS):
        costs = measure(rounds, rows)
        _show(costs)
        # Only these are measured again: noise adds, so a row that was once within its budget is.
        rows = tuple(row for row, cost in costs.items() if is_above(row, cost))
        if not rows:
            return 0
        over = "; ".join(f"{row.name} (budget: {row.budget})" for row in rows)
        print(f"above the budget ({attempt + 1} of {ATTEMPTS}): {over}", file=sys.stderr)
    return 1


def is_above(row: Row, cost: Cost) -> bool:
    """Whether `row` costs more than its budget allows, or OpenTelemetry too little for anything to be said."""
    return row.budget is not None and (cost.ratio is None or cost.ratio > row.budget)


def _show(costs: dict[Row, Cost]) -> None:
    width = max(len(row.name) for row in costs)
    print(f"Python {platform.python_version()}".ljust(width), " plain  OpenTelemetry  otelctx  added, ours/theirs")
    for row, cost in costs.items():
        ratio = "–" if cost.ratio is None else f"{cost.ratio:.2f}"
        theirs, ours = cost.opentelemetry / cost.plain, cost.otelctx / cost.plain
        print(f"{row.name:{width}}   1.00  {theirs:13.2f}  {ours:7.2f}  {ratio:>18}")


if __name__ == "__main__":
    sys.exit(main())
