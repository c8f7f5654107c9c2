"""What holds for every task queue, with each kind of its workers, in its lowest and its highest version.

A worker runs one task at a time, and was started in a turn of C's. What is particular to a queue is in its own file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.runners.conftest import RunnerPython
from tests.runners.queues import CONFIG, ON, QUEUES, TaskQueue
from tests.runners.world import PROGRAMS, Line, NewWorld, World, worlds

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install the queue


class Case(NamedTuple):
    queue: TaskQueue
    version: str
    kind: str
    python: Path

    def is_one_of(self, *cases: tuple[str, str]) -> bool:
        """Whether this is one of these: (queue, version)."""
        return (self.queue.name, self.version) in cases


CASES = [(queue, version, kind) for queue in QUEUES for version in queue.versions for kind in queue.kinds[version]]


@pytest.fixture(scope="module", params=CASES, ids=[f"{queue.name}-{version}-{kind}" for queue, version, kind in CASES])
def case(request: pytest.FixtureRequest, runner_python: RunnerPython) -> Case:
    queue, version, kind = request.param
    return Case(queue, version, kind, runner_python(*queue.versions[version]))


# What does not depend on the kind of worker is seen with the first one.
PLAIN = [(queue, version, queue.kinds[version][0]) for queue in QUEUES for version in queue.versions]


@pytest.fixture(scope="module", params=PLAIN, ids=[f"{queue.name}-{version}" for queue, version, _ in PLAIN])
def plain(request: pytest.FixtureRequest, runner_python: RunnerPython) -> Case:
    queue, version, kind = request.param
    return Case(queue, version, kind, runner_python(*queue.versions[version]))


@pytest.fixture(scope="module")
def world(case: Case, redis: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world in which all of it has been sent, which the tests look at; the scheduler was started in a turn of A's."""
    queue, version, kind, python = case
    with worlds(tmp_path_factory.mktemp("queue")) as make:
        world = queue.begin(make, python, redis, kind, TELEMETRY="1", AMBIENT="C", TICK="0.5")
        queue.send(world, python, "one", "taint", "retry", "spread", "claimed", "traced", "broken")
        queue.send(world, python, "one", "retry", OTELCTX_ENABLED="", LABELS="old ")
        command = queue.scheduler(python, version)
        if command is not None:
            world.start(*command, AMBIENT="A")
        yield world


def seen(world: World, label: str) -> Line:
    """The one sighting with this label."""
    (line,) = world.wait(1, label=label)
    return line


def test_a_worker_serves_as_nobody_whoever_has_started_it(world: World) -> None:
    lines = world.wait(1, label="serves")
    assert {(line["key"], line["app"], line["others"], line["claim"]) for line in lines} == {(None, None, None, "none")}


def test_a_task_arrives_as_its_message_was_sent(world: World) -> None:
    for key in "AB":
        line = seen(world, key)
        assert (line["key"], line["app"], line["baggage"], line["claim"]) == (key, key, key, "shed")
    bound = seen(world, "bound")
    assert (bound["key"], bound["app"]) == ("bound", None)


def test_a_message_without_a_key_has_a_fresh_one_and_never_the_workers(case: Case, world: World) -> None:
    nobody = seen(world, "nobody")
    assert nobody["key"].startswith(f"task:{case.queue.name}:{case.queue.module}seen:")
    assert (nobody["app"], nobody["others"], nobody["claim"]) == (None, None, "shed")


def test_what_a_task_binds_and_never_resets_is_gone_for_the_next(world: World) -> None:
    lines = [seen(world, f"nobody{number}") for number in range(3)]
    assert [line["app"] for line in lines] == [None] * 3
    assert len({line["key"] for line in lines}) == 3
    assert [seen(world, f"A{number}")["app"] for number in range(3)] == ["A"] * 3


def test_a_retry_keeps_the_key_of_its_message_whatever_the_task_has_bound_since(world: World) -> None:
    for label in ("retries", "binds and retries"):
        assert [(line["key"], line["app"]) for line in world.wait(3, label=label)] == [("A", "A")] * 3, label


def test_the_attempts_of_a_message_without_a_key_share_a_fresh_one(case: Case, world: World) -> None:
    lines = world.wait(3, label="nobody retries")
    (key,) = {line["key"] for line in lines}
    assert key.startswith(f"task:{case.queue.name}:{case.queue.module}retried:")
    assert {line["app"] for line in lines} == {None}


def test_what_a_task_sends_is_whose_the_task_is(world: World) -> None:
    for label in ("spreads", "spreads:sent"):
        line = seen(world, label)
        assert (line["key"], line["app"], line["claim"]) == ("A", "A", "shed"), label


def test_a_claim_is_granted_to_each_attempt_from_its_message_and_is_shed_without_one(world: World) -> None:
    lines = world.wait(2, label="claimed")
    assert [(line["claim"], line["task"], line["attempt"]) for line in lines] == [("held", "t1", n) for n in "12"]
    assert seen(world, "shed")["claim"] == "shed"


