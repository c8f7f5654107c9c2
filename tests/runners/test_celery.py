"""Celery alone: what `test_queues.py` does not say of all task queues."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.runners.conftest import RunnerPython
from tests.runners.queues import CELERY, ON
from tests.runners.world import PROGRAMS, NewWorld, World, worlds

TASKS = int(os.environ.get("OTELCTX_CELERY_TASKS", "300"))  # here: a test sees no variable of otelctx's

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install the queue


@pytest.fixture(params=list(CELERY.versions))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python(version: str, runner_python: RunnerPython) -> Path:
    return runner_python(*CELERY.versions[version])


Celery = Callable[..., World]
Shared = tuple[World, Path]

CASES = [(version, kind) for version in CELERY.versions for kind in CELERY.kinds[version]]


@pytest.fixture
def celery(new_world: NewWorld, python: Path, redis: str) -> Celery:
    """``celery(pool, *options, **variables)``: a world of this test's own with a ready worker; otelctx is on."""

    def start(pool: str = "prefork", *options: str, **variables: str) -> World:
        return CELERY.begin(new_world, python, redis, pool, *options, **variables)

    return start


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def shared(
    request: pytest.FixtureRequest, runner_python: RunnerPython, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    """A world with a ready worker, for each version and pool."""
    version, pool = request.param
    python = runner_python(*CELERY.versions[version])
    with worlds(tmp_path_factory.mktemp("shared")) as make:
        yield CELERY.begin(make, python, redis, pool, TELEMETRY="1"), python


def test_what_a_task_sends_or_calls_back_has_its_key_under_protocol_1(celery: Celery, python: Path) -> None:
    world = celery("prefork", TELEMETRY="1", PROTOCOL="1")
    _see_canvas(world, python, "1")


def test_what_a_task_sends_or_calls_back_has_its_key_in_every_pool(shared: Shared) -> None:
    _see_canvas(*shared, "2")


def _see_canvas(world: World, python: Path, protocol: str) -> None:
    CELERY.send(world, python, "canvas")
    once = ["body", "linked", "link", "failing", "link_error", "succeeding", "replaced", "replacement", "countdown"]
    once += ["failing:on_failure", "failing:after_return", "succeeding:on_success", "succeeding:after_return"]
    once += ["replaced in a turn", "spreads", "spreads:sent"]
    if protocol == "2":  # protocol 1 knows no chains
        once += ["chain 1", "chain 2", "chain 3", "stale 1", "stale 2"]
    for label, number in {"group": 2, "header": 2, **dict.fromkeys(once, 1)}.items():
        for seen in world.wait(number, label=label):
            assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "shed"), label
    (replacement,) = world.wait(1, label="replacement in a turn")
    assert replacement["key"] == "A.sub"
    assert not world.lines("alert")


def test_a_task_that_celery_retries_by_itself_keeps_the_key_of_its_message(shared: Shared) -> None:
    world, python = shared
    CELERY.send(world, python, "by_itself")
    assert [(line["key"], line["app"]) for line in world.wait(3, label="retries by itself")] == [("A", "A")] * 3
    (by_name,) = world.wait(1, label="by name")
    assert (by_name["key"], by_name["app"]) == ("bound", None)


def test_a_claim_is_not_granted_to_what_is_sent_for_later(shared: Shared) -> None:
    world, python = shared
    CELERY.send(world, python, "for_later")
    (seen,) = world.wait(1, label="claimed, for later")
    assert (seen["key"], seen["claim"]) == ("A", "shed")


def test_an_eager_task_inherits_from_its_caller(new_world: NewWorld, python: Path, redis: str) -> None:
    world = CELERY.world(new_world, redis)
    CELERY.send(world, python, "eager", IN_PLACE="1")
    for label in ("apply", "delay", "retried", "after"):
        for seen in world.wait(1, label=label):
            assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "none"), label


def test_a_message_that_is_delivered_again_has_its_key_and_so_has_what_is_done_for_a_lost_task(
    celery: Celery, python: Path
) -> None:
    world = celery("prefork")
    CELERY.send(world, python, "worker_lost")
    for label, number in {"redelivered": 2, "hangs": 1, "killed": 1}.items():
        seen = world.wait(number, label=label)
        assert {(line["key"], line["app"]) for line in seen} == {("A", "A")}, label
    for line in world.lines("sighting", label="hangs:on_failure"):  # newer versions call it, in the main process
        assert (line["key"], line["app"]) == ("A", "A")


