"""taskiq, with real workers on a Redis list, and in place: what a task sees.

`programs/taskiq_app.py` and `programs/taskiq_send.py` are what runs in taskiq's environment.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runners.conftest import RunnerPython
from tests.runners.world import PROGRAMS, NewWorld, World, worlds

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install the runner

VERSIONS = {
    "lowest": ("taskiq==0.9.0", "taskiq-redis==0.5.0"),
    "highest": ("taskiq==0.13.0", "taskiq-redis==1.2.4"),
}
ON = {"OTELCTX_ENABLED": "true"}
CONFIG = """
[keys.session]
sources = [{ contextvar = "sightings:APP_KEY" }]
"""

_databases = itertools.count(500)

Shared = tuple[World, Path]


@pytest.fixture(scope="module", params=list(VERSIONS))
def shared(
    request: pytest.FixtureRequest, runner_python: RunnerPython, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    """A world with a ready worker, started in C's turn; its lines are told apart by their labels."""
    python = runner_python(*VERSIONS[request.param])
    with worlds(tmp_path_factory.mktemp("shared")) as make:
        yield begin(make, python, redis, TELEMETRY="1", AMBIENT="C"), python


@pytest.fixture(params=list(VERSIONS))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python(version: str, runner_python: RunnerPython) -> Path:
    return runner_python(*VERSIONS[version])


def prepare(new_world: NewWorld, **variables: str) -> World:
    world = new_world(**{**ON, **variables})
    (world.folder / "otelctx.toml").write_text(CONFIG)
    world.variables["OTELCTX_CONFIG"] = str(world.folder / "otelctx.toml")
    return world


def begin(new_world: NewWorld, python: Path, redis: str, **variables: str) -> World:
    world = prepare(new_world, BROKER=f"{redis}/{next(_databases)}", **variables)
    worker(world, python)
    return world


def worker(world: World, python: Path) -> None:
    options = ["--workers", "1", "--max-async-tasks", "1", "--max-threadpool-threads", "1"]
    world.start(python, "-m", "taskiq", "worker", "taskiq_app:broker", *options)
    world.wait(1, label="ready")


def send(world: World, python: Path, scenario: str, **variables: str) -> None:
    world.run(python, PROGRAMS / "taskiq_send.py", scenario, **{"AMBIENT": "", **variables})


def test_a_worker_is_nobodys_and_a_task_arrives_as_it_was_sent(shared: Shared) -> None:
    world, python = shared
    (ready,) = world.wait(1, label="ready")
    assert (ready["key"], ready["app"], ready["others"]) == (None, None, None)
    send(world, python, "one")
    for key in "AB":
        for label in (key, f"{key}, threaded"):
            (seen,) = world.wait(1, label=label)
            assert (seen["key"], seen["app"], seen["baggage"], seen["claim"]) == (key, key, key, "shed"), label
    (nobody,) = world.wait(1, label="nobody")
    assert nobody["key"].startswith("task:taskiq:seen:")
    assert (nobody["app"], nobody["others"]) == (None, None)
    (bound,) = world.wait(1, label="bound")
    assert (bound["key"], bound["app"]) == ("bound", None)
    assert not [alert for alert in world.lines("alert") if alert["reason"] != "forged"]


def test_a_key_that_a_task_never_resets_is_gone_for_the_next(shared: Shared) -> None:
    world, python = shared
    send(world, python, "taint")
    labels = [f"{kind}nobody{number}" for number in range(3) for kind in ("", "threaded ")]
    nobody = [world.wait(1, label=label)[0] for label in labels]
    assert {line["app"] for line in nobody} == {None}
    assert len({line["key"] for line in nobody}) == len(nobody)


def test_a_retry_keeps_the_key_of_its_message(shared: Shared) -> None:
    world, python = shared
    send(world, python, "retry")
    for label in ("retries", "binds and retries"):
        attempts = world.wait(3, label=label)
        assert [(line["key"], line["app"], line["tries"]) for line in attempts] == [("A", "A", n) for n in (0, 1, 2)]
    attempts = world.wait(3, label="nobody retries")
    assert len({attempt["key"] for attempt in attempts}) == 1
    assert attempts[0]["key"].startswith("task:taskiq:retried:")


def test_what_a_task_sends_is_whose_the_task_is_and_a_call_is_its_callers(shared: Shared) -> None:
    world, python = shared
    send(world, python, "everything")
    for label in ("spreads", "spreads:sent"):
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "shed"), label
    (called,) = world.wait(1, label="called")
    assert (called["key"], called["app"], called["claim"]) == ("A", "A", "none")


def test_a_claim_is_granted_anew_for_each_attempt(shared: Shared) -> None:
    world, python = shared
    send(world, python, "claimed")
    assert [(line["claim"], line["task"]) for line in world.wait(2, label="claimed")] == [("held", "t1")] * 2


def test_a_tick_is_nobodys_whoever_has_started_the_scheduler(shared: Shared) -> None:
    world, python = shared
    send(world, python, "tick")
    ticks = world.wait(2, label="tick")
    assert len({tick["key"] for tick in ticks}) == 2
    assert all(tick["key"].startswith("cron:taskiq:ticked:") for tick in ticks)
    assert {(tick["app"], tick["claim"]) for tick in ticks} == {(None, "shed")}
    assert {span["parent"] for span in world.wait(2, "span", name="cron ticked")} == {None}
    (after,) = world.wait(1, label="after")
    assert (after["key"], after["app"]) == ("A", "A")


