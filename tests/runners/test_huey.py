"""Huey alone: what `test_queues.py` does not say of all task queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runners.conftest import RunnerPython
from tests.runners.queues import HUEY, ON
from tests.runners.world import NewWorld, World, worlds

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install the queue


@pytest.fixture(params=list(HUEY.versions))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python(version: str, runner_python: RunnerPython) -> Path:
    return runner_python(*HUEY.versions[version])


Shared = tuple[World, Path]

CASES = [(version, kind) for version in HUEY.versions for kind in HUEY.kinds[version]]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def shared(
    request: pytest.FixtureRequest, runner_python: RunnerPython, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    """A world with a ready consumer, for each version and kind of worker."""
    version, kind = request.param
    python = runner_python(*HUEY.versions[version])
    with worlds(tmp_path_factory.mktemp("shared")) as make:
        yield HUEY.begin(make, python, redis, kind, TELEMETRY="1"), python


def test_however_it_is_enqueued_and_whatever_comes_of_it_a_task_is_whose_it_was(shared: Shared) -> None:
    world, python = shared
    HUEY.send(world, python, "everything", "later")
    once = ["scheduled", "fails", "mapped 1", "mapped 2", "resource", "with resource"]
    for label, number in {**dict.fromkeys(once, 1), "fails": 2, "pipeline 1": 3, "retries later": 3}.items():
        for seen in world.wait(number, label=label):
            assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "shed"), label


def test_a_periodic_task_that_somebody_runs_out_of_turn_is_nobodys(shared: Shared) -> None:
    world, python = shared
    HUEY.send(world, python, "now")
    first, again = world.wait(2, label="tick")
    assert first["key"] == again["key"]
    assert first["key"].startswith("cron:huey:huey_app.ticked:")
    assert (first["app"], first["claim"]) == (None, "shed")
    (after,) = world.wait(1, label="after")
    assert (after["key"], after["app"]) == ("A", "A")


def test_in_immediate_mode_a_periodic_task_is_nobodys(new_world: NewWorld, python: Path, redis: str) -> None:
    world = HUEY.world(new_world, redis, IN_PLACE="1")
    HUEY.send(world, python, "immediate")
    (after,) = world.wait(1, label="after")
    assert (after["key"], after["app"]) == ("A", "A")
    ticks = world.wait(2, label="tick")
    assert len({tick["key"] for tick in ticks}) == 1
    assert ticks[0]["key"].startswith("cron:huey:huey_app.ticked:")
    assert {(tick["app"], tick["claim"]) for tick in ticks} == {(None, "shed")}


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_the_retries_of_a_tick_keep_its_key(kind: str, new_world: NewWorld, python: Path, redis: str) -> None:
    world = HUEY.begin(new_world, python, redis, kind, TELEMETRY="1", AMBIENT="A", TICK="1")
    ticks = world.wait(4, label="tick")
    first = {tick["id"]: tick["key"] for tick in ticks if tick["left"] == 1}
    again = {tick["id"]: tick["key"] for tick in ticks if tick["left"] == 0}
    assert len(set(first.values())) == len(first)
    assert again.items() <= first.items()
    assert again
    assert all(key.startswith("cron:huey:huey_app.ticked:") for key in first.values())


@pytest.mark.parametrize("serializer", ["signed", "gzip", "zlib"])
def test_a_carrier_is_inside_of_what_is_compressed_and_signed(
    serializer: str, new_world: NewWorld, python: Path, redis: str
) -> None:
    world = HUEY.begin(new_world, python, redis, "thread", SERIALIZER=serializer)
    HUEY.send(world, python, "one")
    HUEY.send(world, python, "one", OTELCTX_ENABLED="", LABELS="old ")
    assert {line["key"] for line in world.wait(1, label="A")} == {"A"}
    (seen,) = world.wait(1, label="old A")
    assert seen["key"].startswith("task:")
    old = HUEY.begin(new_world, python, redis, "thread", OTELCTX_ENABLED="", SERIALIZER=serializer)
    HUEY.send(old, python, "one", **ON)
    assert {line["key"] for line in old.wait(1, label="A")} == {None}