def test_workers_and_senders_with_and_without_otelctx_read_each_other_under_protocol_1(
    celery: Celery, python: Path
) -> None:
    old_worker = celery("prefork", OTELCTX_ENABLED="", PROTOCOL="1")
    CELERY.send(old_worker, python, "one", "retry", "by_itself", **ON)
    for label, number in {"A": 1, "B": 1, "retries": 3, "retries by itself": 3}.items():
        assert {seen["key"] for seen in old_worker.wait(number, label=label)} == {None}
    worker = celery("prefork", PROTOCOL="1")
    CELERY.send(worker, python, "one", "retry", "by_itself", OTELCTX_ENABLED="")
    for label in ("A", "B", "nobody"):
        (seen,) = worker.wait(1, label=label)
        assert seen["key"].startswith("task:")
    for label in ("nobody retries", "retries by itself"):
        assert len({attempt["key"] for attempt in worker.wait(3, label=label)}) == 1


def test_a_worker_and_its_children_are_nobodys_whoever_starts_them(celery: Celery, python: Path) -> None:
    world = celery("prefork", MAX_TASKS="1", AMBIENT="A")
    (ready,) = world.wait(1, label="ready")
    assert (ready["key"], ready["app"]) == (None, None)
    CELERY.send(world, python, "one")
    world.wait(1, label="nobody")
    children = world.wait(3, label="child")
    assert {(child["key"], child["app"], child["claim"]) for child in children} == {(None, None, "none")}
    assert len({child["pid"] for child in children}) >= 3


def test_what_a_worker_does_for_a_task_that_it_cancels_is_done_as_the_task(celery: Celery, python: Path) -> None:
    world = celery("prefork", AMBIENT="C")
    CELERY.send(world, python, "cancelled")
    (seen,) = world.wait(1, label="waits:on_retry")
    assert (seen["key"], seen["app"]) == ("A", "A")


def test_a_worker_in_which_otelctx_is_installed_once_celery_is_imported_knows_whose_its_tasks_are(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    for pool in CELERY.kinds["highest"]:
        world = CELERY.begin(new_world, python, redis, pool, OTELCTX_ENABLED="", INSTALL="1")
        CELERY.send(world, python, "one", INSTALL="", **ON)
        for label in "AB":
            (seen,) = world.wait(1, label=label)
            assert (seen["key"], seen["app"]) == (label, label), pool


def test_a_tick_of_beat_has_a_key_of_its_own_which_its_retries_keep(celery: Celery, python: Path) -> None:
    world = celery("prefork", TICK="0.4", TELEMETRY="1")
    world.start(python, "-m", "celery", "-A", "celery_app", "beat", AMBIENT="A")
    seen = world.wait(6, label="tick")
    first = {line["id"]: line["key"] for line in seen if line["retries"] == 0}
    again = {line["id"]: line["key"] for line in seen if line["retries"] == 1}
    assert len(set(first.values())) == len(first) >= 3
    assert again.items() <= first.items()
    assert again
    assert all(key.startswith("cron:celery:nightly:") for key in first.values())
    assert {line["app"] for line in seen} == {None}
    assert {line["claim"] for line in seen} == {"shed"}
    assert not world.lines("alert")


def test_greenlets_of_gevents_pool_each_have_their_own_key(
    new_world: NewWorld, runner_python: RunnerPython, redis: str
) -> None:
    python = runner_python(*CELERY.versions["highest"])
    world = CELERY.begin(new_world, python, redis, "gevent", "-c", "10", TELEMETRY="1")
    CELERY.send(world, python, "taint", "retry", "by_itself")
    assert {line["app"] for number in range(3) for line in world.wait(1, label=f"nobody{number}")} == {None}
    for label in ("retries", "binds and retries", "retries by itself"):
        assert [(line["key"], line["app"]) for line in world.wait(3, label=label)] == [("A", "A")] * 3, label
    assert not world.lines("alert")


def test_beside_opentelemetrys_own_instrumentation_a_task_is_whose_it_was(celery: Celery, python: Path) -> None:
    world = celery("prefork", TELEMETRY="1", THEIRS="1")
    CELERY.send(world, python, "taint", "retry", "by_itself")
    assert {line["app"] for number in range(3) for line in world.wait(1, label=f"nobody{number}")} == {None}
    for label in ("retries", "binds and retries", "retries by itself"):
        attempts = world.wait(3, label=label)
        assert [(line["key"], line["app"], line["baggage"]) for line in attempts] == [("A", "A", "A")] * 3, label
    assert not world.lines("alert")


@pytest.mark.timeout(3600)
def test_of_many_tasks_of_many_sessions_none_runs_under_another_key(celery: Celery, python: Path) -> None:
    per_child = str(max(TASKS // 100, 20))
    world = celery("prefork", "-c", "4", "--max-tasks-per-child", per_child)
    patience = 60 + TASKS / 5
    world.start(python, PROGRAMS / "celery_send.py", "many", MANY=str(TASKS), PATIENCE=str(patience))
    (many,) = world.wait(1, "many", patience=patience + 30)
    retried = len(range(0, TASKS, 3))
    assert many["counted"] == {"right": TASKS + retried}
    assert many["done"] == TASKS
    assert many["processes"] > 4
