"""Celery, with real workers: what a task sees.

Each test starts a worker, and lets programs send it tasks; `programs/celery_app.py` and `programs/celery_send.py` are
what runs there. Celery 5.2 and 5.7 are tested alike; the pools are prefork, threads, solo and gevent.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runners.conftest import RunnerPython
from tests.runners.world import PROGRAMS, Line, NewWorld, World, worlds

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install the runner

THEIRS = "opentelemetry-instrumentation-celery>=0.58b0"
VERSIONS = {
    # The command of 5.2 needs an interface of importlib.metadata's that is gone in 3.12.
    "lowest": ("celery[redis]==5.2.7" if sys.version_info < (3, 12) else "celery[redis]==5.3.1", THEIRS),
    "highest": ("celery[redis]==5.7.0", THEIRS, "gevent"),
}
ON = {"OTELCTX_ENABLED": "true"}
CONFIG = """
[keys.session]
sources = [{ contextvar = "sightings:APP_KEY" }]
"""

POOLS = ["prefork", "threads", "solo"]

_databases = itertools.count()

Celery = Callable[..., World]
Shared = tuple[World, Path]


@pytest.fixture(params=list(VERSIONS))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python(version: str, runner_python: RunnerPython) -> Path:
    return runner_python(*VERSIONS[version])


@pytest.fixture
def celery(new_world: NewWorld, python: Path, redis: str) -> Celery:
    """``celery(pool, *options, **variables)``: a world of this test's own with a ready worker; otelctx is on."""

    def start(pool: str = "prefork", *options: str, **variables: str) -> World:
        return begin(new_world, python, redis, pool, *options, **variables)

    return start


@pytest.fixture(scope="module", params=[(version, pool) for version in VERSIONS for pool in POOLS], ids="-".join)
def shared(
    request: pytest.FixtureRequest, runner_python: RunnerPython, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    """A world with a ready worker, for each version and pool; whose lines are told apart by their labels."""
    version, pool = request.param
    python = runner_python(*VERSIONS[version])
    # One process or thread, where a task is to find what the one before it has left.
    with worlds(tmp_path_factory.mktemp("shared")) as make:
        yield begin(make, python, redis, pool, "-c", "1", TELEMETRY="1"), python


def begin(new_world: NewWorld, python: Path, redis: str, pool: str, *options: str, **variables: str) -> World:
    world = new_world(BROKER=f"{redis}/{next(_databases)}", **{**ON, **variables})
    flush(world, python)
    (world.folder / "otelctx.toml").write_text(CONFIG)
    world.variables["OTELCTX_CONFIG"] = str(world.folder / "otelctx.toml")
    worker(world, python, pool, *options)
    world.wait(1, label="ready")
    return world


def unexpected(world: World) -> list[Line]:
    """Alerts, but those of the messages that a test has spoiled."""
    return [alert for alert in world.lines("alert") if alert["reason"] != "forged"]


def flush(world: World, python: Path) -> None:
    world.run(
        python, "-c", "import os, redis; redis.Redis.from_url(os.environ['BROKER']).flushdb()", OTELCTX_ENABLED=""
    )


def worker(world: World, python: Path, pool: str, *options: str, **variables: str) -> Any:
    command: list[str | Path] = [
        python,
        "-m",
        "celery",
        "-A",
        "celery_app",
        "worker",
        "-P",
        pool,
        "-c",
        "2",
        "-l",
        "info",
    ]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return world.start(*command, *quiet, *options, **variables)


def send(world: World, python: Path, scenario: str, **variables: str) -> None:
    world.run(python, PROGRAMS / "celery_send.py", scenario, **variables)


def test_a_task_arrives_as_its_message_departed(shared: Shared) -> None:
    world, python = shared
    send(world, python, "one")
    for key in "AB":
        (seen,) = world.wait(1, label=key)
        assert (seen["key"], seen["app"], seen["baggage"], seen["claim"]) == (key, key, key, "shed")
    (nobody,) = world.wait(1, label="nobody")
    assert nobody["key"].startswith("task:celery:celery_app.seen:")
    assert nobody["app"] is None
    (by_name,) = world.wait(1, label="by name")
    assert (by_name["key"], by_name["app"]) == ("bound", None)
    assert not unexpected(world)


def test_a_key_that_a_task_never_resets_is_gone_for_the_next(shared: Shared) -> None:
    world, python = shared
    send(world, python, "taint")
    nobody = [world.wait(1, label=f"nobody{number}")[0] for number in range(4)]
    assert {line["app"] for line in nobody} == {None}
    assert len({line["key"] for line in nobody}) == 4
    assert all(line["key"].startswith("task:") for line in nobody)


def test_a_retry_keeps_the_key_of_its_message(shared: Shared) -> None:
    world, python = shared
    send(world, python, "retry")
    for label in ("retries", "binds and retries", "retries by itself"):
        attempts = world.wait(3, label=label)
        assert [attempt["key"] for attempt in attempts] == ["A"] * 3, label
        assert [attempt["app"] for attempt in attempts] == ["A"] * 3, label
        assert [attempt["retries"] for attempt in attempts] == [0, 1, 2], label
    attempts = world.wait(3, label="nobody retries")
    assert len({attempt["key"] for attempt in attempts}) == 1
    assert attempts[0]["key"].startswith("task:celery:celery_app.retried:")
    assert not unexpected(world)


def test_what_a_task_sends_or_calls_back_has_its_key_under_protocol_1(celery: Celery, python: Path) -> None:
    world = celery("prefork", TELEMETRY="1", PROTOCOL="1")
    _see_canvas(world, python, "1")


def test_what_a_task_sends_or_calls_back_has_its_key_in_every_pool(shared: Shared) -> None:
    _see_canvas(*shared, "2")


def _see_canvas(world: World, python: Path, protocol: str) -> None:
    send(world, python, "canvas")
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
    assert not unexpected(world)


def test_an_eager_task_inherits_from_its_caller(celery: Celery, python: Path) -> None:
    world = celery("solo")
    send(world, python, "eager", EAGER="1")
    for label in ("apply", "delay", "retried", "after"):
        for seen in world.wait(1, label=label):
            assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "none"), label


