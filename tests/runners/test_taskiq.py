"""taskiq alone: what `test_queues.py` does not say of all task queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runners.conftest import RunnerPython
from tests.runners.queues import TASKIQ
from tests.runners.world import NewWorld

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install the queue


@pytest.fixture(params=list(TASKIQ.versions))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python(version: str, runner_python: RunnerPython) -> Path:
    return runner_python(*TASKIQ.versions[version])


def test_a_task_that_is_no_coroutine_arrives_as_it_was_sent_and_leaves_nothing(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    world = TASKIQ.begin(new_world, python, redis, "tasks", AMBIENT="C")
    TASKIQ.send(world, python, "threaded")
    for key in "AB":
        (seen,) = world.wait(1, label=f"{key}, threaded")
        assert (seen["key"], seen["app"], seen["claim"]) == (key, key, "shed")
    nobody = [world.wait(1, label=f"threaded nobody{number}")[0] for number in range(3)]
    assert {line["app"] for line in nobody} == {None}
    assert len({line["key"] for line in nobody}) == 3


def test_without_otelctx_a_task_is_whose_has_started_the_worker_or_was_in_its_thread(
    new_world: NewWorld, version: str, python: Path, redis: str
) -> None:
    world = TASKIQ.begin(new_world, python, redis, "tasks", OTELCTX_ENABLED="", AMBIENT="C")
    TASKIQ.send(world, python, "one", "threaded")
    for label in ("A", "B", "nobody"):
        assert [line["app"] for line in world.wait(1, label=label)] == ["C"], label
    # Newer versions run a function in a copy of the context; older ones in what its thread of the pool has.
    (threaded,) = world.wait(1, label="A, threaded")
    assert threaded["app"] == (None if version == "lowest" else "C")


def test_on_a_broker_in_memory_a_task_is_its_callers_and_a_tick_is_nobodys(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    off = TASKIQ.world(new_world, redis, IN_PLACE="1", OTELCTX_ENABLED="")
    TASKIQ.send(off, python, "in_memory")
    assert {line["app"] for line in off.wait(2, label="tick")} == {"A"}
    world = TASKIQ.world(new_world, redis, IN_PLACE="1", TELEMETRY="1")
    TASKIQ.send(world, python, "in_memory")
    for label in ("in place, threaded", "after"):
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "none"), label
    ticks = world.wait(2, label="tick")
    assert len({tick["key"] for tick in ticks if tick["key"].startswith("cron:taskiq:ticked:")}) == 2
    assert {(tick["app"], tick["claim"]) for tick in ticks} == {(None, "shed")}
    assert not world.lines("alert")


def test_a_tick_of_a_scheduler_without_otelctx_is_a_run_of_a_cron_job(
    new_world: NewWorld, version: str, python: Path, redis: str
) -> None:
    world = TASKIQ.begin(new_world, python, redis, "tasks")
    TASKIQ.send(world, python, "tick", OTELCTX_ENABLED="")
    minted = "task:" if version == "lowest" else "cron:taskiq:ticked:"  # older messages do not say that they are due
    ticks = world.wait(2, label="tick")
    assert {tick["claim"] for tick in ticks} == {"shed"}
    assert len({tick["key"] for tick in ticks if tick["key"].startswith(minted)}) == 2
