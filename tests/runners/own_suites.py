"""Each runner's own tests, from its source distribution, without otelctx and with it: ``make runners-suites``.

``python -m tests.runners.own_suites [rq] [huey] [celery]`` says which tests fail with otelctx that pass without, and
ends with 1 if there are any. RQ's want a Redis server at its usual port, 6379, which is started if it is free.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.environments import environment
from tests.runners.redis_server import redis_server


class Suite(NamedTuple):
    """Where a runner's tests are, and what they need."""

    version: str
    requirements: tuple[str, ...]
    tests: tuple[str, ...]
    redis: bool = False


_PYTEST = ("pytest", "pytest-timeout")
_OF_CELERY = ("pytest-celery", "pytest-click", "pytest-order", "pytest-rerunfailures", "pytest-subtests")

SUITES = {
    "rq": Suite(
        "rq==3.0.0", (*_PYTEST, "psutil", "sentry-sdk"), ("tests", "--deselect=tests/test_connection.py"), True
    ),
    "huey": Suite("huey==3.5.4", _PYTEST, ("huey/tests",)),
    "celery": Suite(
        "celery[redis]==5.7.0",
        (*_PYTEST, *_OF_CELERY, "freezegun", "moto", "boto3", "pydantic"),
        ("t/unit/app", "t/unit/tasks", "t/unit/worker", "t/unit/concurrency", "t/unit/test_canvas.py"),
    ),
}


def failing(suite: Suite, python: Path, source: Path, enabled: str) -> set[str]:
    """Run a suite, and give the names of the tests that fail."""
    command = [str(python), "-m", "pytest", "-q", "-rfE", "--timeout=120", "-p", "no:cacheprovider", *suite.tests]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "PYTHON"))}
    done = subprocess.run(
        command,
        cwd=source,
        env={**environ, "OTELCTX_ENABLED": enabled},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    print(f"  OTELCTX_ENABLED={enabled}:", lines[-1] if lines else "nothing", flush=True)
    if done.returncode not in (0, 1):
        sys.exit(done.stdout[-5000:])
    return {line.split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))}


def compare(name: str, folder: Path) -> set[str]:
    """Run the suite of a runner twice, and give the tests that fail with otelctx only."""
    suite = SUITES[name]
    print(suite.version, flush=True)
    python = environment(folder, suite.version, "pip", *suite.requirements)
    requirement = suite.version.replace("[redis]", "")
    download = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", requirement]
    subprocess.run(download, cwd=folder, check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = folder.glob(f"{name}-*/")
    with ExitStack() as stack:
        if suite.redis:
            stack.enter_context(redis_server(folder, port=6379))
        without = failing(suite, python, source, "false")
        return failing(suite, python, source, "true") - without


if __name__ == "__main__":
    worse: set[str] = set()
    for chosen in sys.argv[1:] or list(SUITES):
        with tempfile.TemporaryDirectory() as directory:
            worse |= compare(chosen, Path(directory))
    print("\n".join(sorted(worse)) or "no test fails with otelctx that passes without")
    sys.exit(bool(worse))
