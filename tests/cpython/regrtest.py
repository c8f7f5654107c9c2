"""One run of one of CPython's test files, and what came of each of its tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WHOLE: Final = "(the file as a whole)"
"""Stands among a file's tests for what regrtest says of it: threads left behind, an environment changed, a crash."""

LEFT_OUT: Final[dict[str, str]] = {
    # A KeyboardInterrupt that comes when the stack is full is lost, and the recursion has no other end.
    "test_print_exception_gh_102056": "hangs one time in six without otelctx as well",
    # It takes the first flush of standard error for the interpreter's end (`if not sys.is_finalizing:` calls nothing).
    # With `import logging` as its first line it fails without otelctx: logging flushes its handlers before that.
    "test_finalize_daemon_thread_hang": "fails wherever logging has been imported",
}
"""Tests that are not run on either side, and why."""

if sys.version_info < (3, 14):
    # An executor that shuts down holds a lock while it joins the feeder of its queue, which wants that lock to report
    # what does not pickle: https://github.com/python/cpython/issues/125451, mended in later releases.
    LEFT_OUT.update(
        test_shutdown_deadlock_pickle="hangs without otelctx as well",
        test_processes_terminate="hangs without otelctx as well",
    )

# How a failure is headed: "ERROR: test_x (test.test_y.Cls.test_x) [what the subtest was]". A test's own document comes
# after it, and 3.11 puts no test's name in the brackets of `setUpClass`.
_HEADING: Final = re.compile(r"^(?:FAIL|ERROR): \w+ \((?P<name>[\w.<>]+)\)", re.MULTILINE)

# "test_x (test.test_y.Cls.test_x) ... ", and as the last of the output: without an end.
_UNFINISHED: Final = re.compile(r"^\w+ \((?P<name>[\w.<>]+)\)[^(]*\Z", re.MULTILINE)

STALLED: Final = 240.0
"""Seconds without a word after which a file hangs."""

_EXIT: Final = {0: "passed", 2: "failed", 3: "left something behind", 4: "no test was run"}


class Outcome(NamedTuple):
    """What came of one test."""

    verdict: str
    detail: str = ""


class Run(NamedTuple):
    """What came of one file."""

    outcomes: dict[str, Outcome]
    output: str


def run(
    python: Path,
    name: str,
    variables: Mapping[str, str],
    *,
    only: Iterable[str] = (),
    without: Iterable[str] = LEFT_OUT,
) -> Run:
    """Run the tests of the file `name` (those in `only`, where it names any) with `variables` in the environment.

    One that hangs is ended with everything that it started, and run again without the test that it hung in.
    """
    with tempfile.TemporaryDirectory(prefix="cpython-", ignore_cleanup_errors=True) as scratch:
        report = Path(scratch, "report.xml")
        command: list[str | Path] = [python, "-m", "test", "-v", "--fail-env-changed", "--junit-xml", report]
        left_out = [*without]
        for test in left_out:
            command += ["--ignore", test]
        if chosen := list(only):
            patterns = Path(scratch, "only")
            patterns.write_text("".join(f"{test}\n" for test in chosen))
            command += ["--matchfile", patterns]
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "OTEL", "VIRTUAL"))}
        output = Path(scratch, "output")
        status = _wait([*command, name], environ | {"TMPDIR": scratch, **variables}, output)
        said = output.read_text(errors="replace")
        outcomes = _outcomes(report)
        for heading in _HEADING.finditer(said):  # the report leaves failures of subtests out
            end = said.find("\n======", heading.end())
            outcomes[heading["name"]] = Outcome("failed", said[heading.start() : end][:3000])
        if status is not None:
            return Run({WHOLE: Outcome(_EXIT.get(status, f"ended with {status}"), said[-3000:]), **outcomes}, said)
        unfinished = _UNFINISHED.search(said)
    if unfinished is None or chosen:
        return Run({WHOLE: Outcome("hung", said[-3000:]), **{test: Outcome("hung") for test in chosen}}, said)
    hung = unfinished["name"]
    again = run(python, name, variables, without=[*left_out, hung])
    return Run(again.outcomes | {hung: Outcome("hung", said[-3000:])}, said + again.output)


def _wait(command: list[str | Path], environ: Mapping[str, str], output: Path) -> int | None:
    """Run `command` and return its exit code; None where it hung. What it says goes to the file `output`."""
    with output.open("w") as file:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
        heard, size = time.monotonic(), 0
        while True:
            try:
                return process.wait(5)
            except subprocess.TimeoutExpired:
                if (now := output.stat().st_size) != size:
                    heard, size = time.monotonic(), now
                elif time.monotonic() - heard > STALLED:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return None


def _outcomes(report: Path) -> dict[str, Outcome]:
    try:
        cases = ET.parse(report).getroot().iter("testcase")
    except (OSError, ET.ParseError):  # it never came so far as to write one
        return {}
    outcomes: dict[str, Outcome] = {}
    for case in cases:
        name = case.get("name")
        if not name:
            continue
        outcome = Outcome("skipped" if case.find("skipped") is not None else "passed")
        for kind in ("failure", "error"):
            if (found := case.find(kind)) is not None:
                outcome = Outcome("failed", found.text or "")
        if name not in outcomes or outcome.verdict == "failed":  # a test with subtests is there several times
            outcomes[name] = outcome
    return outcomes
