"""``opentelemetry-instrument`` with several instrumentors, of which otelctx is one, by its entry point.

Entry points come in the order in which their distributions are found on the path. A directory that comes first on it,
with the metadata of some of them once more, makes those the first.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from tests.beside.conftest import HERE, PATIENCE
from tests.beside.test_side_by_side import KEPT
from tests.installed import clean_environ

DISTRIBUTIONS = {
    "asyncio": "opentelemetry-instrumentation-asyncio",
    "logging": "opentelemetry-instrumentation-logging",
    "threading": "opentelemetry-instrumentation-threading",
    "otelctx": "otelctx",
}
OTHERS = ("asyncio", "logging", "threading")
FIRST = {"otelctx": ("otelctx",), "the others": OTHERS}

pytestmark = [
    pytest.mark.parametrize("first", FIRST),
    pytest.mark.parametrize("mode", ["repair", "observe", "enforce"]),
]


def run(folder: Path, first: tuple[str, ...], mode: str, disabled: tuple[str, ...] = ()) -> Any:
    for name in first:
        metadata: Any = distribution(DISTRIBUTIONS[name])
        shutil.copytree(metadata._path, folder / metadata._path.name)
    settings = folder / "otelctx.toml"
    settings.write_text('[keys.session]\nsources = [{ contextvar = "greenlet_program:KEY" }]\n')
    done = subprocess.run(
        [Path(sys.executable).with_name("opentelemetry-instrument"), sys.executable, HERE / "instrumented_program.py"],
        cwd=HERE.parents[1],
        env=clean_environ(
            PYTHONPATH=str(folder),
            OTELCTX_CONFIG=str(settings),
            OTELCTX_MODE=mode,
            OTEL_TRACES_EXPORTER="none",
            OTEL_METRICS_EXPORTER="none",
            OTEL_LOGS_EXPORTER="none",
            OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=",".join(disabled),
        ),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    return {}


@pytest.fixture
def told(reports: dict[tuple[str, str], Any], tmp_path: Path, first: str, mode: str) -> Any:
    if (first, mode) not in reports:
        reports[first, mode] = run(tmp_path / "first", FIRST[first], mode)
    return reports[first, mode]


@pytest.fixture
def alone(reports: dict[tuple[str, str], Any], tmp_path: Path, mode: str) -> Any:
    """The same program with no instrumentor but otelctx's."""
    if ("alone", mode) not in reports:
        reports["alone", mode] = run(tmp_path / "alone", ("otelctx",), mode, OTHERS)
    return reports["alone", mode]


def test_all_of_them_are_on_in_this_order(told: Any, first: str) -> None:
    order = [name for name in told["loaded"] if name in DISTRIBUTIONS]
    assert sorted(order) == sorted(DISTRIBUTIONS)
    assert set(order[: len(FIRST[first])]) == set(FIRST[first])
    assert told["on"] == ["AsyncioInstrumentor", "LoggingInstrumentor", "ThreadingInstrumentor"]


def test_workers_see_key_span_and_baggage(told: Any, mode: str) -> None:
    if mode != "observe":
        assert told["seen"] == {hop: [["A"] * 4, ["B"] * 4, [None, None, None, "none"]] for hop in told["seen"]}
        return
    for hop, (one, other, nobody) in told["seen"].items():
        # The variable is lost where it is lost without otelctx. OpenTelemetry's own instrumentor carries its Context.
        assert [one[0], other[0], nobody[0]] == (["A", "B", None] if hop in KEPT else [None] * 3)


def test_nothing_is_done_counted_exported_or_told_twice(told: Any, alone: Any) -> None:
    assert alone["on"] == []
    for what in ("spans", "hops", "alerts", "errors"):
        assert told[what] == alone[what], what
    assert len(told["records"]) == len(alone["records"]) == len(told["alerts"])
