"""Runners' own test suites, from their source distributions, with otelctx and without: no new failures.

``python -m tests.runners.suites [name …]`` (``make runner-suites``). A suite runs twice in one environment: as its
authors run it, and with ``OTELCTX_ENABLED=true``. What comes out otherwise is run once more by itself, both ways, since
many of these tests wait for a second and no longer. What never comes out with otelctx as it does without, and does not
pass, is otelctx's doing.

What cannot run here: whatever wants RabbitMQ, memcached, ZooKeeper, MongoDB, a cloud or TLS (the same tests fail, or
are skipped, on both sides). A suite with a Redis server has it at Redis's usual port, which its tests count on.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tests.environments import environment
from tests.runners.redis_server import redis_server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT = 1800.0  # seconds, for each run


class Suite(NamedTuple):
    """A runner's own tests."""

    source: str
    """Its source distribution, as a requirement."""
    requirements: tuple[str, ...]
    """What its tests need."""
    tests: tuple[str, ...]
    """The paths of what is run."""
    options: tuple[str, ...] = ()
    """What else pytest is given."""
    redis: bool = False
    """Whether they want a Redis server at its usual port, 6379; it has to be free."""
    lent: Mapping[str, str] = MappingProxyType({})
    """Files that its tests want and the source distribution does not have: their paths there, and our
    programs (an empty file, where it is none)."""
    eased: tuple[tuple[str, str, str], ...] = ()
    """What is too tight for a busy machine, on both sides: in which file, what it says there, and what it is to say."""


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
        ("tests",),
        ("--ignore=tests/test_jobstores.py",),  # which wants servers
        # A process that is spawned has a second to import everything: most of that goes by without otelctx.
        eased=(
            ("tests/conftest.py", '"misfire_grace_time": 1,', '"misfire_grace_time": 20,'),
            ("tests/test_executors.py", "misfire_grace_time=1)", "misfire_grace_time=20)"),
        ),
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
    "huey": Suite("huey==3.5.4", ("pytest", "pytest-timeout"), ("huey/tests",), ("--timeout=120",)),
    "rq": Suite(
        "rq==3.0.0",
        ("pytest", "pytest-timeout", "psutil", "sentry-sdk"),
        ("tests",),
        (
            "--timeout=120",
            "--deselect=tests/test_connection.py",  # which wants TLS
            # It lists the fields of a job's hash, where one of ours is.
            "--deselect=tests/test_job.py::TestJob::test_persistence_of_typical_jobs",
        ),
        redis=True,
    ),
    "dramatiq": Suite(
        "dramatiq==2.2.1",
        ("pytest", "pytest-timeout", "dramatiq[redis,rabbitmq,watch]"),
        ("tests",),
        ("--timeout=120", "--ignore=tests/test_rabbitmq.py"),
        redis=True,
        lent={
            "tests/__init__.py": "",
            "tests/conftest.py": "dramatiq_fixtures.py",
            "tests/common.py": "dramatiq_fixtures.py",
        },
    ),
    "celery": Suite(
        "celery==5.7.0",
        (
            "pytest",
            "pytest-celery",
            "pytest-click",
            "pytest-order",
            "pytest-subtests",
            "pytest-timeout",
            "boto3",
            "freezegun",
            "gevent",
            "moto",
            "msgpack",
            "pydantic",
            "pyyaml",
            "redis",
            "sqlalchemy",
        ),
        ("t/unit",),
        ("--timeout=120",),
    ),
    "arq": Suite(
        "arq==0.28.0",
        (
            "pytest",
            "pytest-asyncio<1",
            "pytest-mock",
            "pytest-timeout",
            "dirty-equals",
            "msgpack",
            "pydantic",
            "pytz",
            "watchfiles",
        ),
        ("tests",),
        ("-o", "filterwarnings=default"),  # it calls what its own redis deprecates
        redis=True,
        lent={"testcontainers/redis.py": "arq_containers.py"},
    ),
    "taskiq": Suite(
        "taskiq==0.13.0",
        ("pytest", "freezegun", "polyfactory", "opentelemetry-test-utils", "pydantic", "orjson", "msgpack", "cbor2"),
        ("tests",),
    ),
    "aiocron": Suite(
        "aiocron==2.1", ("pytest", "pytest-xdist"), ("tests",), ("-n9",)
    ),  # each waits for a minute to begin
    "python-telegram-bot": Suite(
        "python-telegram-bot==22.8",
        ("pytest", "pytest-asyncio==0.21.2", "pytest<9", "python-telegram-bot[all]", "flaky", "pytz"),
        ("tests/ext/test_jobqueue.py",),
    ),
    "discord.py": Suite("discord.py==2.7.1", ("pytest", "pytest-asyncio"), ("tests/test_ext_tasks.py",)),
}


