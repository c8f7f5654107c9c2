"""The table of task queues in docs/task-queues.md: each of its cells is what a task sees here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.environments import CHECKOUT
from tests.runners import test_arq, test_celery, test_dramatiq, test_huey, test_rq, test_taskiq
from tests.runners.conftest import RunnerPython
from tests.runners.world import PROGRAMS, Line, NewWorld, World

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]

Column = dict[str, str]
COLUMNS: dict[str, Column] = {
    "without": {"OTELCTX_ENABLED": ""},
    "OpenTelemetry": {"OTELCTX_ENABLED": "", "THEIRS": "1", "TELEMETRY": "1"},
    "otelctx": {"OTELCTX_ENABLED": "true"},
}
ROWS = {"under A": 1, "under nothing": 1, "retry": 2, "tick": 2}


def written(runner: str, column: str) -> dict[str, str]:
    """What the table in the documentation says of a runner."""
    lines = (CHECKOUT / "docs" / "task-queues.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("|")]
    (header,) = [row for row in rows if row[:2] == ["queue", "task"]]
    place = header.index(column)
    return {row[1]: row[place].strip("`") for row in rows if row[0] == runner}


def cell(line: Line, column: str) -> str:
    """What is seen: OpenTelemetry's baggage / the application's variable."""
    key = line["key"] if column == "otelctx" else line["others"]
    return "/".join("–" if value is None else "minted" if ":" in value else value for value in (key, line["app"]))


def celery(new_world: NewWorld, runner_python: RunnerPython, redis: str, variables: Column) -> Iterator[World]:
    python = runner_python(*test_celery.VERSIONS["highest"])
    world = test_celery.begin(new_world, python, redis, "prefork", "-c", "1", **variables)
    test_celery.send(world, python, "table")
    yield world
    beat: list[str | Path] = [python, "-m", "celery", "-A", "celery_app", "beat", "-s", world.folder / "schedule"]
    world.start(*beat, AMBIENT="A", EVERY="0.5")
    yield world


def rq(new_world: NewWorld, runner_python: RunnerPython, redis: str, variables: Column) -> Iterator[World]:
    python = runner_python(*test_rq.VERSIONS["highest"])
    world = test_rq.begin(new_world, python, redis, "simple", **variables)
    test_rq.send(world, python, "table")
    yield world
    world.start(python, PROGRAMS / "rq_worker.py", "cron", AMBIENT="A")
    yield world


def huey(new_world: NewWorld, runner_python: RunnerPython, redis: str, variables: Column) -> Iterator[World]:
    python = runner_python(*test_huey.VERSIONS["highest"])
    world = test_huey.begin(new_world, python, "thread", "tick", AMBIENT="A", **variables)
    test_huey.send(world, python, "table", AMBIENT="")
    yield world
    yield world


def dramatiq(new_world: NewWorld, runner_python: RunnerPython, redis: str, variables: Column) -> Iterator[World]:
    python = runner_python(*test_dramatiq.VERSIONS["highest"])
    world = test_dramatiq.begin(new_world, python, redis, **variables)
    test_dramatiq.send(world, python, "table")
    yield world


def arq(new_world: NewWorld, runner_python: RunnerPython, redis: str, variables: Column) -> Iterator[World]:
    python = runner_python(*test_arq.VERSIONS["highest"])
    world = test_arq.begin(new_world, python, redis, AMBIENT="C", TABLE="1", TICK="1", **variables)
    test_arq.send(world, python, "table", TICK="")
    yield world
    yield world


def taskiq(new_world: NewWorld, runner_python: RunnerPython, redis: str, variables: Column) -> Iterator[World]:
    python = runner_python(*test_taskiq.VERSIONS["highest"])
    world = test_taskiq.begin(new_world, python, redis, AMBIENT="C", **variables)
    test_taskiq.send(world, python, "table")
    yield world
    world.start(python, "-m", "taskiq", "scheduler", "taskiq_app:scheduler", AMBIENT="A", EVERY="1")
    yield world


NAMES = {celery: "Celery", rq: "RQ", huey: "Huey", dramatiq: "Dramatiq", arq: "arq", taskiq: "taskiq"}


@pytest.mark.parametrize("column", list(COLUMNS))
@pytest.mark.parametrize("runner", list(NAMES), ids=NAMES.get)
def test_the_table_of_queues_says_what_is_seen(
    runner: Callable[..., Iterator[World]], column: str, new_world: NewWorld, runner_python: RunnerPython, redis: str
) -> None:
    name = NAMES[runner]
    if column == "OpenTelemetry" and runner is not celery:
        assert set(written(name, column).values()) == {"none"}
        return
    worlds = runner(new_world, runner_python, redis, COLUMNS[column])
    seen: dict[str, str] = {}
    for row, number in ROWS.items():
        if row not in written(name, column):  # Dramatiq has no ticks
            continue
        if row in ("under A", "tick"):
            world = next(worlds)
        before = len(world.lines("sighting", label=row)) if row == "tick" else 0  # after B's task, like the others
        seen[row] = cell(world.wait(before + number, label=row)[-1], column)
    assert seen == written(name, column)
    assert seen
