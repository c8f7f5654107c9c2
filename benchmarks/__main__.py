"""``python -m benchmarks [--rounds N] [--check]``: a table of ratios; with ``--check``, an error above the budget."""

from __future__ import annotations

import argparse
import platform
import sys
from typing import Final

from benchmarks.pool_hop import ROWS, Cost, Row, measure

BUDGET: Final = 0.8
"""How much a pool hop with two keys may add, as a part of what OpenTelemetry's threading instrumentation adds."""
ATTEMPTS: Final = 3
"""How often `--check` measures before it says that the budget is exceeded: the machine may be busy."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="how often each variant is installed and measured")
    parser.add_argument("--check", action="store_true", help=f"fail where a budgeted row is above {BUDGET}")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds: at least one")
    if arguments.check:
        return _check(arguments.rounds)
    _show(measure(arguments.rounds))
    return 0


def _check(rounds: int) -> int:
    rows = tuple(row for row in ROWS if row.budgeted)
    for attempt in range(ATTEMPTS):
        costs = measure(rounds, rows)
        _show(costs)
        over = [row.name for row, cost in costs.items() if cost.ratio is None or cost.ratio > BUDGET]
        if not over:
            return 0
        print(f"above the budget of {BUDGET} ({attempt + 1} of {ATTEMPTS}): {'; '.join(over)}", file=sys.stderr)
    return 1


def _show(costs: dict[Row, Cost]) -> None:
    width = max(len(row.name) for row in costs)
    print(f"Python {platform.python_version()}".ljust(width), " plain  OpenTelemetry  otelctx  added, ours/theirs")
    for row, cost in costs.items():
        ratio = "–" if cost.ratio is None else f"{cost.ratio:.2f}"
        theirs, ours = cost.opentelemetry / cost.plain, cost.otelctx / cost.plain
        print(f"{row.name:{width}}   1.00  {theirs:13.2f}  {ours:7.2f}  {ratio:>18}")


if __name__ == "__main__":
    sys.exit(main())