def test_a_message_that_is_delivered_again_has_its_key_and_so_has_what_is_done_for_a_lost_task(
    celery: Celery, python: Path
) -> None:
    world = celery("prefork")
    send(world, python, "worker_lost")
    for label, number in {"redelivered": 2, "hangs": 1, "killed": 1}.items():
        seen = world.wait(number, label=label)
        assert {(line["key"], line["app"]) for line in seen} == {("A", "A")}, label
    for line in world.lines("sighting", label="hangs:on_failure"):  # newer versions call it, in the main process
        assert (line["key"], line["app"]) == ("A", "A")


def test_a_carrier_that_is_none_is_dropped_with_an_alert_and_the_task_runs(shared: Shared) -> None:
    world, python = shared
    send(world, python, "broken")
    labels = ["text", "truncated", "oversized", "number", "list", "types"]
    for label in labels:
        (seen,) = world.wait(1, label=label)
        assert seen["key"].startswith("task:celery:"), label
        assert seen["app"] is None, label
    alerts = world.wait(len(labels), "alert", reason="forged")
    assert {(alert["action"], alert["source"].partition(":")[0]) for alert in alerts} == {("dropped", "message")}


def test_a_message_is_believed_only_with_a_signature_where_a_secret_is_set(celery: Celery, python: Path) -> None:
    secret = "a secret that is long enough to be one"
    world = celery("prefork", TELEMETRY="1", OTELCTX_SECRET=secret)
    send(world, python, "one")
    send(world, python, "retry")
    for key in "AB":
        assert {seen["key"] for seen in world.wait(1, label=key)} == {key}
    assert [seen["key"] for seen in world.wait(3, label="retries by itself")] == ["A"] * 3
    assert not unexpected(world)
    send(world, python, "broken")
    (seen,) = world.wait(1, label="signature")
    assert seen["key"].startswith("task:")
    unsigned = len(world.wait(7, "alert", reason="forged"))
    send(world, python, "canvas", OTELCTX_SECRET="another secret that is long enough")
    (seen,) = world.wait(1, label="countdown")
    assert seen["key"].startswith("task:")
    assert len(world.wait(unsigned + 1, "alert", reason="forged")) > unsigned


@pytest.mark.parametrize("protocol", ["2", "1"])
def test_workers_and_senders_with_and_without_otelctx_read_each_other(
    protocol: str, celery: Celery, python: Path
) -> None:
    old_worker = celery("prefork", OTELCTX_ENABLED="", PROTOCOL=protocol)
    send(old_worker, python, "one", **ON)
    send(old_worker, python, "retry", **ON)
    for label, number in {"A": 1, "B": 1, "retries": 3, "retries by itself": 3}.items():
        assert {seen["key"] for seen in old_worker.wait(number, label=label)} == {None}
    worker = celery("prefork", PROTOCOL=protocol)
    send(worker, python, "one", OTELCTX_ENABLED="")
    for label in ("A", "B", "nobody"):
        (seen,) = worker.wait(1, label=label)
        assert seen["key"].startswith("task:")
    send(worker, python, "retry", OTELCTX_ENABLED="")
    attempts = worker.wait(3, label="retries by itself")
    assert len({attempt["key"] for attempt in attempts}) == 1


def test_a_worker_and_its_children_are_nobodys_whoever_starts_them(celery: Celery, python: Path) -> None:
    world = celery("prefork", "-c", "1", MAX_TASKS="1", AMBIENT="A")
    (ready,) = world.wait(1, label="ready")
    assert (ready["key"], ready["app"]) == (None, None)
    send(world, python, "one")
    world.wait(1, label="nobody")
    children = world.wait(3, label="child")
    assert {(child["key"], child["app"], child["claim"]) for child in children} == {(None, None, "none")}
    assert len({child["pid"] for child in children}) >= 3


