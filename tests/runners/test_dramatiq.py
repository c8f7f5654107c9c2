"""Dramatiq, with real workers on Redis and on its broker in memory: what an actor sees.

`programs/dramatiq_app.py` and `programs/dramatiq_send.py` are what runs in Dramatiq's environment. Its workers are
threads; async actors, which newer versions have, run on one event loop of their process.
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
    # Its own choice of a Redis client needs distutils, which is gone in 3.12.
    "lowest": ("dramatiq==1.10.0", "prometheus-client", "redis==4.6.0"),
    "highest": ("dramatiq[redis]==2.2.1",),
}
ON = {"OTELCTX_ENABLED": "true"}
CONFIG = """
[keys.session]
sources = [{ contextvar = "sightings:APP_KEY" }]
"""

_databases = itertools.count(300)

Shared = tuple[World, Path]


@pytest.fixture(scope="module", params=list(VERSIONS))
def shared(
    request: pytest.FixtureRequest, runner_python: RunnerPython, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    """A world with a ready worker of one thread, started in A's turn; its lines are told apart by their labels."""
    python = runner_python(*VERSIONS[request.param])
    with worlds(tmp_path_factory.mktemp("shared")) as make:
        yield begin(make, python, redis, TELEMETRY="1", AMBIENT="A", VERSION=request.param), python


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
    world.start(python, "-m", "dramatiq", "dramatiq_app", "--processes", "1", "--threads", "1")
    world.wait(1, label="ready")
    return world


def send(world: World, python: Path, scenario: str, **variables: str) -> None:
    world.run(python, PROGRAMS / "dramatiq_send.py", scenario, **{"AMBIENT": "", **variables})


def in_place(new_world: NewWorld, python: Path, **variables: str) -> World:
    """What is seen where worker and senders are one process."""
    world = prepare(new_world, STUB="1", TELEMETRY="1", **variables)
    send(world, python, "in_place")
    return world


def test_a_message_arrives_as_it_was_sent(shared: Shared) -> None:
    world, python = shared
    send(world, python, "one")
    for key in "AB":
        (seen,) = world.wait(1, label=key)
        assert (seen["key"], seen["app"], seen["baggage"], seen["claim"]) == (key, key, key, "shed")
        assert seen["mine"] == key
    (nobody,) = world.wait(1, label="nobody")
    assert nobody["key"].startswith("task:dramatiq:seen:")
    assert (nobody["app"], nobody["others"]) == (None, None)
    (bound,) = world.wait(1, label="bound")
    assert (bound["key"], bound["app"]) == ("bound", None)
    assert sorted(seen["key"] for seen in world.wait(2, label="sent twice")) == ["A", "B"]
    assert not [alert for alert in world.lines("alert") if alert["reason"] != "forged"]


def test_a_key_that_an_actor_never_resets_is_gone_for_the_next(shared: Shared) -> None:
    world, python = shared
    send(world, python, "taint")
    nobody = [world.wait(1, label=f"nobody{number}")[0] for number in range(3)]
    if world.variables["VERSION"] == "highest":
        nobody += [world.wait(1, label=f"nobody waits {number}")[0] for number in range(3)]
    assert {line["app"] for line in nobody} == {None}
    assert len({line["key"] for line in nobody}) == len(nobody)


def test_a_retry_keeps_the_key_of_its_message(shared: Shared) -> None:
    world, python = shared
    send(world, python, "retry")
    labels = ["retries", "binds and retries", "retries later"]
    labels += ["waits and retries"] if world.variables["VERSION"] == "highest" else []
    for label in labels:
        attempts = world.wait(3, label=label)
        assert [(line["key"], line["app"]) for line in attempts] == [("A", "A")] * 3, label
        assert [line["retries"] for line in attempts] == [0, 1, 2]
    attempts = world.wait(3, label="nobody retries")
    assert len({attempt["key"] for attempt in attempts}) == 1
    assert attempts[0]["key"].startswith("task:dramatiq:retried:")


def test_however_it_is_sent_and_whatever_comes_of_it_a_message_is_whose_it_was(shared: Shared) -> None:
    world, python = shared
    send(world, python, "everything")
    labels = ["delayed", "pipeline", "pipeline:followed", "spreads", "spreads:sent", "fails", "fails:on_failure"]
    for label in [*labels, "succeeds", "succeeds:on_success", "skipped", "after it was skipped"]:
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "shed"), label
    for label in ("called", "after"):
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "none"), label


