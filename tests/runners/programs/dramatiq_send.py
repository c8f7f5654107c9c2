"""Sends messages as an application does: ``python dramatiq_send.py SCENARIO``."""

from __future__ import annotations

import sys

import dramatiq_app as actors
from dramatiq import Worker, pipeline
from dramatiq_app import broker
from sightings import see, session, write

import otelctx


def one() -> None:
    """Under A, under B and under nothing."""
    for key in "AB":
        with session(key):
            actors.seen.send_with_options(args=(key,), mine=key)
    actors.seen.send("nobody")
    with otelctx.bind(session="bound"):
        actors.seen.send("bound")
    with session("A"):
        message = actors.seen.message("sent twice")
        broker.enqueue(message)
    with session("B"):
        broker.enqueue(message)


def taint() -> None:
    """An actor that sets the key and never resets it, before one of nobody."""
    for number in range(3):
        with session("A"):
            actors.taints.send(f"A{number}", "tainted")
            if actors.HAS_ASYNC_ACTORS:
                actors.waits.send(f"waits {number}", 0, "tainted")
        actors.seen.send(f"nobody{number}")
        if actors.HAS_ASYNC_ACTORS:
            actors.waits.send(f"nobody waits {number}")


def retry() -> None:
    """Under A, with B served in between; an actor that binds another key before it fails."""
    with session("A"):
        actors.retried.send("retries", 2)
        actors.retried.send("binds and retries", 2, "tainted")
        actors.retried.send_with_options(args=("retries later", 2), delay=200)
        if actors.HAS_ASYNC_ACTORS:
            actors.waits.send("waits and retries", 2, "tainted")
    with session("B"):
        actors.seen.send("between")
    actors.retried.send("nobody retries", 2)


def everything() -> None:
    """Everything that sends otherwise, or later."""
    with session("A"):
        actors.seen.send_with_options(args=("delayed",), delay=100)
        pipeline([actors.followed.message("pipeline"), actors.seen.message()]).run()
        actors.spreads.send("spreads")
        actors.fails.send_with_options(args=("fails",), on_failure=actors.on_failure)
        actors.followed.send_with_options(args=("succeeds",), on_success=actors.on_success)
        actors.seen.send("skipped")
        actors.seen("called")
        see("after")


def traced() -> None:
    """Within a span."""
    from opentelemetry import trace

    with session("A"), trace.get_tracer("tests").start_as_current_span("turn"):
        actors.retried.send("traced", 1)


def claimed() -> None:
    """By a worker that holds a claim."""
    with session("A"), otelctx.grant_claim(otelctx.Claim("t1")):
        actors.retried.send("claimed", 1)


def broken() -> None:
    """Carriers that are none."""
    carriers = {
        "text": "nonsense",
        "truncated": '1..{"n":"0',
        "oversized": "1.." + "x" * 20_000,
        "number": 1,
        "list": ["1", "", "{}"],
        "types": '1..{"n":"0","t":"yesterday","keys":{"session":["B"]}}',
        "signature": '1.AAAA.{"n":"0","t":1,"keys":{"session":{"v":"B"}}}',
    }
    for name, carrier in carriers.items():
        message = actors.seen.message(name).copy(options={"redis_message_id": name, "otelctx": carrier})
        broker.do_enqueue(message.queue_name, name, message.encode())


def table() -> None:
    """The rows of the table: after B's message, whose actor leaves the key."""
    with session("B"):
        actors.taints.send("B", "B")
    with session("A"):
        actors.seen.send("under A")
    actors.seen.send("under nothing")
    with session("A"):
        actors.retried.send("retry", 1)


def in_place() -> None:
    """A worker and its senders in one process, on a broker in memory; the worker is started in a turn of C's."""
    worker = Worker(broker, worker_threads=1, worker_timeout=50)
    with session("C"):
        worker.start()
    for scenario in (one, taint, retry):
        scenario()
    with session("A"):
        actors.seen.send_with_options(args=("delayed",), delay=50)
    broker.join("default", fail_fast=False)
    worker.join()
    actors.seen.send("last")  # older versions run what is there in any order
    broker.join("default", fail_fast=False)
    worker.stop()


def refused() -> None:
    """In enforce, with an environment that is X's: a message of A's, and then one of X's, in the same thread."""
    worker = Worker(broker, worker_threads=1, worker_timeout=50)
    worker.start()
    for key in "AX":
        with session(key):
            actors.fails.send(key)
        broker.join("default", fail_fast=False)
    write("refused", reasons=[type(letter._exception).__name__ for letter in broker.dead_letters])
    worker.stop()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
