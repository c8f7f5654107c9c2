"""arq alone: what `test_queues.py` does not say of all task queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runners.conftest import RunnerPython
from tests.runners.queues import ARQ, ON
from tests.runners.world import NewWorld

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install the queue


@pytest.fixture(params=list(ARQ.versions))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python(version: str, runner_python: RunnerPython) -> Path:
    return runner_python(*ARQ.versions[version])


def test_hooks_around_a_job_are_the_jobs_and_whatever_enqueues_it_it_is_whose_turn_it_was(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    world = ARQ.begin(new_world, python, redis, "tasks", AMBIENT="C")
    ARQ.send(world, python, "own")
    for label in ("by its id", "from a task"):
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "shed"), label
    for label in ("job starts", "job ends"):
        (seen,) = world.wait(1, label=label, id="its id")
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "shed"), label
    assert [(line["key"], line["app"]) for line in world.wait(3, label="retries later")] == [("A", "A")] * 3


def test_without_otelctx_each_job_is_whose_has_started_the_worker(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    world = ARQ.begin(new_world, python, redis, "tasks", OTELCTX_ENABLED="", AMBIENT="C", TICK="1")
    ARQ.send(world, python, "one")
    apps = {line["app"] for label in ("A", "B", "nobody", "tick") for line in world.wait(1, label=label)}
    assert apps == {"left at the start"}
    assert {line["app"] for line in world.lines("sighting", label="ready")} == {"C"}


def test_a_cron_job_has_a_key_of_its_own_whoever_enqueues_it(new_world: NewWorld, python: Path, redis: str) -> None:
    world = ARQ.begin(new_world, python, redis, "tasks", TICK="1", TELEMETRY="1")
    ARQ.send(world, python, "now")
    ARQ.send(world, python, "now", OTELCTX_ENABLED="")
    world.wait(1, label="tick", id="by hand, True")
    world.wait(1, label="tick", id="by hand, False")
    ticks = world.wait(4, label="tick")
    assert len({tick["key"] for tick in ticks}) == len(ticks)
    assert all(tick["key"].startswith("cron:arq:ticked:") for tick in ticks)
    assert {(tick["app"], tick["claim"]) for tick in ticks} == {(None, "shed")}
    renamed = world.wait(2, label="tick by another name")
    assert len({tick["key"] for tick in renamed if tick["key"].startswith("cron:arq:nightly:")}) == len(renamed)
    assert not world.lines("alert")


def test_a_serializer_of_the_applications_own_takes_a_carrier_along(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    old_worker = ARQ.begin(new_world, python, redis, "tasks", OTELCTX_ENABLED="", SERIALIZER="json")
    ARQ.send(old_worker, python, "one", **ON)
    assert {line["key"] for line in old_worker.wait(1, label="A")} == {None}
    world = ARQ.begin(new_world, python, redis, "tasks", SERIALIZER="json")
    ARQ.send(world, python, "one", OTELCTX_ENABLED="")
    (seen,) = world.wait(1, label="A")
    assert seen["key"].startswith("task:")
    ARQ.send(world, python, "taint")
    assert {line["key"] for line in world.wait(1, label="A0")} == {"A"}


def test_a_serializer_that_takes_arqs_own_entries_only_is_given_those(
    new_world: NewWorld, runner_python: RunnerPython, redis: str
) -> None:
    python = runner_python(*ARQ.versions["highest"])
    world = ARQ.begin(new_world, python, redis, "tasks", SERIALIZER="strict")
    ARQ.send(world, python, "one")
    (seen,) = world.wait(1, label="A")
    assert seen["key"].startswith("task:arq:seen:")
