"""Sends tasks as an application does: ``python celery_send.py SCENARIO``."""

from __future__ import annotations

import os
import sys
import time

import celery_app as tasks
from celery import chain, chord, group
from celery_app import app
from sightings import see, session, write

import otelctx


def one() -> None:
    """Under A, under B and under nothing."""
    for key in "AB":
        with session(key):
            tasks.seen.delay(key)
    tasks.seen.delay("nobody")
    with otelctx.bind(session="bound"):
        app.send_task("celery_app.seen", ["by name"])


def taint() -> None:
    """A task that sets the key and never resets it, before one of nobody, and one of A."""
    for number in range(4):
        with session("A"):
            tasks.taints.delay(f"A{number}", "tainted").get(timeout=20)
        tasks.taints.delay(f"nobody{number}", "tainted").get(timeout=20)


def retry() -> None:
    """Under A, with B served in between; a task that binds another key before it retries."""
    with session("A"):
        tasks.retried.delay("retries", 2, countdown=0.3)
        tasks.retried.delay("binds and retries", 2, bound="tainted")
        tasks.retries_by_itself.delay("retries by itself", 2)
    with session("B"):
        tasks.seen.delay("between")
    tasks.retried.delay("nobody retries", 2)


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


def traced() -> None:
    """Within a span."""
    from opentelemetry import trace

    with session("A"), trace.get_tracer("tests").start_as_current_span("turn"):
        tasks.retried.delay("traced", 1, countdown=0.3)


def claimed() -> None:
    """By a dispatcher's worker, which holds a claim; at once, and for later."""
    with session("A"), otelctx.grant_claim(otelctx.Claim("task-7", holder="me")):
        tasks.retried.delay("claimed", 1)
        tasks.seen.apply_async(["claimed, for later"], countdown=0.2)
    with session("A"), otelctx.shed_claim():
        tasks.seen.delay("shed")


def broken() -> None:
    """Carriers that are none, as whoever can write to the broker may make them."""
    carriers = {
        "text": "nonsense",
        "truncated": '1..{"n":"0',
        "oversized": "1.." + "x" * 20_000,
        "number": 17,
        "list": ["1", "", "{}"],
        "signature": '1.AAAA.{"n":"0","t":1,"k":{"session":"B"}}',
        "types": '1..{"n":"0","t":"yesterday","k":{"session":["B"]}}',
    }

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


def table() -> None:
    """The rows of the table: after B's task, which leaves the key."""
    with session("B"):
        tasks.taints.delay("B", "B").get(timeout=20)
    with session("A"):
        tasks.seen.delay("under A").get(timeout=20)
    tasks.seen.delay("under nothing").get(timeout=20)
    with session("A"):
        tasks.retried.delay("retry", 1)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
