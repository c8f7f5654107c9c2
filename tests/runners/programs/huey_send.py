"""Enqueues tasks as an application does: ``python huey_send.py SCENARIO``."""

from __future__ import annotations

import sys

import huey_app as tasks
from huey_app import huey
from sightings import see, session

import otelctx


def one() -> None:
    """Under A, under B and under nothing."""
    for key in "AB":
        with session(key):
            tasks.seen(key)
    tasks.seen("nobody")
    with otelctx.bind(session="bound"):
        tasks.seen("bound")


def taint() -> None:
    """A task that sets the key and never resets it, before one of nobody."""
    for number in range(3):
        with session("A"):
            tasks.taints(f"A{number}", "tainted")
        tasks.taints(f"nobody{number}", "tainted")


def retry() -> None:
    """Under A, with B served in between; a task that binds another key before it fails."""
    with session("A"):
        tasks.retried("retries", 2)
        tasks.retried("binds and retries", 2, "tainted")
        tasks.retried.schedule(args=("retries later", 2), delay=1, retry_delay=1)
    with session("B"):
        tasks.seen("between")
    tasks.retried("nobody retries", 2)


def everything() -> None:
    """Everything that enqueues otherwise, or later."""
    with session("A"):
        tasks.seen.schedule(args=("scheduled",), delay=1)
        huey.enqueue(tasks.seen.s("pipeline 1").then(tasks.passed).then(tasks.passed))
        huey.enqueue(tasks.retried.s("fails", 9, retries=0).error(tasks.passed))
        tasks.seen.map(["mapped 1", "mapped 2"])
        tasks.spreads("spreads")
        tasks.with_resource("with resource")


def immediate() -> None:
    """Tasks that run at once, in the caller; a periodic one is a run of a cron job."""
    with session("A"):
        tasks.seen("immediate")
        tasks.ticked()
        see("after")


def now() -> None:
    """A periodic task that somebody runs out of turn."""
    with session("A"):
        tasks.ticked()
        see("after")


def traced() -> None:
    """Within a span."""
    from opentelemetry import trace

    with session("A"), trace.get_tracer("tests").start_as_current_span("turn"):
        tasks.retried("traced", 1)


def broken() -> None:
    """Carriers that are none."""
    carriers = {
        "text": b"nonsense",
        "truncated": b'1..{"n":"0',
        "oversized": b"1.." + b"x" * 20_000,
        "bytes": b"\xff\xfe",
        "types": b'1..{"n":"0","t":"yesterday","keys":{"session":["B"]}}',
        "signature": b'1.AAAA.{"n":"0","t":1,"keys":{"session":{"v":"B"}}}',
    }
    for name, carrier in carriers.items():
        written = huey.serialize_task(tasks.seen.s(name))
        written = written.partition(b"\0otelctx:")[0]
        huey.storage.enqueue(written + b"\0otelctx:" + carrier + b"\0", None)


def table() -> None:
    """The rows of the table: after B's task, which leaves the key."""
    with session("B"):
        tasks.taints("B", "B")
    with session("A"):
        tasks.seen("under A")
    tasks.seen("under nothing")
    with session("A"):
        tasks.retried("retry", 1)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
