"""Huey on SQLite, with real consumers: what a task sees.

`programs/huey_consumer.py`, `programs/huey_app.py` and `programs/huey_send.py` are what runs in Huey's environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runners.conftest import RunnerPython
from tests.runners.world import PROGRAMS, NewWorld, World, worlds

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install the runner

VERSIONS = {"lowest": ("huey==2.5.5",), "highest": ("huey==3.5.4", "gevent")}
ON = {"OTELCTX_ENABLED": "true"}
CONFIG = """
[keys.session]
sources = [{ contextvar = "sightings:APP_KEY" }]
"""
WORKERS = [
    ("lowest", "thread"),
    ("lowest", "process"),
    *[("highest", kind) for kind in ("thread", "process", "greenlet")],
]

Shared = tuple[World, Path]


@pytest.fixture(scope="module", params=WORKERS, ids="-".join)
def shared(
    request: pytest.FixtureRequest, runner_python: RunnerPython, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    """A world with a ready consumer, for each version and kind of worker; its lines are told apart by their labels."""
    version, kind = request.param
    python = runner_python(*VERSIONS[version])
    with worlds(tmp_path_factory.mktemp("shared")) as make:
        yield begin(make, python, kind, TELEMETRY="1"), python


@pytest.fixture(params=list(VERSIONS))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python(version: str, runner_python: RunnerPython) -> Path:
    return runner_python(*VERSIONS[version])


def prepare(new_world: NewWorld, **variables: str) -> World:
    world = new_world(**{**ON, **variables})
    world.variables["DATABASE"] = str(world.folder / "huey.db")
    (world.folder / "otelctx.toml").write_text(CONFIG)
    world.variables["OTELCTX_CONFIG"] = str(world.folder / "otelctx.toml")
    return world


def begin(new_world: NewWorld, python: Path, *arguments: str, **variables: str) -> World:
    world = prepare(new_world, **variables)
    world.start(python, PROGRAMS / "huey_consumer.py", *arguments)
    world.wait(1, label="ready")
    return world


def send(world: World, python: Path, scenario: str, **variables: str) -> None:
    world.run(python, PROGRAMS / "huey_send.py", scenario, **variables)


def test_a_task_arrives_as_it_was_enqueued(shared: Shared) -> None:
    world, python = shared
    send(world, python, "one")
    for key in "AB":
        (seen,) = world.wait(1, label=key)
        assert (seen["key"], seen["app"], seen["baggage"], seen["claim"]) == (key, key, key, "shed")
    (nobody,) = world.wait(1, label="nobody")
    assert nobody["key"].startswith("task:huey:huey_app.seen:")
    assert nobody["app"] is None
    (bound,) = world.wait(1, label="bound")
    assert (bound["key"], bound["app"]) == ("bound", None)


def test_a_key_that_a_task_never_resets_is_gone_for_the_next(shared: Shared) -> None:
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
        assert [(line["key"], line["app"]) for line in attempts] == [("A", "A")] * 3, label
    attempts = world.wait(3, label="nobody retries")
    assert len({attempt["key"] for attempt in attempts}) == 1
    assert attempts[0]["key"].startswith("task:huey:huey_app.retried:")


def test_however_it_is_enqueued_and_whatever_comes_of_it_a_task_is_whose_it_was(shared: Shared) -> None:
    world, python = shared
    send(world, python, "everything")
    once = ["scheduled", "fails", "mapped 1", "mapped 2", "spreads", "spreads:sent", "resource", "with resource"]
    for label, number in {**dict.fromkeys(once, 1), "fails": 2, "pipeline 1": 3}.items():
        for seen in world.wait(number, label=label):
            assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "shed"), label


def test_a_carrier_that_is_none_is_dropped_with_an_alert_and_the_task_runs(shared: Shared) -> None:
    world, python = shared
    before = len(world.lines("alert", reason="forged"))
    send(world, python, "broken")
    labels = ["text", "truncated", "oversized", "bytes", "types"]
    for label in labels:
        (seen,) = world.wait(1, label=label)
        assert seen["key"].startswith("task:huey:"), label
        assert seen["app"] is None, label
    assert len(world.wait(before + len(labels), "alert", reason="forged")) >= before + len(labels)


def test_a_run_has_a_span_with_its_wait_below_the_one_that_sent_it(shared: Shared) -> None:
    world, python = shared
    send(world, python, "traced")
    (sent,) = world.wait(1, "span", name="turn")
    spans = world.wait(3, "span", trace=sent["trace"])
    by_name = {span["name"]: span for span in spans}
    first, again = by_name["task huey_app.retried"], by_name["retry huey_app.retried"]
    assert (first["kind"], first["parent"], again["parent"]) == ("CONSUMER", sent["span"], first["span"])
    assert {span["attributes"]["session.id"] for span in (first, again)} == {"A"}
    assert 0 < first["attributes"]["otelctx.hop.wait"] < 60


def test_a_periodic_task_that_somebody_runs_out_of_turn_is_nobodys(shared: Shared) -> None:
    world, python = shared
    send(world, python, "now")
    first, again = world.wait(2, label="tick")
    assert first["key"] == again["key"]
    assert first["key"].startswith("cron:huey:huey_app.ticked:")
    assert (first["app"], first["claim"]) == (None, "shed")
    (after,) = world.wait(1, label="after")
    assert (after["key"], after["app"]) == ("A", "A")


def test_in_immediate_mode_a_task_inherits_from_its_caller_and_a_periodic_one_is_nobodys(
    new_world: NewWorld, python: Path
) -> None:
    world = prepare(new_world, IMMEDIATE="1")
    send(world, python, "immediate")
    for label in ("immediate", "after"):
        (seen,) = world.wait(1, label=label)
        assert (seen["key"], seen["app"], seen["claim"]) == ("A", "A", "none"), label
    ticks = world.wait(2, label="tick")
    assert len({tick["key"] for tick in ticks}) == 1
    assert ticks[0]["key"].startswith("cron:huey:huey_app.ticked:")
    assert {(tick["app"], tick["claim"]) for tick in ticks} == {(None, "shed")}


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_tick_has_a_key_of_its_own_which_its_retries_keep_and_a_consumer_is_nobodys(
    kind: str, new_world: NewWorld, python: Path
) -> None:
    world = begin(new_world, python, kind, "tick", TELEMETRY="1", AMBIENT="A")
    (ready,) = world.wait(1, label="ready")
    assert (ready["key"], ready["app"]) == (None, None)
    ticks = world.wait(4, label="tick")
    first = {tick["id"]: tick["key"] for tick in ticks if tick["left"] == 1}
    again = {tick["id"]: tick["key"] for tick in ticks if tick["left"] == 0}
    assert len(set(first.values())) == len(first)
    assert again.items() <= first.items()
    assert again
    assert all(key.startswith("cron:huey:huey_app.ticked:") for key in first.values())
    assert {(tick["app"], tick["claim"]) for tick in ticks} == {(None, "shed")}
    assert {span["parent"] for span in world.wait(1, "span", name="cron huey_app.ticked")} == {None}
    assert not world.lines("alert")


@pytest.mark.parametrize("serializer", ["signed", "gzip", "zlib"])
def test_a_carrier_is_inside_of_what_is_compressed_and_signed(
    serializer: str, new_world: NewWorld, python: Path
) -> None:
    world = begin(new_world, python, "thread", SERIALIZER=serializer)
    send(world, python, "one")
    assert {line["key"] for line in world.wait(1, label="A")} == {"A"}


@pytest.mark.parametrize("serializer", ["plain", "signed", "gzip", "zlib"])
def test_consumers_and_senders_with_and_without_otelctx_read_each_other(
    serializer: str, new_world: NewWorld, python: Path
) -> None:
    old = begin(new_world, python, "thread", OTELCTX_ENABLED="", SERIALIZER=serializer)
    send(old, python, "one", **ON)
    send(old, python, "retry", **ON)
    for label, number in {"A": 1, "B": 1, "retries": 3, "retries later": 3}.items():
        assert {line["key"] for line in old.wait(number, label=label)} == {None}
    new = begin(new_world, python, "thread", SERIALIZER=serializer)
    send(new, python, "one", OTELCTX_ENABLED="")
    for label in ("A", "B", "nobody"):
        (seen,) = new.wait(1, label=label)
        assert seen["key"].startswith("task:")
    send(new, python, "retry", OTELCTX_ENABLED="")
    assert len({line["key"] for line in new.wait(3, label="retries")}) == 1


def test_a_message_is_believed_only_with_a_signature_where_a_secret_is_set(new_world: NewWorld, python: Path) -> None:
    secret = "a secret that is long enough to be one"
    world = begin(new_world, python, "thread", TELEMETRY="1", OTELCTX_SECRET=secret)
    send(world, python, "one")
    send(world, python, "retry")
    for label, number in {"A": 1, "retries": 3, "retries later": 3}.items():
        assert {line["key"] for line in world.wait(number, label=label)} == {"A"}
    assert not world.lines("alert")
    send(world, python, "everything", OTELCTX_SECRET="another secret that is long enough")
    (seen,) = world.wait(1, label="mapped 1")
    assert seen["key"].startswith("task:")
    world.wait(1, "alert", reason="forged")


def test_observe_changes_nothing_and_says_what_is_lost(new_world: NewWorld, python: Path) -> None:
    world = begin(new_world, python, "thread", OTELCTX_MODE="observe", TELEMETRY="1")
    send(world, python, "taint")
    (first,) = world.wait(1, label="A0")
    assert (first["key"], first["app"]) == (None, None)
    (nobody,) = world.wait(1, label="nobody0")
    assert nobody["app"] == "tainted"
    reasons = {(alert["reason"], alert["action"]) for alert in world.wait(2, "alert")}
    assert {("lost", "observed"), ("leaked", "observed")} <= reasons
