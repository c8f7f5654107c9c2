"""``python -m tests.cpython``: run CPython's tests on both sides, and say where they differ.

The reference is the application of ``application/`` without otelctx. Each *side* is the same application with otelctx,
turned on by the environment in an installation of its own. A test that comes out differently is run again, several
times on both sides; where otelctx's side then fails more often, it is a difference, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copy
from typing import TYPE_CHECKING, Final

from tests.cpython.regrtest import WHOLE, Outcome, Run, run
from tests.installed import environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future

APPLICATION: Final = Path(__file__).parent / "application"

ALL: Final = (
    # The longest first: two run at a time.
    "test_multiprocessing_spawn",
    "test_multiprocessing_forkserver",
    "test_multiprocessing_fork",
    "test_concurrent_futures",
    "test_asyncio",
    "test_subprocess",
    "test_threading",
    "test_os",
    "test_queue",
    "test_thread",
    "test_inspect",
    "test_sched",
    "test_context",
)

QUICK: Final = tuple(name for name in ALL if name != "test_asyncio" and not name.startswith("test_multiprocessing"))
"""What is run in the five minutes that a check before landing may take."""

PART: Final = tuple(name for name in ALL if not name.startswith("test_multiprocessing"))
"""What is run on the sides that matter less where nothing but a process is started."""

REFERENCE: Final = "without"

SIDES: Final[dict[str, dict[str, str]]] = {
    REFERENCE: {},
    # Nothing is declared: patched, and idle.
    "idle": {"OTELCTX_ENABLED": "true"},
    "bound": {"OTELCTX_ENABLED": "true", "OTELCTX_CONFIG": "declared.toml"},
    "observe": {"OTELCTX_ENABLED": "true", "OTELCTX_CONFIG": "declared.toml", "OTELCTX_MODE": "observe"},
    # Every hop by its longest way: with a place, a time and a span, and each source read again before the work runs.
    "enforce": {
        "OTELCTX_ENABLED": "true",
        "OTELCTX_CONFIG": "declared.toml",
        "OTELCTX_MODE": "enforce",
        "OTELCTX_SPANS": "always",
    },
}

WHOLE_SIDES: Final = ("idle", "bound")
"""The sides on which everything is run; on the others it is `PART`."""

AGAIN: Final = 5
"""How often a test that differs is run again on each side."""


@dataclass
class Verdict:
    """What the comparison of one file's runs has found."""

    differences: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)


class Bench:
    """An interpreter's installation of otelctx, and the runs in it."""

    def __init__(self, home: Path, borrowed: Path | None, log: Path | None) -> None:
        self.installed = environment(home, "wheel")
        self.log = log
        self.tests = Path(os.__file__).parent / "test"
        self.variables = {"CPYTHON_SESSION": "cpython"}
        if borrowed is not None:
            self._borrow(borrowed, home / "borrowed" / "test")
        for file in APPLICATION.glob("*.py"):
            copy(file, self.installed.site_packages)

    def _borrow(self, lender: Path, tests: Path) -> None:
        """Let the package `test` be in the directory `tests`: the interpreter's own files, and what it lacks."""
        tests.mkdir(parents=True)
        for file in self.tests.iterdir():
            (tests / file.name).symlink_to(file)
        for name in ALL:
            if not self.ships(name):
                (tests / name).symlink_to(lender / name)
        self.tests = tests
        self.variables["PYTHONPATH"] = str(tests.parent)

    def ships(self, name: str) -> bool:
        """Whether the file `name` is there."""
        return (self.tests / name).is_dir() or (self.tests / f"{name}.py").is_file()

    def run(self, name: str, side: str, *, only: Iterable[str] = ()) -> Run:
        """Run a file, or some of its tests, on one side."""
        variables = {**self.variables, **SIDES[side]}
        if "OTELCTX_CONFIG" in variables:
            variables["OTELCTX_CONFIG"] = str(APPLICATION / variables["OTELCTX_CONFIG"])
        started = time.monotonic()
        result = run(self.installed.python, name, variables, only=only)
        if not only:
            self._tell(name, side, result, time.monotonic() - started)
        return result

    def _tell(self, name: str, side: str, result: Run, seconds: float) -> None:
        count = dict.fromkeys(("passed", "failed", "skipped"), 0)
        for test, outcome in result.outcomes.items():
            if test != WHOLE:
                count[outcome.verdict] += 1
        numbers = ", ".join(f"{number} {verdict}" for verdict, number in count.items() if number)
        print(f"{name:32} {side:8} {seconds:5.0f} s  {result.outcomes[WHOLE].verdict}: {numbers}", flush=True)
        if self.log is not None:
            (self.log / f"{name}-{side}.txt").write_text(result.output)
            outcomes = {test: outcome._asdict() for test, outcome in result.outcomes.items()}
            (self.log / f"{name}-{side}.json").write_text(json.dumps(outcomes, indent=1))


