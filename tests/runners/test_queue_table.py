"""The table of task queues in docs/task-queues.md: each of its cells is what a task sees here."""

from __future__ import annotations

import pytest

from tests.environments import CHECKOUT
from tests.runners.conftest import RunnerPython
from tests.runners.queues import ARQ, CELERY, DRAMATIQ, HUEY, RQ, TASKIQ, TaskQueue
from tests.runners.world import Line, NewWorld

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]

Column = dict[str, str]
COLUMNS: dict[str, Column] = {
    "without": {"OTELCTX_ENABLED": ""},
    "OpenTelemetry": {"OTELCTX_ENABLED": "", "THEIRS": "1", "TELEMETRY": "1"},
    "otelctx": {"OTELCTX_ENABLED": "true"},
}
ROWS = {"under A": 1, "under nothing": 1, "retry": 2}


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


# With the worker that most leaves something to the next task, and what it is started with.
QUEUES: dict[str, tuple[TaskQueue, str, Column]] = {
    "Celery": (CELERY, "prefork", {}),
    "RQ": (RQ, "simple", {}),
    "Huey": (HUEY, "thread", {"AMBIENT": "A"}),
    "Dramatiq": (DRAMATIQ, "threads", {}),
    "arq": (ARQ, "tasks", {"AMBIENT": "C", "TABLE": "1"}),
    "taskiq": (TASKIQ, "tasks", {"AMBIENT": "C"}),
}


@pytest.mark.parametrize("column", list(COLUMNS))
@pytest.mark.parametrize("name", list(QUEUES))
def test_the_table_of_queues_says_what_is_seen(
    name: str, column: str, new_world: NewWorld, runner_python: RunnerPython, redis: str
) -> None:
    queue, kind, variables = QUEUES[name]
    if column == "OpenTelemetry" and queue is not CELERY:
        assert set(written(name, column).values()) == {"none"}
        return
    python = runner_python(*queue.versions["highest"])
    world = queue.begin(new_world, python, redis, kind, TICK="0.5", **variables, **COLUMNS[column])
    queue.send(world, python, "table")
    rows = written(name, column)
    seen = {row: cell(world.wait(number, label=row)[-1], column) for row, number in ROWS.items() if row in rows}
    if "tick" in rows:  # Dramatiq has none
        command = queue.scheduler(python, "highest")
        if command is not None:
            world.start(*command, AMBIENT="A")
        before = len(world.lines("sighting", label="tick"))  # after B's task, like the others
        seen["tick"] = cell(world.wait(before + 2, label="tick")[-1], column)
    assert seen == rows
    assert seen