def outcomes(python: Path, folder: Path, arguments: Sequence[str], **variables: str) -> dict[str, str]:
    """Each test's outcome, by its name; a skipped one has none."""
    kept = ("OTELCTX_", "OTEL_", "PYTHON", "VIRTUAL_ENV")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(kept)}
    environ["PATH"] = os.pathsep.join((str(python.parent), environ["PATH"]))  # dramatiq executes itself anew, by name
    command = [str(python), "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts="]
    done = subprocess.run(
        [*command, "--continue-on-collection-errors", *arguments],
        cwd=folder,
        env={**environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout[-4000:])
    _, _, summary = done.stdout.rpartition("short test summary info")
    lines = re.findall(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS) (\S.*?)(?: - .*)?$", summary, re.MULTILINE)
    return {name: outcome for outcome, name in lines}


def compare(name: str, folder: Path) -> int:
    """Run a suite both ways, say what came of it, and return how many tests fail with otelctx only."""
    suite = SUITES[name]
    python = environment(folder, suite.source, *suite.requirements)
    sources = sources_of(suite, folder)

    def run(tests: Sequence[str], **variables: str) -> tuple[dict[str, str], str]:
        begin = time.monotonic()
        run = outcomes(python, sources, (*suite.options, *tests), **variables)
        passed = sum(outcome == "PASSED" for outcome in run.values())
        return run, f"{passed} of {len(run)} pass ({time.monotonic() - begin:.0f} s)"

    with ExitStack() as stack:
        if suite.redis:
            stack.enter_context(redis_server(folder, port=6379))
        plain, said = run(suite.tests)
        ours, with_it = run(suite.tests, OTELCTX_ENABLED="true")
        print(f"{suite.source}: {said} without otelctx, {with_it} with it", flush=True)
        differing = sorted(test for test in plain.keys() | ours.keys() if plain.get(test) != ours.get(test))
        if not differing:
            return 0
        plain_again, _ = run(differing)
        ours_again, _ = run(differing, OTELCTX_ENABLED="true")
    worse = 0
    for test in differing:
        off = [str(run.get(test)) for run in (plain, plain_again)]
        on = [str(run.get(test)) for run in (ours, ours_again)]
        is_worse = {*on}.isdisjoint({*off, "PASSED"})
        worse += is_worse
        verdict = "only with otelctx" if is_worse else "not always"
        print(f"  {verdict}: {test}: {', '.join(off)} without, {', '.join(on)} with it", flush=True)
    return worse


def sources_of(suite: Suite, folder: Path) -> Path:
    """Unpack its source distribution in `folder`, and put what it lacks beside it."""
    pip = ["uv", "tool", "run", "--quiet", "pip"] if shutil.which("uv") else [sys.executable, "-m", "pip"]
    download = ["download", "-q", "-q", "--no-deps", "--no-binary=:all:", "-d", str(folder), suite.source]
    subprocess.run([*pip, *download], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (sources,) = (path for path in folder.iterdir() if (path / "PKG-INFO").exists())
    for path, program in suite.lent.items():
        (sources / path).parent.mkdir(exist_ok=True)
        (sources / path).write_bytes((PROGRAMS / program).read_bytes() if program else b"")
    for path, tight, ample in suite.eased:
        text = (sources / path).read_text()
        if tight not in text:
            raise SystemExit(f"{suite.source}: {path} has no {tight}")
        (sources / path).write_text(text.replace(tight, ample))
    return sources


def main(names: list[str]) -> int:
    """Compare the suites that are named, or all of them."""
    worse = 0
    for name in names or list(SUITES):
        with tempfile.TemporaryDirectory() as folder:
            worse += compare(name, Path(folder))
    return min(worse, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
