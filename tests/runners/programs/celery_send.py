"""Sends tasks as an application does: ``python celery_send.py SCENARIO``."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import celery_app as tasks
import turns
from celery import chain, chord, group
from celery_app import app
from sightings import see, session, write

import otelctx

sent: dict[str, Any] = {}


def send(task: str, label: str, *others: object) -> None:
    sent[label] = getattr(tasks, task).delay(label, *others)


def by_itself() -> None:
    """A task that Celery retries, and one that is sent by its name."""
    with session("A"):
        tasks.retries_by_itself.delay("retries by itself", 2)
    with otelctx.bind(session="bound"):
        app.send_task("celery_app.seen", ["by name"])


def canvas() -> None:
    """Everything that publishes from a worker, and groups."""
    with session("A"):
        chain(tasks.seen.s("chain 1"), tasks.passed.s("chain 2"), tasks.passed.s("chain 3")).delay()
        group(tasks.seen.s("group"), tasks.seen.s("group")).delay()
        chord([tasks.seen.s("header"), tasks.seen.s("header")], tasks.passed.s("body")).delay()
        tasks.seen.apply_async(["linked"], link=tasks.passed.s("link"))
        tasks.fails.apply_async(["failing"], link_error=tasks.failed.s("link_error"))
        tasks.succeeds.delay("succeeding")
        tasks.replaced.delay("replaced", "replacement")
        tasks.replaced.delay("replaced in a turn", "replacement in a turn", bound="A.sub")
        tasks.seen.apply_async(["countdown"], countdown=0.3)
        tasks.spreads.delay("spreads")
        chain(
            tasks.seen.s("stale 1").set(headers={"otelctx": "1..{}"}),
            tasks.passed.s("stale 2").set(headers={"otelctx": "1..{}"}),
        ).delay()


def eager() -> None:
    """Eager tasks inherit; what they see is the caller's."""
    with session("A"):
        tasks.seen.apply(["apply"])
        if app.conf.task_always_eager:
            tasks.seen.delay("delay")
            tasks.retried.delay("retried", 1, countdown=0)
        see("after")


def worker_lost() -> None:
    """A process that dies, and one that is killed for taking too long."""
    with session("A"):
        tasks.dies_once.delay("redelivered", os.path.join(os.environ["HOME"], "marker"))
        tasks.hangs.apply_async(["hangs"], link_error=tasks.failed.s("killed"))


def for_later() -> None:
    """By a dispatcher's worker, for later."""
    with session("A"), otelctx.grant_claim(otelctx.Claim("t1")):
        tasks.seen.apply_async(["claimed, for later"], countdown=0.2)


def cancelled() -> None:
    """A task that its worker cancels."""
    with session("A"):
        tasks.waits.delay("waits")
    turns.wait_for("waits")
    app.control.broadcast("cancel")


def broken() -> None:
    """Carriers that are none, as whoever can write to the broker may make them."""
    carriers = {**turns.BROKEN, "number": 17, "list": ["1", "", "{}"]}
    current: list[object] = [None]

    @tasks.signals.before_task_publish.connect
    def spoil(headers: dict[str, object], **_: object) -> None:
        headers["otelctx"] = current[0]

    for name, carrier in carriers.items():
        current[0] = carrier
        with session("A"):
            tasks.seen.delay(name)


def many() -> None:
    """MANY tasks of 50 sessions, in turn; says whose they were when all are done."""
    number, client = int(os.environ["MANY"]), app.backend.client
    for index in range(number):
        with session(f"session-{index % 50}"):
            tasks.counted.delay(f"session-{index % 50}", index)
    deadline = time.monotonic() + float(os.environ["PATIENCE"])
    while int(client.get("done") or 0) < number and time.monotonic() < deadline:
        time.sleep(0.2)
    counted = {key.decode(): int(value) for key, value in client.hgetall("counted").items()}
    write("many", done=int(client.get("done") or 0), counted=counted, processes=client.hlen("processes"))


def outcome() -> None:
    """What has become of the messages that a worker in enforce has refused, and what is left."""
    client = app.backend.client
    errors = [type(sent[label].get(timeout=15, propagate=False)).__name__ for label in turns.REFUSED]
    waiting = turns.settled(lambda: client.llen("celery") + client.hlen("unacked"))
    write("outcome", errors=errors, waiting=waiting)


if __name__ == "__main__":
    turns.run(sys.argv[1:], send, globals())
