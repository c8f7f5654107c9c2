"""RQ alone: what `test_queues.py` does not say of all task queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runners.conftest import RunnerPython
from tests.runners.queues import RQ
from tests.runners.world import NewWorld, World, worlds

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install the queue


@pytest.fixture(params=list(RQ.versions))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python(version: str, runner_python: RunnerPython) -> Path:
    return runner_python(*RQ.versions[version])


Shared = tuple[World, Path]

CASES = [(version, kind) for version in RQ.versions for kind in RQ.kinds[version]]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def shared(
    request: pytest.FixtureRequest, runner_python: RunnerPython, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    """A world with a ready worker, for each version and kind of worker."""
    version, kind = request.param
    python = runner_python(*RQ.versions[version])
    with worlds(tmp_path_factory.mktemp("shared")) as make:
        yield RQ.begin(make, python, redis, kind, TELEMETRY="1"), python


def test_a_jobs_metadata_are_the_applications_alone(shared: Shared) -> None:
    world, python = shared
    RQ.send(world, python, "own")
    (seen,) = world.wait(1, label="with metadata")
    assert (seen["key"], seen["meta"]) == ("A", {"mine": "A"})
    (by_name,) = world.wait(1, label="by name")
    assert (by_name["key"], by_name["app"], by_name["meta"]) == ("bound", None, {})


def test_a_retry_for_later_keeps_the_key_of_its_message(shared: Shared) -> None:
    world, python = shared
    RQ.send(world, python, "later")
    assert [(line["key"], line["app"]) for line in world.wait(2, label="retries later")] == [("A", "A")] * 2


def test_however_it_is_enqueued_and_whatever_comes_of_it_a_job_is_whose_it_was(shared: Shared) -> None:
    world, python = shared
    RQ.send(world, python, "everything")
    labels = ["enqueue_in", "enqueue_at", "many 1", "many 2", "first", "dependent", "succeeds", "on_success"]
    for label in [*labels, "fails", "on_failure"]:
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "shed"), label
    (seen,) = world.wait(1, label="created and enqueued by B")
    assert (seen["key"], seen["app"]) == ("B", "B")


def test_a_job_that_is_put_back_is_whose_it_was(shared: Shared) -> None:
    world, python = shared
    RQ.send(world, python, "requeue")
    assert [line["key"] for line in world.wait(2, label="requeued")] == ["A", "A"]


def test_an_attempt_that_a_job_asks_for_keeps_the_key_of_its_message_and_is_granted_a_claim_of_its_own(
    new_world: NewWorld, runner_python: RunnerPython, redis: str
) -> None:
    python = runner_python(*RQ.versions["highest"])
    world = RQ.begin(new_world, python, redis, "simple", AMBIENT="C")
    RQ.send(world, python, "asks")
    attempts = world.wait(3, label="asks again")
    assert [(line["key"], line["app"], line["attempt"]) for line in attempts] == [("A", "A", n) for n in "123"]
    RQ.send(world, python, "asks", OTELCTX_ENABLED="", LABELS="old ")
    (key,) = {line["key"] for line in world.wait(3, label="old asks again")}
    assert key.startswith("task:rq:rq_jobs.asks_again:")


def test_a_job_whose_process_is_gone_keeps_its_key_and_is_granted_a_claim_of_its_own(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    world = RQ.begin(new_world, python, redis, "fork", AMBIENT="C", TELEMETRY="1")
    RQ.send(world, python, "dies")
    attempts = world.wait(2, label="dies")
    assert [(line["key"], line["app"], line["attempt"]) for line in attempts] == [("A", "A", n) for n in "12"]
    assert not world.lines("alert")


def test_a_callback_that_the_worker_itself_calls_is_its_jobs(new_world: NewWorld, python: Path, redis: str) -> None:
    world = RQ.begin(new_world, python, redis, "fork")
    RQ.send(world, python, "stop")
    for label in ("hangs", "on_stopped"):
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"]) == ("A", "A"), label


def test_jobs_of_a_worker_that_starts_an_interpreter_for_each_arrive_as_they_were_enqueued(
    new_world: NewWorld, runner_python: RunnerPython, redis: str
) -> None:
    python = runner_python(*RQ.versions["highest"])
    world = RQ.begin(new_world, python, redis, "spawn", AMBIENT="C")
    RQ.send(world, python, "one", "retry")
    for key in "AB":
        (seen,) = world.wait(1, label=key)
        assert (seen["key"], seen["app"], seen["claim"]) == (key, key, "shed")
    (nobody,) = world.wait(1, label="nobody")
    assert nobody["key"].startswith("task:rq:rq_jobs.seen:")
    assert nobody["app"] is None
    for label in ("retries", "binds and retries"):
        assert [(line["key"], line["app"]) for line in world.wait(3, label=label)] == [("A", "A")] * 3, label
    serves = world.wait(1, label="serves")
    assert {(line["key"], line["app"], line["others"]) for line in serves} == {(None, None, None)}
