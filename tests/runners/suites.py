"""Runners' own test suites, from their source distributions, with otelctx and without: no new failures.

``python -m tests.runners.suites [name …]`` (``make runner-suites``). A suite runs twice in one environment: as its
authors run it, and with ``OTELCTX_ENABLED=true``; what fails only then is otelctx's doing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.environments import environment
from tests.runners.redis_server import redis_server

TIMEOUT = 900.0  # seconds, for each of the two runs


class Suite(NamedTuple):
    """A runner's own tests."""

    source: str
    """Its source distribution, as a requirement."""
    requirements: tuple[str, ...]
    """What its tests need."""
    arguments: tuple[str, ...]
    """What pytest is given."""
    redis: bool = False
    """Whether they want a Redis server at its usual port, 6379; it has to be free."""


SUITES = {
    "apscheduler": Suite(
        "apscheduler==3.11.3",
        (
            "pytest",
            "pytest-asyncio",
            "pytest-tornado",
            "setuptools<81",
            "anyio",
            "gevent",
            "sqlalchemy",
            "tornado",
            "twisted",
            "pytz",
        ),
        ("tests", "--ignore=tests/test_jobstores.py"),  # which wants servers
    ),
    "apscheduler4": Suite(
        "apscheduler==4.0.0a6",
        (
            "pytest<9",
            "pytest-lazy-fixtures",
            "pytest-mock",
            "aiosqlite",
            "anyio[trio]",
            "cbor2<5.7",
            "pymongo",
            "sqlalchemy[asyncio]",
            "time-machine",
            "tzlocal",
        ),
        ("tests", "-m", "not external_service"),
    ),
    "schedule": Suite("schedule==1.2.2", ("pytest", "pytz", "pytest-mock"), ("test_schedule.py",)),
    "huey": Suite("huey==3.5.4", ("pytest", "pytest-timeout"), ("huey/tests", "--timeout=120")),
    "rq": Suite(
        "rq==3.0.0",
        ("pytest", "pytest-timeout", "psutil", "sentry-sdk"),
        (
            "tests",
            "--timeout=120",
            "--deselect=tests/test_connection.py",  # which wants TLS
            # It lists the fields of a job's hash, where one of ours is.
            "--deselect=tests/test_job.py::TestJob::test_persistence_of_typical_jobs",
        ),
        redis=True,
    ),
}


def outcomes(python: Path, folder: Path, arguments: tuple[str, ...], **variables: str) -> dict[str, str]:
    """Each test's outcome, by its name."""
    kept = ("OTELCTX_", "OTEL_", "PYTHON", "VIRTUAL_ENV")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(kept)}
    command = [str(python), "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts="]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env={**environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    found = re.findall(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS) (\S+)", done.stdout, re.MULTILINE)
    if not found:
        raise SystemExit(done.stdout[-4000:])
    return {name: outcome for outcome, name in found}


def compare(name: str, folder: Path) -> int:
    """Run a suite both ways, say what came of it, and return how many tests fail with otelctx only."""
    suite = SUITES[name]
    python = environment(folder, suite.source, *suite.requirements)
    pip = ["uv", "tool", "run", "--quiet", "pip"] if shutil.which("uv") else [sys.executable, "-m", "pip"]
    download = ["download", "-q", "-q", "--no-deps", "--no-binary=:all:", "-d", str(folder), suite.source]
    subprocess.run([*pip, *download], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (sources,) = (path for path in folder.iterdir() if (path / "PKG-INFO").exists())
    with ExitStack() as stack:
        if suite.redis:
            stack.enter_context(redis_server(folder, port=6379))
        plain = outcomes(python, sources, suite.arguments)
        ours = outcomes(python, sources, suite.arguments, OTELCTX_ENABLED="true")
    worse = sorted(
        test for test, outcome in ours.items() if outcome in ("FAILED", "ERROR") and plain.get(test) != outcome
    )
    worse += sorted(test for test in plain if plain[test] == "PASSED" and test not in ours)
    passed = [sum(outcome == "PASSED" for outcome in run.values()) for run in (plain, ours)]
    sys.stdout.write(f"{suite.source}: {passed[0]} of {len(plain)} pass without otelctx, {passed[1]} with it\n")
    for test in worse:
        sys.stdout.write(f"  only with otelctx: {test}\n")
    return len(worse)


def main(names: list[str]) -> int:
    """Compare the suites that are named, or all of them."""
    worse = 0
    for name in names or list(SUITES):
        with tempfile.TemporaryDirectory() as folder:
            worse += compare(name, Path(folder))
    return min(worse, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
