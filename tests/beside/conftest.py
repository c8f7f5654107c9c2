"""Other instrumentations and green threads, in one process with otelctx: an environment of its own (`make beside`).

Each program here is run in a fresh process of the interpreter that runs the tests, and reports in JSON.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.installed import clean_environ

HERE = Path(__file__).parent
PATIENCE = 50.0  # seconds; a program takes one or two

collect_ignore_glob = [] if importlib.util.find_spec("gevent") else ["test_*.py"]

Run: TypeAlias = Callable[..., Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("beside")


@pytest.fixture(scope="session")
def run_program() -> Run:
    """Run a program of this directory with arguments; gives its report, and what it wrote to its error stream."""

    def run(program: str, *arguments: str, **variables: str) -> Any:
        # eventlet leaves locks alone, and says nothing, where it sees that a test runs.
        environ = {name: value for name, value in clean_environ(**variables).items() if not name.startswith("PYTEST")}
        done = subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", str(HERE / program), *arguments],
            cwd=HERE.parents[1],
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run
