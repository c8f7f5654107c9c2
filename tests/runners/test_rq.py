"""RQ, with real workers: what a job sees.

`programs/rq_worker.py`, `programs/rq_jobs.py` and `programs/rq_send.py` are what runs in RQ's environment.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runners.conftest import RunnerPython
from tests.runners.world import PROGRAMS, NewWorld, World, worlds

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install the runner

VERSIONS = {"lowest": ("rq==1.16.2",), "highest": ("rq==3.0.0",)}
ON = {"OTELCTX_ENABLED": "true"}
CONFIG = """
[keys.session]
sources = [{ contextvar = "sightings:APP_KEY" }]
"""
WORKERS = [("lowest", "fork"), ("lowest", "simple"), ("highest", "fork"), ("highest", "simple"), ("highest", "spawn")]

_databases = itertools.count()

Shared = tuple[World, Path]


@pytest.fixture(scope="module", params=WORKERS, ids="-".join)
def shared(
    request: pytest.FixtureRequest, runner_python: RunnerPython, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    """A world with a ready worker, for each version and kind of worker; its lines are told apart by their labels."""
    version, kind = request.param
    python = runner_python(*VERSIONS[version])
    with worlds(tmp_path_factory.mktemp("shared")) as make:
        yield begin(make, python, redis, kind, TELEMETRY="1"), python


@pytest.fixture(params=list(VERSIONS))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python(version: str, runner_python: RunnerPython) -> Path:
    return runner_python(*VERSIONS[version])


def begin(new_world: NewWorld, python: Path, redis: str, kind: str, **variables: str) -> World:
    world = new_world(BROKER=f"{redis}/{next(_databases)}", **{**ON, **variables})
    code = "import os, redis; redis.Redis.from_url(os.environ['BROKER']).flushdb()"
    world.run(python, "-c", code, OTELCTX_ENABLED="")
    (world.folder / "otelctx.toml").write_text(CONFIG)
    world.variables["OTELCTX_CONFIG"] = str(world.folder / "otelctx.toml")
    world.start(python, PROGRAMS / "rq_worker.py", kind)
    world.wait(1, label="ready")
    return world


def send(world: World, python: Path, scenario: str, **variables: str) -> None:
    world.run(python, PROGRAMS / "rq_send.py", scenario, **variables)


def test_a_job_arrives_as_it_was_enqueued(shared: Shared) -> None:
    world, python = shared
    send(world, python, "one")
    for key in "AB":
        (seen,) = world.wait(1, label=key)
        assert (seen["key"], seen["app"], seen["baggage"], seen["claim"]) == (key, key, key, "shed")
        assert seen["meta"] == {"mine": key}
    (nobody,) = world.wait(1, label="nobody")
    assert nobody["key"].startswith("task:rq:rq_jobs.seen:")
    assert (nobody["app"], nobody["meta"]) == (None, {})
    (by_name,) = world.wait(1, label="by name")
    assert (by_name["key"], by_name["app"]) == ("bound", None)
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
    for label, number in {"retries": 3, "binds and retries": 3, "retries later": 2}.items():
        attempts = world.wait(number, label=label)
        assert [(line["key"], line["app"]) for line in attempts] == [("A", "A")] * number, label
    attempts = world.wait(3, label="nobody retries")
    assert len({attempt["key"] for attempt in attempts}) == 1
    assert attempts[0]["key"].startswith("task:rq:rq_jobs.fails:")


def test_however_it_is_enqueued_and_whatever_comes_of_it_a_job_is_whose_it_was(shared: Shared) -> None:
    world, python = shared
    send(world, python, "everything")
    labels = ["enqueue_in", "enqueue_at", "many 1", "many 2", "first", "dependent", "succeeds", "on_success"]
    for label in [*labels, "fails", "on_failure", "spreads", "spreads:sent"]:
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "shed"), label
    (seen,) = world.wait(1, label="created and enqueued by B")
    assert (seen["key"], seen["app"]) == ("B", "B")


def test_a_job_that_is_put_back_is_whose_it_was(shared: Shared) -> None:
    world, python = shared
    send(world, python, "requeue")
    assert [line["key"] for line in world.wait(2, label="requeued")] == ["A", "A"]


def test_a_job_of_a_queue_that_is_not_asynchronous_is_its_callers(shared: Shared) -> None:
    world, python = shared
    send(world, python, "immediate")
    for label in ("immediate", "after"):
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "none"), label


def test_a_carrier_that_is_none_is_dropped_with_an_alert_and_the_job_runs(shared: Shared) -> None:
    world, python = shared
    before = len(world.lines("alert", reason="forged"))
    send(world, python, "broken")
    labels = ["text", "truncated", "oversized", "bytes", "types"]
    for label in labels:
        (seen,) = world.wait(1, label=label)
        assert seen["key"].startswith("task:rq:"), label
        assert seen["app"] is None, label
    assert len(world.wait(before + len(labels), "alert", reason="forged")) >= before + len(labels)


def test_a_run_has_a_span_with_its_wait_below_the_one_that_sent_it(shared: Shared) -> None:
    world, python = shared
    send(world, python, "traced")
    (sent,) = world.wait(1, "span", name="turn")
    spans = world.wait(3, "span", trace=sent["trace"])
    first = next(span for span in spans if span["name"] == "task rq_jobs.fails")
    assert (first["kind"], first["parent"]) == ("CONSUMER", sent["span"])
    assert first["attributes"]["session.id"] == "A"
    assert 0 < first["attributes"]["otelctx.hop.wait"] < 60


def test_a_callback_that_the_worker_itself_calls_is_its_jobs(new_world: NewWorld, python: Path, redis: str) -> None:
    world = begin(new_world, python, redis, "fork")
    send(world, python, "stop")
    for label in ("hangs", "on_stopped"):
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"]) == ("A", "A"), label


def test_a_worker_is_nobodys_whoever_starts_it(new_world: NewWorld, python: Path, redis: str) -> None:
    world = begin(new_world, python, redis, "fork", AMBIENT="A")
    send(world, python, "one", AMBIENT="")
    (seen,) = world.wait(1, label="nobody")
    assert seen["key"].startswith("task:")
    assert seen["app"] is None


def test_a_message_is_believed_only_with_a_signature_where_a_secret_is_set(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    secret = "a secret that is long enough to be one"
    world = begin(new_world, python, redis, "simple", TELEMETRY="1", OTELCTX_SECRET=secret)
    send(world, python, "one")
    send(world, python, "retry")
    for label, number in {"A": 1, "retries": 3}.items():
        assert {line["key"] for line in world.wait(number, label=label)} == {"A"}
    assert not world.lines("alert")
    send(world, python, "everything", OTELCTX_SECRET="another secret that is long enough")
    (seen,) = world.wait(1, label="first")
    assert seen["key"].startswith("task:")
    world.wait(1, "alert", reason="forged")


def test_workers_and_senders_with_and_without_otelctx_read_each_other(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    old_worker = begin(new_world, python, redis, "fork", OTELCTX_ENABLED="")
    send(old_worker, python, "one", **ON)
    send(old_worker, python, "retry", **ON)
    for label, number in {"A": 1, "B": 1, "retries": 3}.items():
        assert {line["key"] for line in old_worker.wait(number, label=label)} == {None}
    worker = begin(new_world, python, redis, "fork")
    send(worker, python, "one", OTELCTX_ENABLED="")
    for label in ("A", "B", "nobody"):
        (seen,) = worker.wait(1, label=label)
        assert seen["key"].startswith("task:")
    send(worker, python, "retry", OTELCTX_ENABLED="")
    assert len({line["key"] for line in worker.wait(3, label="retries")}) == 1


def test_a_tick_of_cron_has_a_key_of_its_own(new_world: NewWorld, runner_python: RunnerPython, redis: str) -> None:
    python = runner_python(*VERSIONS["highest"])
    world = begin(new_world, python, redis, "simple", TELEMETRY="1")
    world.start(python, PROGRAMS / "rq_worker.py", "cron", AMBIENT="A")
    ticks = world.wait(3, label="tick")
    assert len({tick["key"] for tick in ticks}) == len(ticks)
    assert all(tick["key"].startswith("cron:rq:rq_jobs.seen:") for tick in ticks)
    assert {(tick["app"], tick["claim"]) for tick in ticks} == {(None, "shed")}
    assert {span["parent"] for span in world.wait(3, "span", name="cron rq_jobs.seen")} == {None}
    assert not world.lines("alert")


def test_observe_changes_nothing_and_says_what_is_lost(new_world: NewWorld, python: Path, redis: str) -> None:
    world = begin(new_world, python, redis, "simple", OTELCTX_MODE="observe", TELEMETRY="1")
    send(world, python, "taint")
    (first,) = world.wait(1, label="A0")
    assert (first["key"], first["app"]) == (None, None)
    (nobody,) = world.wait(1, label="nobody0")
    assert nobody["app"] == "tainted"
    reasons = {(alert["reason"], alert["action"]) for alert in world.wait(2, "alert")}
    assert {("lost", "observed"), ("leaked", "observed")} <= reasons
