"""Dramatiq alone: what `test_queues.py` does not say of all task queues.

Async actors, which newer versions have, run on one event loop of their process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runners.conftest import RunnerPython
from tests.runners.queues import DRAMATIQ
from tests.runners.world import NewWorld, World

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install the queue


@pytest.fixture(params=list(DRAMATIQ.versions))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python(version: str, runner_python: RunnerPython) -> Path:
    return runner_python(*DRAMATIQ.versions[version])


def in_memory(new_world: NewWorld, python: Path, redis: str, **variables: str) -> World:
    """What is seen where worker and senders are one process."""
    world = DRAMATIQ.world(new_world, redis, STUB="1", TELEMETRY="1", **variables)
    DRAMATIQ.send(world, python, "in_memory")
    return world


def test_however_it_is_sent_and_whatever_comes_of_it_a_message_is_whose_it_was(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    world = DRAMATIQ.begin(new_world, python, redis, "threads", AMBIENT="C")
    DRAMATIQ.send(world, python, "own", "everything")
    labels = ["delayed", "pipeline", "pipeline:followed", "fails", "fails:on_failure"]
    for label in [*labels, "succeeds", "succeeds:on_success", "skipped", "after it was skipped"]:
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "shed"), label
    assert sorted(seen["key"] for seen in world.wait(2, label="sent twice")) == ["A", "B"]
    (seen,) = world.wait(1, label="with an option")
    assert (seen["key"], seen["mine"]) == ("B", "B")
    attempts = world.wait(3, label="retries later")
    assert [(line["key"], line["app"], line["retries"]) for line in attempts] == [("A", "A", n) for n in range(3)]


def test_async_actors_arrive_as_they_were_sent_and_leave_nothing(
    new_world: NewWorld, runner_python: RunnerPython, redis: str
) -> None:
    python = runner_python(*DRAMATIQ.versions["highest"])
    world = DRAMATIQ.begin(new_world, python, redis, "threads", AMBIENT="C")
    DRAMATIQ.send(world, python, "awaited")
    nobody = [world.wait(1, label=f"nobody waits {number}")[0] for number in range(3)]
    assert {line["app"] for line in nobody} == {None}
    assert len({line["key"] for line in nobody}) == 3
    assert [(line["key"], line["app"]) for line in world.wait(3, label="waits and retries")] == [("A", "A")] * 3


def test_without_otelctx_an_actor_sees_what_another_one_has_left_and_nothing_of_whose_has_sent_it(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    world = in_memory(new_world, python, redis, OTELCTX_ENABLED="")
    assert [line["app"] for line in world.lines("sighting", label="last")] == ["tainted"]
    assert {line["app"] for label in "AB" for line in world.lines("sighting", label=label)} <= {None, "tainted"}


def test_a_worker_in_its_senders_process_is_nobodys_and_what_it_runs_is_whose_has_sent_it(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    world = in_memory(new_world, python, redis)
    for label, number in {"A": 1, "delayed": 1, "retries": 3, "binds and retries": 3, "retries later": 3}.items():
        seen = [(line["key"], line["app"]) for line in world.lines("sighting", label=label)]
        assert seen == [("A", "A")] * number, label
    for label in ("nobody", "nobody0", "nobody1", "nobody2", "last"):
        (nobody,) = world.lines("sighting", label=label)
        assert nobody["key"].startswith("task:dramatiq:")
        assert nobody["app"] is None
    threads = world.lines("sighting", label="serves")
    assert {(line["key"], line["app"], line["others"]) for line in threads} == {(None, None, None)}
    assert not world.lines("alert")


def test_in_observe_nothing_is_carried_and_alerts_say_so(new_world: NewWorld, python: Path, redis: str) -> None:
    world = in_memory(new_world, python, redis, OTELCTX_MODE="observe")
    assert [line["app"] for line in world.lines("sighting", label="last")] == ["tainted"]
    assert "A" not in {line["key"] for line in world.lines("sighting", label="retries")}
    reasons = {(alert["reason"], alert["action"]) for alert in world.lines("alert")}
    assert {("lost", "observed"), ("leaked", "observed")} <= reasons