def test_a_tick_of_beat_has_a_key_of_its_own_which_its_retries_keep(celery: Celery, python: Path, version: str) -> None:
    world = celery("prefork", EVERY="0.4", TELEMETRY="1")
    beat: list[str | Path] = [python, "-m", "celery", "-A", "celery_app", "beat", "-s", world.folder / "schedule"]
    world.start(*beat, AMBIENT="A")
    seen = world.wait(6, label="tick")
    first = {line["id"]: line["key"] for line in seen if line["retries"] == 0}
    again = {line["id"]: line["key"] for line in seen if line["retries"] == 1}
    assert len(set(first.values())) == len(first) >= 3
    assert again.items() <= first.items()
    assert again
    assert all(key.startswith("cron:celery:nightly:") for key in first.values())
    assert {line["app"] for line in seen} == {None}
    assert {line["claim"] for line in seen} == {"shed"}
    (span,) = world.lines("span", name="cron nightly")[:1]
    assert span["parent"] is None
    assert not unexpected(world)


def test_a_run_has_a_span_with_its_wait_below_the_one_that_sent_it(celery: Celery, python: Path) -> None:
    world = celery("prefork", TELEMETRY="1")
    send(world, python, "traced")
    (sent,) = world.wait(1, "span", name="turn")
    spans = world.wait(3, "span", trace=sent["trace"])
    by_name = {span["name"]: span for span in spans}
    first, again = by_name["task celery_app.retried"], by_name["retry celery_app.retried"]
    assert first["kind"] == again["kind"] == "CONSUMER"
    assert first["parent"] == sent["span"]
    assert again["parent"] == first["span"]
    assert {span["attributes"]["session.id"] for span in (first, again)} == {"A"}
    assert 0.25 < again["attributes"]["otelctx.hop.wait"] < 30


def test_a_claim_is_granted_to_each_attempt_from_its_message_and_not_to_what_waits(shared: Shared) -> None:
    world, python = shared
    send(world, python, "claimed")
    attempts = world.wait(2, label="claimed")
    assert [(line["claim"], line["task"], line["attempt"]) for line in attempts] == [
        ("held", "task-7", "1"),
        ("held", "task-7", "2"),
    ]
    for label in ("claimed, for later", "shed"):
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["claim"]) == ("A", "shed"), label


def test_greenlets_of_gevents_pool_each_have_their_own_key(
    new_world: NewWorld, runner_python: RunnerPython, redis: str
) -> None:
    python = runner_python(*VERSIONS["highest"])
    world = begin(new_world, python, redis, "gevent", "-c", "10", TELEMETRY="1")
    send(world, python, "taint")
    assert {line["app"] for number in range(4) for line in world.wait(1, label=f"nobody{number}")} == {None}
    send(world, python, "retry")
    for label in ("retries", "binds and retries", "retries by itself"):
        assert [(line["key"], line["app"]) for line in world.wait(3, label=label)] == [("A", "A")] * 3, label
    assert not unexpected(world)


def test_beside_opentelemetrys_own_instrumentation_a_task_is_whose_it_was(celery: Celery, python: Path) -> None:
    world = celery("prefork", "-c", "1", TELEMETRY="1", THEIRS="1")
    send(world, python, "taint")
    assert {line["app"] for number in range(4) for line in world.wait(1, label=f"nobody{number}")} == {None}
    send(world, python, "retry")
    for label in ("retries", "binds and retries", "retries by itself"):
        attempts = world.wait(3, label=label)
        assert [(line["key"], line["app"], line["baggage"]) for line in attempts] == [("A", "A", "A")] * 3, label
    assert not world.lines("alert")


def test_observe_changes_nothing_and_says_what_is_lost(celery: Celery, python: Path) -> None:
    world = celery("prefork", "-c", "1", OTELCTX_MODE="observe", TELEMETRY="1")
    send(world, python, "taint")
    (first,) = world.wait(1, label="A0")
    assert (first["key"], first["app"]) == (None, None)
    (nobody,) = world.wait(1, label="nobody0")
    assert nobody["app"] == "tainted"
    reasons = {(alert["reason"], alert["action"]) for alert in world.wait(2, "alert")}
    assert ("lost", "observed") in reasons
    assert ("leaked", "observed") in reasons


@pytest.mark.timeout(3600)
def test_of_many_tasks_of_many_sessions_none_runs_under_another_key(celery: Celery, python: Path) -> None:
    number = int(os.environ.get("OTELCTX_CELERY_TASKS", "300"))
    per_child = str(max(number // 100, 20))
    world = celery("prefork", "-c", "4", "--max-tasks-per-child", per_child)
    patience = 60 + number / 5
    world.start(python, PROGRAMS / "celery_send.py", "many", MANY=str(number), PATIENCE=str(patience))
    (many,) = world.wait(1, "many", patience=patience + 30)
    retried = len(range(0, number, 3))
    assert many["counted"] == {"right": number + retried}
    assert many["done"] == number
    assert many["processes"] > 4
