"""arq, with real workers: what a job sees. `programs/arq_app.py` and `programs/arq_send.py` are what runs there.

It needs another Redis client than Celery's transport does, and so an environment of its own, like all of them.
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
    "lowest": ("arq==0.23", "pydantic<2", "redis==4.2.2"),  # as new as it was
    "highest": ("arq==0.28.0",),
}
ON = {"OTELCTX_ENABLED": "true"}
CONFIG = """
[keys.session]
sources = [{ contextvar = "sightings:APP_KEY" }]
"""

_databases = itertools.count(400)

Shared = tuple[World, Path]


@pytest.fixture(scope="module", params=list(VERSIONS))
def shared(
    request: pytest.FixtureRequest, runner_python: RunnerPython, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    """A world with a ready worker, started in A's turn; its lines are told apart by their labels."""
    python = runner_python(*VERSIONS[request.param])
    with worlds(tmp_path_factory.mktemp("shared")) as make:
        yield begin(make, python, redis, TELEMETRY="1", AMBIENT="A"), python


@pytest.fixture(params=list(VERSIONS))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python(version: str, runner_python: RunnerPython) -> Path:
    return runner_python(*VERSIONS[version])


def begin(new_world: NewWorld, python: Path, redis: str, **variables: str) -> World:
    world = new_world(BROKER=f"{redis}/{next(_databases)}", **{**ON, **variables})
    (world.folder / "otelctx.toml").write_text(CONFIG)
    world.variables["OTELCTX_CONFIG"] = str(world.folder / "otelctx.toml")
    worker(world, python)
    return world


def worker(world: World, python: Path, **variables: str) -> None:
    world.start(python, "-c", "from arq.cli import cli; cli()", "arq_app.WorkerSettings", **variables)
    world.wait(1, label="ready")


def send(world: World, python: Path, scenario: str, **variables: str) -> None:
    world.run(python, PROGRAMS / "arq_send.py", scenario, **{"AMBIENT": "", **variables})


def test_a_worker_is_nobodys_and_a_job_arrives_as_it_was_enqueued(shared: Shared) -> None:
    world, python = shared
    (ready,) = world.wait(1, label="ready")
    assert (ready["key"], ready["app"], ready["others"]) == (None, None, None)
    send(world, python, "one")
    for key in "AB":
        (seen,) = world.wait(1, label=key)
        assert (seen["key"], seen["app"], seen["baggage"], seen["claim"]) == (key, key, key, "shed")
        for hook in ("job starts", "job ends"):
            (around,) = world.wait(1, label=hook, id=f"job of {key}")
            assert (around["key"], around["app"]) == (key, key), hook
    (nobody,) = world.wait(1, label="nobody")
    assert nobody["key"].startswith("task:arq:seen:")
    assert (nobody["app"], nobody["others"]) == (None, None)
    (bound,) = world.wait(1, label="bound")
    assert (bound["key"], bound["app"]) == ("bound", None)
    assert not [alert for alert in world.lines("alert") if alert["reason"] != "forged"]


def test_a_key_that_a_job_never_resets_is_gone_for_the_next(shared: Shared) -> None:
    world, python = shared
    send(world, python, "taint")
    nobody = [world.wait(1, label=f"nobody{number}")[0] for number in range(3)]
    assert {line["app"] for line in nobody} == {None}
    assert len({line["key"] for line in nobody}) == 3


def test_a_retry_keeps_the_key_of_its_message(shared: Shared) -> None:
    world, python = shared
    send(world, python, "retry")
    for label in ("retries", "binds and retries", "retries later"):
        attempts = world.wait(3, label=label)
        assert [(line["key"], line["app"], line["tries"]) for line in attempts] == [("A", "A", n) for n in (1, 2, 3)]
    attempts = world.wait(3, label="nobody retries")
    assert len({attempt["key"] for attempt in attempts}) == 1
    assert attempts[0]["key"].startswith("task:arq:retried:")


def test_whatever_enqueues_it_a_job_is_whose_turn_it_was(shared: Shared) -> None:
    world, python = shared
    send(world, python, "everything")
    for label in ("spreads", "spreads:sent", "from a task"):
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "shed"), label


def test_a_claim_is_granted_anew_for_each_attempt(shared: Shared) -> None:
    world, python = shared
    send(world, python, "claimed")
    assert [(line["claim"], line["task"]) for line in world.wait(2, label="claimed")] == [("held", "t1")] * 2


def test_a_carrier_that_is_none_is_dropped_with_an_alert_and_the_job_runs(shared: Shared) -> None:
    world, python = shared
    before = len(world.lines("alert", reason="forged"))
    send(world, python, "broken")
    labels = ["text", "truncated", "oversized", "number", "list", "types"]
    for label in labels:
        (seen,) = world.wait(1, label=label)
        assert seen["key"].startswith("task:arq:"), label
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
    assert (first["kind"], first["parent"], again["parent"]) == ("CONSUMER", sent["span"], sent["span"])
    assert {span["attributes"]["session.id"] for span in (first, again)} == {"A"}
    assert 0 < first["attributes"]["otelctx.hop.wait"] < again["attributes"]["otelctx.hop.wait"] < 60