def differing(reference: Mapping[str, Outcome], other: Mapping[str, Outcome]) -> list[str]:
    """Return the tests that did not come out the same; the file as a whole only where no test of it says more."""
    names = [*dict.fromkeys((*reference, *other))]
    nothing = Outcome("not run")
    differ = [name for name in names if reference.get(name, nothing).verdict != other.get(name, nothing).verdict]
    return differ if differ == [WHOLE] else [name for name in differ if name != WHOLE]


def compare(bench: Bench, name: str, side: str, reference: Run, other: Run) -> Verdict:
    """Compare a side with the reference; what differs is run again before it counts."""
    verdict = Verdict()
    differ = differing(reference.outcomes, other.outcomes)
    for test in differ:
        # Only a test has a name that can be chosen; the file, or a class's `setUpClass`, is run as a whole.
        only = [test.partition(" ")[0]] if test != WHOLE and not test.startswith(("setUp", "tearDown")) else []
        hung = any(run_.outcomes.get(test, Outcome("")).verdict == "hung" for run_ in (reference, other))
        times = AGAIN if only and not hung else 2
        seen = {
            where: [
                bench.run(name, where, only=only).outcomes.get(test, Outcome("not run")).verdict for _ in range(times)
            ]
            for where in (REFERENCE, side)
        }
        expected, got = (run_.outcomes.get(test, Outcome("not run")) for run_ in (reference, other))
        line = (
            f"{name} [{side}] {test}: {expected.verdict} without otelctx ({' '.join(seen[REFERENCE])} when run again), "
            f"{got.verdict} with it ({' '.join(seen[side])})"
        )
        worse = any(seen[side].count(bad) > seen[REFERENCE].count(bad) for bad in {*seen[side]} - {"passed"})
        if worse or (got.verdict == "skipped" and expected.verdict == "passed"):
            verdict.differences.append(f"{line}\n{got.detail}")
        else:
            verdict.unsteady.append(line)
    return verdict


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cpython", description=__doc__)
    parser.add_argument("tests", nargs="*", help="CPython's test files (all that are patched)")
    parser.add_argument("--quick", action="store_true", help="a part that takes about five minutes")
    parser.add_argument("--sides", help="of " + ", ".join([*SIDES][1:]))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="files that run at a time")
    parser.add_argument("--log", type=Path, help="a directory to keep each run's output in")
    parser.add_argument(
        "--borrow",
        type=Path,
        help="a directory with CPython's tests, for the files that this interpreter does not ship (3.11.7 and 3.12.1 "
        "ship neither test_concurrent_futures nor test_multiprocessing_*)",
    )
    arguments = parser.parse_args(argv)
    names = arguments.tests or (QUICK if arguments.quick else ALL)
    sides = (
        ["bound"] if arguments.quick and not arguments.sides else (arguments.sides or ",".join([*SIDES][1:])).split(",")
    )
    if arguments.log is not None:
        arguments.log.mkdir(parents=True, exist_ok=True)
    print(f"Python {sys.version.split()[0]}: {', '.join(sides)}, {arguments.jobs} at a time", flush=True)
    # Where this is started in the background the signal may be ignored, and so would it be in what it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found = Verdict()
    with tempfile.TemporaryDirectory(prefix="cpython-") as home, ThreadPoolExecutor(arguments.jobs) as pool:
        bench = Bench(Path(home), arguments.borrow, arguments.log)
        runs: dict[tuple[str, str], Future[Run]] = {}
        for name in names:
            if not bench.ships(name):
                print(f"{name:32} NOT RUN: this interpreter does not ship it", flush=True)
                continue
            for side in (REFERENCE, *sides):
                if name not in PART and side not in (REFERENCE, *WHOLE_SIDES) and not arguments.tests:
                    continue
                runs[name, side] = pool.submit(bench.run, name, side)
        for (name, side), pending in runs.items():
            if side == REFERENCE:
                continue
            verdict = compare(bench, name, side, runs[name, REFERENCE].result(), pending.result())
            found.differences += verdict.differences
            found.unsteady += verdict.unsteady
    for line in found.unsteady:
        print(f"unsteady, not counted: {line}")
    for line in found.differences:
        print(f"DIFFERENT: {line}")
    total = sum(len(pending.result().outcomes) - 1 for pending in runs.values())
    print(f"{total} tests in {len(runs)} runs: {len(found.differences)} differences")
    return 1 if found.differences else 0


if __name__ == "__main__":
    sys.exit(main())