def test_a_tick_has_a_fresh_key_and_no_claim_and_a_root_span(case: Case, world: World) -> None:
    if case.is_one_of(("rq", "lowest"), ("dramatiq", "lowest"), ("dramatiq", "highest")):
        pytest.skip("it has no scheduler of its own")
    by_hand = case.is_one_of(("taskiq", "lowest"))
    ticks = world.wait(2 if by_hand else 3, label="tick")  # some are retried
    assert len({tick["key"] for tick in ticks}) > 1
    assert all(tick["key"].startswith(f"cron:{case.queue.name}:") for tick in ticks)
    assert {(tick["app"], tick["others"], tick["claim"]) for tick in ticks} == {(None, None, "shed")}
    keys = {tick["key"] for tick in ticks}
    spans = [span for span in world.wait(1, "span") if span["attributes"].get("session.id") in keys]
    assert {span["parent"] for span in spans if span["name"].startswith("cron ")} == {None}


def test_a_carrier_that_is_none_is_dropped_with_an_alert_and_the_task_runs(case: Case, world: World) -> None:
    labels = ["text", "truncated", "oversized", "types", *case.queue.broken]
    for label in labels:
        line = seen(world, label)
        assert line["key"].startswith(f"task:{case.queue.name}:"), label
        assert (line["app"], line["claim"]) == (None, "shed"), label
    seen(world, "signature")
    alerts = world.wait(len(labels), "alert", reason="forged")
    assert [(alert["action"], alert["source"].partition(":")[0]) for alert in alerts] == [("dropped", "message")] * len(
        labels
    )


def test_a_run_has_a_span_with_its_wait_below_the_one_that_sent_it(case: Case, world: World) -> None:
    (sent,) = world.wait(1, "span", name="turn")
    spans = world.wait(3, "span", trace=sent["trace"])
    first, again = [span for span in spans if span is not sent and span["name"] != "turn"]
    job = f"{case.queue.module}retried"
    assert [(span["name"], span["kind"]) for span in (first, again)] == [
        (f"task {job}", "CONSUMER"),
        (f"retry {job}", "CONSUMER"),
    ]
    assert first["parent"] == sent["span"]
    assert again["parent"] in (first["span"], sent["span"])  # some send the same message once more
    for span in (first, again):
        assert span["attributes"]["session.id"] == "A"
        assert 0 < span["attributes"]["otelctx.hop.wait"] < 120


def test_a_message_of_a_sender_without_otelctx_has_a_fresh_key_and_so_have_its_attempts(
    case: Case, world: World
) -> None:
    for label in ("old A", "old B", "old nobody"):
        line = seen(world, label)
        assert line["key"].startswith(f"task:{case.queue.name}:"), label
        assert (line["app"], line["others"]) == (None, None), label
    keys = {line["key"] for line in world.wait(3, label="old retries")}
    assert all(key.startswith(f"task:{case.queue.name}:") for key in keys)
    # These send the same message once more, and it has nothing of ours.
    is_sent_again = case.is_one_of(("arq", "lowest"), ("arq", "highest"), ("taskiq", "lowest"))
    assert len(keys) == (3 if is_sent_again else 1)


def test_there_is_no_alert_but_for_carriers_that_are_none(world: World) -> None:
    world.wait(3, label="old nobody retries")  # what was sent last
    assert {alert["reason"] for alert in world.lines("alert")} <= {"forged"}


def test_a_task_that_runs_at_once_is_its_callers(plain: Case, new_world: NewWorld, redis: str) -> None:
    world = plain.queue.world(new_world, redis, IN_PLACE="1")
    plain.queue.send(world, plain.python, "in_place")
    for label in ("in place", "after"):
        (line,) = world.lines("sighting", label=label)
        assert (line["key"], line["app"], line["claim"]) == ("A", "A", "none"), label


def test_a_worker_without_otelctx_reads_what_one_with_it_sends_and_in_observe_it_sees_the_same_and_tells(
    plain: Case, new_world: NewWorld, redis: str
) -> None:
    queue, _, kind, python = plain
    off = queue.begin(new_world, python, redis, kind, OTELCTX_ENABLED="", AMBIENT="C")
    queue.send(off, python, "in_turn", "retry", **ON)
    observed = queue.begin(new_world, python, redis, kind, OTELCTX_MODE="observe", AMBIENT="C", TELEMETRY="1")
    queue.send(observed, python, "in_turn")
    queue.send(observed, python, "traced")
    # What it sees of itself, in tasks of which each is sent once the one before it has run.
    labels = ["A", "B", "nobody", "bound", *[f"{who}{number}" for number in range(3) for who in ("A", "nobody")]]
    assert {label: _of_the_applications(seen(observed, label)) for label in labels} == {
        label: _of_the_applications(seen(off, label)) for label in labels
    }
    assert len(off.wait(3, label="retries")) == 3
    assert {line["claim"] for line in off.lines("sighting")} == {"none"}
    alerts = {(alert["reason"], alert["action"]) for alert in observed.wait(2, "alert")}
    assert ("foreign", "observed") in alerts
    assert {action for _, action in alerts} == {"observed"}
    # A retry is its message's here too: other workers may do more than observe.
    (sent,) = observed.wait(1, "span", name="turn")
    runs = [span for span in observed.wait(3, "span", trace=sent["trace"]) if span["name"].endswith("retried")]
    assert [span["attributes"]["session.id"] for span in runs] == ["A", "A"]