def test_a_carrier_that_is_none_is_dropped_with_an_alert_and_the_task_runs(shared: Shared) -> None:
    world, python = shared
    before = len(world.lines("alert", reason="forged"))
    send(world, python, "broken")
    labels = ["text", "truncated", "oversized", "types"]  # older versions take text for labels only
    for label in labels:
        (seen,) = world.wait(1, label=label)
        assert seen["key"].startswith("task:taskiq:"), label
        assert seen["app"] is None, label
    world.wait(1, label="signature")
    assert len(world.wait(before + len(labels), "alert", reason="forged")) == before + len(labels)


def test_a_run_has_a_span_with_its_wait_below_the_one_that_sent_it(shared: Shared) -> None:
    world, python = shared
    send(world, python, "traced", TELEMETRY="1")
    (sent,) = world.wait(1, "span", name="turn")
    spans = world.wait(3, "span", trace=sent["trace"])
    by_name = {span["name"]: span for span in spans}
    first, again = by_name["task retried"], by_name["retry retried"]
    assert (first["kind"], first["parent"]) == ("CONSUMER", sent["span"])
    assert again["parent"] in (first["span"], sent["span"])  # older versions send the same message once more
    assert {span["attributes"]["session.id"] for span in (first, again)} == {"A"}
    assert 0 < first["attributes"]["otelctx.hop.wait"] < 60


def test_without_otelctx_a_task_is_whose_has_started_the_worker_or_was_in_its_thread(
    new_world: NewWorld, version: str, python: Path, redis: str
) -> None:
    world = begin(new_world, python, redis, OTELCTX_ENABLED="", AMBIENT="C")
    send(world, python, "one")
    for label in ("A", "B", "nobody"):
        assert [line["app"] for line in world.wait(1, label=label)] == ["C"], label
    # Newer versions run a function in a copy of the context; older ones in what its thread of the pool has.
    (threaded,) = world.wait(1, label="A, threaded")
    assert threaded["app"] == (None if version == "lowest" else "C")


def test_in_place_a_task_is_its_callers_and_a_tick_is_nobodys(new_world: NewWorld, python: Path) -> None:
    off = prepare(new_world, IN_PLACE="1", OTELCTX_ENABLED="")
    send(off, python, "in_place")
    assert {line["app"] for line in off.wait(2, label="tick")} == {"A"}
    world = prepare(new_world, IN_PLACE="1", TELEMETRY="1")
    send(world, python, "in_place")
    for label in ("in place", "in place, threaded", "after"):
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "none"), label
    ticks = world.wait(2, label="tick")
    assert len({tick["key"] for tick in ticks if tick["key"].startswith("cron:taskiq:ticked:")}) == 2
    assert {(tick["app"], tick["claim"]) for tick in ticks} == {(None, "shed")}
    assert not world.lines("alert")


def test_workers_and_senders_with_and_without_otelctx_read_each_other(
    new_world: NewWorld, python: Path, version: str, redis: str
) -> None:
    old_worker = begin(new_world, python, redis, OTELCTX_ENABLED="")
    send(old_worker, python, "one", **ON)
    send(old_worker, python, "retry", **ON)
    for label, number in {"A": 1, "B": 1, "retries": 3}.items():
        assert {line["key"] for line in old_worker.wait(number, label=label)} == {None}
    new_worker = begin(new_world, python, redis)
    for scenario in ("one", "retry", "tick"):
        send(new_worker, python, scenario, OTELCTX_ENABLED="")
    for label, number in {"A": 1, "nobody": 1, "tick": 2}.items():
        for seen in new_worker.wait(number, label=label):
            assert seen["key"].startswith(("task:", "cron:"))
    keys = {line["key"] for line in new_worker.wait(3, label="retries")}
    assert len(keys) == (1 if version == "highest" else 3)  # older versions send the same message once more


def test_a_message_is_believed_only_with_a_signature_where_a_secret_is_set(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    secret = "a secret that is long enough to be one"
    world = begin(new_world, python, redis, TELEMETRY="1", OTELCTX_SECRET=secret)
    send(world, python, "one")
    send(world, python, "retry")
    for label, number in {"A": 1, "retries": 3}.items():
        assert {line["key"] for line in world.wait(number, label=label)} == {"A"}
    assert not world.lines("alert")
    send(world, python, "everything", OTELCTX_SECRET="another secret that is long enough")
    (seen,) = world.wait(1, label="spreads")
    assert seen["key"].startswith("task:")
    world.wait(1, "alert", reason="forged")


def test_enforce_refuses_a_task_and_its_worker_lives_on(new_world: NewWorld, python: Path, redis: str) -> None:
    world = prepare(
        new_world, BROKER=f"{redis}/{next(_databases)}", OTELCTX_MODE="enforce", APP_SESSION="B", TELEMETRY="1"
    )
    (world.folder / "otelctx.toml").write_text(CONFIG.replace(" }]", ' }, { env = "APP_SESSION" }]'))
    worker(world, python)
    send(world, python, "one", APP_SESSION="")
    assert [line["key"] for line in world.wait(1, label="B, threaded")] == ["B"]
    world.wait(1, "alert", action="raised")
    assert not world.lines("sighting", label="A")
