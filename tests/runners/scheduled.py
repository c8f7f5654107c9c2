"""Programs of schedulers, each in an environment that has its scheduler, and what they report.

`programs/seen.py` is what every program has: it binds sessions as an application does, and writes down what jobs see.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.environments import environment, wheel_of_checkout

PROGRAMS = Path(__file__).parent / "programs"
INSTRUMENTATION = "opentelemetry-instrumentation-threading>=0.58b0"
TIMEOUT = 50.0

OFF = {"OTELCTX_ENABLED": "false"}
ON = {"OTELCTX_ENABLED": "true"}
OBSERVE = {**ON, "OTELCTX_MODE": "observe"}
OPENTELEMETRY = {**OFF, "INSTRUMENT_OPENTELEMETRY": "yes"}
BOTH = {**ON, "INSTRUMENT_OPENTELEMETRY": "yes"}

CONFIG = """
[keys.session]
sources = [{ contextvar = "seen:APP_KEY" }]
"""


class Report(NamedTuple):
    """What a program has seen."""

    seen: list[dict[str, Any]]
    spans: list[dict[str, Any]]
    alerts: list[str]
    errors: dict[str, int]

    def of(self, label: str) -> list[dict[str, Any]]:
        """The sightings of one job, in the order in which they were made."""
        return [sighting for sighting in self.seen if sighting["label"] == label]

    def keys(self, label: str) -> list[str]:
        """The keys of one job's runs."""
        return [sighting["key"] for sighting in self.of(label)]

    def app(self, label: str) -> list[str | None]:
        """What the application's own variable was in one job's runs."""
        return [sighting["app"] for sighting in self.of(label)]

    def assert_minted(self, label: str, prefix: str) -> None:
        """Each run has a key of its own, and nothing of anybody's."""
        runs = self.of(label)
        assert runs
        assert len({run["key"] for run in runs}) == len(runs)
        for run in runs:
            assert run["key"].startswith(prefix), run
            assert (run["app"], run["baggage"], run["claim"]) == (None, None, "shed"), run

    def assert_inherited(self, label: str, session: str) -> None:
        """Each run is the session's."""
        runs = self.of(label)
        assert runs
        for run in runs:
            assert (run["key"], run["app"], run["baggage"], run["claim"]) == (session, session, session, "shed"), run


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="otelctx-schedulers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _wheel() -> Path:
    return wheel_of_checkout(_folder())


@cache
def python_with(*requirements: str) -> Path:
    """The interpreter of an environment that has these, OpenTelemetry's instrumentation of threads, and otelctx."""
    folder = Path(tempfile.mkdtemp(dir=_folder()))
    return environment(folder, *requirements, INSTRUMENTATION, wheel=_wheel())


def run(requirements: tuple[str, ...], program: str, *arguments: str, **variables: str) -> Report:
    """Run a program of `programs/` with nothing of our own environment but `variables`; the same one is run once."""
    return _run(requirements, program, arguments, frozenset(variables.items()))


@cache
def _run(
    requirements: tuple[str, ...], program: str, arguments: tuple[str, ...], variables: frozenset[tuple[str, str]]
) -> Report:
    config = _folder() / "otelctx.toml"
    config.write_text(CONFIG)
    kept = ("OTELCTX_", "OTEL_", "PYTHON", "VIRTUAL_ENV")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(kept)}
    done = subprocess.run(
        [str(python_with(*requirements)), "-W", "ignore", str(PROGRAMS / program), *arguments],
        env={**environ, "OTELCTX_CONFIG": str(config), **dict(variables)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-8000:]
    return Report(**json.loads(done.stdout.splitlines()[-1]))