def _of_the_applications(line: Line) -> tuple[object, object]:
    return line["app"], line["others"]


def test_a_message_is_believed_only_with_a_signature_where_a_secret_is_set(
    plain: Case, new_world: NewWorld, redis: str
) -> None:
    queue, _, kind, python = plain
    secret = "a secret that is long enough to be one"
    world = queue.begin(new_world, python, redis, kind, TELEMETRY="1", OTELCTX_SECRET=secret)
    queue.send(world, python, "one", "retry")
    for label, number in {"A": 1, "retries": 3}.items():
        assert {line["key"] for line in world.wait(number, label=label)} == {"A"}, label
    assert not world.lines("alert")
    queue.send(world, python, "broken")
    queue.send(world, python, "spread", OTELCTX_SECRET="another secret that is long enough")
    for label in ("signature", "text", "spreads"):
        line = seen(world, label)
        assert line["key"].startswith(f"task:{queue.name}:"), label
        assert (line["app"], line["claim"]) == (None, "shed"), label
    # The broken ones, and the one of the other secret; what its task sends is signed again.
    assert len(world.wait(6 + len(queue.broken), "alert", reason="forged")) == 6 + len(queue.broken)
    (sent,) = {line["key"] for line in world.wait(1, label="spreads:sent")}
    assert sent == seen(world, "spreads")["key"]


def test_enforce_fails_a_task_that_it_refuses_once_and_the_worker_goes_on(
    case: Case, new_world: NewWorld, redis: str
) -> None:
    queue, _, kind, python = case
    config = CONFIG.replace(" }]", ' }, { env = "APP_SESSION" }]')
    world = queue.world(new_world, redis, config, OTELCTX_MODE="enforce", TELEMETRY="1", APP_SESSION="B")
    queue.work(world, python, kind)
    queue.send(world, python, "refused", "outcome", APP_SESSION="")
    for number in range(2):
        assert seen(world, f"after {number}")["key"] == "B"
    (outcome,) = world.wait(1, "outcome")
    assert outcome["errors"] == [queue.refusal] * 4
    assert outcome["waiting"] == 0
    assert not [line for line in world.lines("sighting") if "refused" in line["label"]]
    # A refusal is a failure like any other: of the tasks that are retried then, each attempt is refused.
    attempts = {"rq": 4, "huey": 3, "dramatiq": 6}.get(queue.name, 1)
    assert len(world.wait(2 + 2 * attempts, "alert", action="raised")) == 2 + 2 * attempts


def test_uninstalled_in_a_sender_the_library_is_exactly_what_it_was(
    plain: Case, new_world: NewWorld, redis: str
) -> None:
    world = plain.queue.world(new_world, redis, OTELCTX_ENABLED="")
    name, application = plain.queue.name, plain.queue.application
    world.run(plain.python, PROGRAMS / "attributes.py", name, application)
    _see_that_it_is_gone(plain, world)


def test_uninstalled_in_a_worker_it_goes_on_as_without_otelctx(plain: Case, new_world: NewWorld, redis: str) -> None:
    queue, _, kind, python = plain
    world = queue.begin(new_world, python, redis, kind, OTELCTX_ENABLED="", INSTALL="1")
    queue.send(world, python, "one", INSTALL="", **ON)
    for label in "AB":
        assert seen(world, label)["key"] == label
    queue.send(world, python, "uninstall", INSTALL="", **ON)
    _see_that_it_is_gone(plain, world)
    queue.send(world, python, "one", "retry", INSTALL="", LABELS="after ", **ON)
    for label, number in {"A": 1, "nobody": 1, "retries": 3}.items():
        lines = world.wait(number, label=f"after {label}")
        assert "A" not in {line[what] for line in lines for what in ("key", "app", "baggage")}, label
        assert {line["claim"] for line in lines} == {"none"}, label


def _see_that_it_is_gone(case: Case, world: World) -> None:
    (line,) = world.wait(1, "uninstalled")
    assert len(line["patched"]) > 2
    assert len(line["changed"]) >= len(line["patched"])  # some are known by two names
    # A worker of Celery's patches Celery itself.
    own = {"celery.app.task:Task.__call__", "celery.app.task:BaseTask.__call__"}
    assert (line["twice"], [name for name in line["left"] if name not in own]) == ([], [])
