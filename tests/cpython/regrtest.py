"""One run of one of CPython's test files, and what came of each of its tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WHOLE: Final = "(the file as a whole)"
"""Stands among a file's tests for what regrtest says of it: threads left behind, an environment changed, a crash."""

UNSTEADY: Final = {
    # A KeyboardInterrupt that comes when the stack is full is lost, and the recursion has no other end.
    "test_print_exception_gh_102056": "hangs one time in six without otelctx as well",
}
"""Tests that are not run on either side, and why."""

# How a failure is headed: "ERROR: test_x (test.test_y.Cls.test_x) [what the subtest was]". A test's own document comes
# after it, and 3.11 puts no test's name in the brackets of `setUpClass`.
_HEADING: Final = re.compile(r"^(?:FAIL|ERROR): \w+ \((?P<name>[\w.<>]+)\)", re.MULTILINE)

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
    directory: Path | None = None,
    timeout: float = 900,
) -> Run:
    """Run the tests of the file `name` (those in `only`, where it names any) with `variables` in the environment.

    `directory`: where the file is, where the interpreter does not ship it. A run that takes longer than `timeout`
    seconds is ended with everything that it started.
    """
    with tempfile.TemporaryDirectory(prefix="cpython-") as scratch:
        report = Path(scratch, "report.xml")
        command: list[str | Path] = [python, "-m", "test", "-v", "--fail-env-changed", "--junit-xml", report]
        if directory is not None:
            command += ["--testdir", directory]
        for test in UNSTEADY:
            command += ["--ignore", test]
        patterns = Path(scratch, "only")
        if chosen := list(only):
            patterns.write_text("".join(f"{test}\n" for test in chosen))
            command += ["--matchfile", patterns]
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "OTEL", "VIRTUAL"))}
        environ |= {"TMPDIR": scratch, **variables}
        with Path(scratch, "output").open("w+", errors="replace") as output:
            process = subprocess.Popen(
                [*command, name],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout)
                whole = _EXIT.get(status, f"ended with {status}")
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                whole = f"took longer than {timeout:.0f} seconds"
            output.seek(0)
            said = output.read()
        outcomes = _outcomes(report)
        for heading in _HEADING.finditer(said):  # the report leaves failures of subtests out
            end = said.find("\n======", heading.end())
            outcomes[heading["name"]] = Outcome("failed", said[heading.start() : end][:3000])
        return Run({WHOLE: Outcome(whole, said[-3000:]), **outcomes}, said)


def _outcomes(report: Path) -> dict[str, Outcome]:
    try:
        cases = ET.parse(report).getroot().iter("testcase")
    except (OSError, ET.ParseError):  # it never came so far as to write one
        return {}
    outcomes: dict[str, Outcome] = {}
    for case in cases:
        name = case.get("name", "")
        outcome = Outcome("skipped" if case.find("skipped") is not None else "passed")
        for kind in ("failure", "error"):
            if (found := case.find(kind)) is not None:
                outcome = Outcome("failed", found.text or "")
        if name not in outcomes or outcome.verdict == "failed":  # a test with subtests is there several times
            outcomes[name] = outcome
    return outcomes