def test_without_otelctx_each_job_is_whose_has_started_the_worker(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    world = begin(new_world, python, redis, OTELCTX_ENABLED="", AMBIENT="C", TICK="1")
    send(world, python, "one")
    apps = {line["app"] for label in ("A", "B", "nobody", "tick") for line in world.wait(1, label=label)}
    assert apps == {"left at the start"}
    assert {line["app"] for line in world.lines("sighting", label="ready")} == {"C"}


def test_a_tick_has_a_key_of_its_own_whoever_enqueues_it(new_world: NewWorld, python: Path, redis: str) -> None:
    world = begin(new_world, python, redis, TICK="1", TELEMETRY="1", AMBIENT="A")
    send(world, python, "now", TICK="")
    send(world, python, "now", TICK="", OTELCTX_ENABLED="")
    world.wait(1, label="tick", id="by hand, True")
    world.wait(1, label="tick", id="by hand, False")
    ticks = world.wait(4, label="tick")
    assert len({tick["key"] for tick in ticks}) == len(ticks)
    assert all(tick["key"].startswith("cron:arq:ticked:") for tick in ticks)
    assert {(tick["app"], tick["claim"]) for tick in ticks} == {(None, "shed")}
    assert {span["parent"] for span in world.wait(1, "span", name="cron ticked")} == {None}
    assert not world.lines("alert")


@pytest.mark.parametrize("serializer", ["pickle", "json"])
def test_workers_and_senders_with_and_without_otelctx_read_each_other(
    serializer: str, new_world: NewWorld, python: Path, redis: str
) -> None:
    old_worker = begin(new_world, python, redis, OTELCTX_ENABLED="", SERIALIZER=serializer)
    send(old_worker, python, "one", **ON)
    send(old_worker, python, "retry", **ON)
    for label, number in {"A": 1, "B": 1, "retries": 3, "retries later": 3}.items():
        assert {line["key"] for line in old_worker.wait(number, label=label)} == {None}
    new_worker = begin(new_world, python, redis, SERIALIZER=serializer)
    send(new_worker, python, "one", OTELCTX_ENABLED="")
    send(new_worker, python, "retry", OTELCTX_ENABLED="")
    for label, number in {"A": 1, "B": 1, "nobody": 1, "retries": 3}.items():
        for seen in new_worker.wait(number, label=label):
            assert seen["key"].startswith("task:")
    send(new_worker, python, "taint")
    assert {line["key"] for line in new_worker.wait(1, label="A0")} == {"A"}


def test_a_serializer_that_takes_arqs_own_entries_only_is_given_those(
    new_world: NewWorld, runner_python: RunnerPython, redis: str
) -> None:
    python = runner_python(*VERSIONS["highest"])
    world = begin(new_world, python, redis, SERIALIZER="strict")
    send(world, python, "one")
    (seen,) = world.wait(1, label="A")
    assert seen["key"].startswith("task:arq:seen:")


def test_a_message_is_believed_only_with_a_signature_where_a_secret_is_set(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    secret = "a secret that is long enough to be one"
    world = begin(new_world, python, redis, TELEMETRY="1", OTELCTX_SECRET=secret)
    send(world, python, "one")
    send(world, python, "retry")
    for label, number in {"A": 1, "retries": 3, "retries later": 3}.items():
        assert {line["key"] for line in world.wait(number, label=label)} == {"A"}
    assert not world.lines("alert")
    send(world, python, "everything", OTELCTX_SECRET="another secret that is long enough")
    (seen,) = world.wait(1, label="spreads")
    assert seen["key"].startswith("task:")
    world.wait(1, "alert", reason="forged")


def test_enforce_refuses_a_job_and_its_worker_lives_on(new_world: NewWorld, python: Path, redis: str) -> None:
    world = new_world(BROKER=f"{redis}/{next(_databases)}", OTELCTX_MODE="enforce", APP_SESSION="B", **ON)
    (world.folder / "otelctx.toml").write_text(CONFIG.replace(" }]", ' }, { env = "APP_SESSION" }]'))
    world.variables["OTELCTX_CONFIG"] = str(world.folder / "otelctx.toml")
    worker(world, python)
    send(world, python, "one", APP_SESSION="")
    assert [line["key"] for line in world.wait(1, label="B")] == ["B"]
    assert not world.lines("sighting", label="A")
    assert "DeserializationError" in world.logs()


def test_observe_changes_nothing_and_says_what_is_lost(new_world: NewWorld, python: Path, redis: str) -> None:
    world = begin(new_world, python, redis, OTELCTX_MODE="observe", TELEMETRY="1", AMBIENT="C")
    send(world, python, "taint")
    (nobody,) = world.wait(1, label="nobody0")
    (first,) = world.wait(1, label="A0")
    assert {nobody["app"], first["app"]} == {"left at the start"}
    reasons = {(alert["reason"], alert["action"]) for alert in world.wait(2, "alert")}
    assert {("foreign", "observed"), ("leaked", "observed")} <= reasons
