"""Sends messages as an application does: ``python dramatiq_send.py SCENARIO``."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import dramatiq_app as actors
import turns
from dramatiq import Worker, pipeline
from dramatiq_app import broker
from sightings import session, write

sent: dict[str, Any] = {}


def send(task: str, label: str, *others: object) -> None:
    actor = getattr(actors, task)
    sent[label] = actor(label, *others) if os.environ.get("IN_PLACE") else actor.send(label, *others)


def contract(*scenarios: str) -> None:
    for scenario in scenarios:
        for task, arguments in turns.of(scenario):
            send(task, *arguments)


def own() -> None:
    """One message that is sent twice, one with an option of the application's own, and one for later."""
    with session("A"):
        message = actors.seen.message("sent twice")
        broker.enqueue(message)
    with session("B"):
        broker.enqueue(message)
        actors.seen.send_with_options(args=("with an option",), mine="B")
    with session("A"):
        actors.retried.send_with_options(args=("retries later", 2), delay=200)


def awaited() -> None:
    """Async actors that set the key, and one that does and fails."""
    for number in range(3):
        with session("A"):
            actors.waits.send(f"waits {number}", 0, "tainted")
        actors.waits.send(f"nobody waits {number}")
    with session("A"):
        actors.waits.send("waits and retries", 2, "tainted")


def everything() -> None:
    """Everything that sends otherwise, or later."""
    with session("A"):
        actors.seen.send_with_options(args=("delayed",), delay=100)
        pipeline([actors.followed.message("pipeline"), actors.seen.message()]).run()
        actors.fails.send_with_options(args=("fails",), on_failure=actors.on_failure)
        actors.followed.send_with_options(args=("succeeds",), on_success=actors.on_success)
        actors.seen.send("skipped")


def broken() -> None:
    """Carriers that are none."""
    carriers = {**turns.BROKEN, "number": 1, "list": ["1", "", "{}"]}
    for name, carrier in carriers.items():
        message = actors.seen.message(name).copy(options={"redis_message_id": name, "otelctx": carrier})
        broker.do_enqueue(message.queue_name, name, message.encode())


def in_memory() -> None:
    """A worker and its senders in one process, on a broker in memory; the worker is started in a turn of C's."""
    worker = Worker(broker, worker_threads=1, worker_timeout=50)
    with session("C"):
        worker.start()
    contract("one", "taint", "retry")
    own()
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


def outcome() -> None:
    """What has become of the messages that a worker in enforce has refused, and what is left."""

    def unfinished() -> int:
        return int(broker.client.hlen("dramatiq:default.msgs") + broker.client.hlen("dramatiq:default.DQ.msgs"))

    waiting = turns.settled(unfinished)
    dead = [json.loads(letter) for letter in broker.client.hvals("dramatiq:default.XQ.msgs")]
    labels = {letter["args"][0] for letter in dead}
    write("outcome", errors=["dead" if label in labels else "nothing" for label in turns.REFUSED], waiting=waiting)


if __name__ == "__main__":
    for scenario in sys.argv[1:]:
        contract(scenario) if scenario in turns.SCENARIOS else globals()[scenario]()
