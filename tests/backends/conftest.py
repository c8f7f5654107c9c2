"""Real backends, each started on a free port: Prometheus, Alertmanager, Arize Phoenix. ``make backends``."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.debian import unpacked
from tests.environments import environment, wheel_of_checkout

STACK = Path(__file__).parents[2] / "examples" / "production" / "stack"
PATIENCE = 120.0  # seconds for anything to start or to arrive

Get = Callable[[str], Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.backends)
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def programs() -> Path:
    """The directory of Prometheus' and Alertmanager's programs, of a Debian that is new enough to take OTLP."""
    packages = ("prometheus", "promtool", "prometheus-alertmanager", "docker-compose")
    return unpacked(*packages, suite="sid") / "usr" / "bin"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of_checkout(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The interpreter of an environment that has otelctx and every exporter."""
    exporters = ("opentelemetry-exporter-otlp>=1.37,<2", "opentelemetry-exporter-prometheus>=0.58b0")
    return environment(tmp_path_factory.mktemp("application"), *exporters, wheel=wheel)


@pytest.fixture(scope="session")
def phoenix_python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The interpreter of an environment that has Phoenix."""
    return environment(tmp_path_factory.mktemp("phoenix"), "arize-phoenix==20.26.1", wheel=wheel)


@pytest.fixture(scope="session")
def phoenix(tmp_path_factory: pytest.TempPathFactory, phoenix_python: Path) -> Iterator[Phoenix]:
    """A Phoenix, served as its users do it."""
    phoenix = Phoenix(phoenix_python, tmp_path_factory.mktemp("phoenix-data"))
    with phoenix.running():
        yield phoenix


class Phoenix:
    """A Phoenix: where it takes spans, and what it says of them. Its ports are its own also while it does not run."""

    def __init__(self, python: Path, folder: Path) -> None:
        port, grpc = free_port(), free_port()
        self.http = f"http://127.0.0.1:{port}"
        self.grpc = f"http://127.0.0.1:{grpc}"
        self._command = [str(python), "-m", "phoenix.server.main", "serve"]
        self._environ = {
            "PHOENIX_WORKING_DIR": str(folder),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(grpc),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """For the length of the block. It may be run again: what it was told is on disk."""
        with server(self._command, f"{self.http}/healthz", self._environ):
            yield

    def spans(self, project: str = "default") -> list[dict[str, Any]]:
        """Every span of the project, as its API gives them."""
        found: list[dict[str, Any]] = get(f"{self.http}/v1/projects/{project}/spans?limit=1000")["data"]
        return found

    def sessions(self, project: str = "default") -> list[dict[str, Any]]:
        """The sessions that its session view shows, with the traces of each."""
        found: list[dict[str, Any]] = get(f"{self.http}/v1/projects/{project}/sessions")["data"]
        return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def get(url: str) -> Any:
    """What the server answers, read as JSON."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


def eventually(what: Callable[[], Any], why: str) -> Any:
    """What `what` gives as soon as that is true; the test fails with `why` where it does not become true in time."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if found := what():
                return found
        except OSError:  # it is not there yet
            pass
        if time.monotonic() > deadline:
            pytest.fail(f"{why}: not within {PATIENCE:.0f} s")
        time.sleep(0.05)


@contextmanager
def server(
    command: list[str], ready: str, variables: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[None]:
    """Run a server for the length of the block, from when the address `ready` answers; its log is shown if it fails.

    `log`: where the log is to be kept.
    """
    ours = ("OTELCTX_", "OTEL_", "PYTHON")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    with tempfile.TemporaryFile("w+") if log is None else log.open("w+") as written:
        process = subprocess.Popen(command, env={**environ, **(variables or {})}, stdout=written, stderr=written)

        def answers() -> bool:
            if process.poll() is not None:
                written.seek(0)
                pytest.fail(f"{command[0]} ended with {process.returncode}: {written.read()}")
            with urllib.request.urlopen(ready, timeout=5):
                return True

        try:
            eventually(answers, f"{command[0]} does not answer at {ready}")
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)


@contextmanager
def running(python: Path, program: str, variables: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program of this directory; it ends at the end of its input. Only `variables` tell it of otelctx."""
    ours = ("OTELCTX_", "OTEL_", "PYTHON")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    process = subprocess.Popen(
        [str(python), str(Path(__file__).with_name(program))],
        env={**environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