def test_a_claim_is_granted_anew_for_each_attempt(shared: Shared) -> None:
    world, python = shared
    send(world, python, "claimed")
    assert [(line["claim"], line["task"]) for line in world.wait(2, label="claimed")] == [("held", "t1")] * 2


def test_a_carrier_that_is_none_is_dropped_with_an_alert_and_the_actor_runs(shared: Shared) -> None:
    world, python = shared
    before = len(world.lines("alert", reason="forged"))
    send(world, python, "broken")
    labels = ["text", "truncated", "oversized", "number", "list", "types"]
    for label in labels:
        (seen,) = world.wait(1, label=label)
        assert seen["key"].startswith("task:dramatiq:"), label
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
    assert (first["kind"], first["parent"], again["parent"]) == ("CONSUMER", sent["span"], first["span"])
    assert {span["attributes"]["session.id"] for span in (first, again)} == {"A"}
    assert 0 < first["attributes"]["otelctx.hop.wait"] < 60


def test_without_otelctx_an_actor_sees_what_another_one_has_left_and_nothing_of_whose_has_sent_it(
    new_world: NewWorld, python: Path
) -> None:
    world = in_place(new_world, python, OTELCTX_ENABLED="")
    assert [line["app"] for line in world.lines("sighting", label="last")] == ["tainted"]
    assert {line["app"] for label in "AB" for line in world.lines("sighting", label=label)} <= {None, "tainted"}


def test_a_worker_in_place_is_nobodys_and_what_it_runs_is_whose_has_sent_it(
    new_world: NewWorld, python: Path, version: str
) -> None:
    world = in_place(new_world, python)
    for label, number in {"A": 1, "delayed": 1, "retries": 3, "binds and retries": 3, "retries later": 3}.items():
        seen = [(line["key"], line["app"]) for line in world.lines("sighting", label=label)]
        assert seen == [("A", "A")] * number, label
    for label in ("nobody", "nobody0", "nobody1", "nobody2", "last"):
        (nobody,) = world.lines("sighting", label=label)
        assert nobody["key"].startswith("task:dramatiq:seen:")
        assert nobody["app"] is None
    for label in ("consumer", "thread"):
        threads = world.lines("sighting", label=label)
        assert {(line["key"], line["app"], line["others"]) for line in threads} == {(None, None, None)}, label
    assert not world.lines("alert")


def test_workers_and_senders_with_and_without_otelctx_read_each_other(
    new_world: NewWorld, python: Path, redis: str
) -> None:
    old_worker = begin(new_world, python, redis, OTELCTX_ENABLED="")
    send(old_worker, python, "one", **ON)
    send(old_worker, python, "retry", **ON)
    for label, number in {"A": 1, "B": 1, "retries": 3, "retries later": 3}.items():
        assert {line["key"] for line in old_worker.wait(number, label=label)} == {None}
    worker = begin(new_world, python, redis)
    send(worker, python, "one", OTELCTX_ENABLED="")
    for label in ("A", "B", "nobody"):
        (seen,) = worker.wait(1, label=label)
        assert seen["key"].startswith("task:")
    send(worker, python, "retry", OTELCTX_ENABLED="")
    assert len({line["key"] for line in worker.wait(3, label="retries")}) == 1


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
    (seen,) = world.wait(1, label="delayed")
    assert seen["key"].startswith("task:")
    world.wait(1, "alert", reason="forged")


def test_observe_changes_nothing_and_says_what_is_lost(new_world: NewWorld, python: Path) -> None:
    world = in_place(new_world, python, OTELCTX_MODE="observe")
    assert [line["app"] for line in world.lines("sighting", label="last")] == ["tainted"]
    assert "A" not in {line["key"] for line in world.lines("sighting", label="retries")}
    reasons = {(alert["reason"], alert["action"]) for alert in world.lines("alert")}
    assert {("lost", "observed"), ("leaked", "observed")} <= reasons


def test_enforce_refuses_a_message_and_its_workers_thread_lives_on(new_world: NewWorld, python: Path) -> None:
    world = prepare(new_world, STUB="1", OTELCTX_MODE="enforce", APP_SESSION="X")
    (world.folder / "otelctx.toml").write_text(CONFIG.replace(" }]", ' }, { env = "APP_SESSION" }]'))
    send(world, python, "refused")
    assert not world.lines("sighting", label="A")
    assert [line["key"] for line in world.lines("sighting", label="X")] == ["X"]
    assert [line["reasons"] for line in world.lines("refused")] == [["MismatchError", "KeyError"]]
