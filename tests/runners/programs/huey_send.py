"""Enqueues tasks as an application does: ``python huey_send.py SCENARIO``."""

from __future__ import annotations

import sys
from typing import Any

import huey_app as tasks
import turns
from huey_app import huey
from sightings import see, session, write

sent: dict[str, Any] = {}


def send(task: str, label: str, *others: object) -> None:
    sent[label] = getattr(tasks, task)(label, *others)


def later() -> None:
    """A task for later, with retries for later."""
    with session("A"):
        tasks.retried.schedule(args=("retries later", 2), delay=1, retry_delay=1)


def everything() -> None:
    """Everything that enqueues otherwise, or later."""
    with session("A"):
        tasks.seen.schedule(args=("scheduled",), delay=1)
        huey.enqueue(tasks.seen.s("pipeline 1").then(tasks.passed).then(tasks.passed))
        huey.enqueue(tasks.retried.s("fails", 9, retries=0).error(tasks.passed))
        tasks.seen.map(["mapped 1", "mapped 2"])
        tasks.with_resource("with resource")


def immediate() -> None:
    """A periodic task that runs at once, in the caller, is a run of a cron job all the same."""
    with session("A"):
        tasks.ticked()
        see("after")


def now() -> None:
    """A periodic task that somebody runs out of turn."""
    with session("A"):
        tasks.ticked()
        see("after")


def broken() -> None:
    """Carriers that are none."""
    carriers = {**{name: carrier.encode() for name, carrier in turns.BROKEN.items()}, "bytes": b"\xff\xfe"}
    for name, carrier in carriers.items():
        written = huey.serialize_task(tasks.seen.s(name))
        written = written.partition(b"\0otelctx:")[0]
        huey.storage.enqueue(written + b"\0otelctx:" + carrier + b"\0", None)


def outcome() -> None:
    """What has become of the messages that a worker in enforce has refused, and what is left."""
    from huey.exceptions import TaskException

    errors = []
    for label in turns.REFUSED:
        try:
            sent[label].get(blocking=True, timeout=5)
            errors.append("nothing")
        except TaskException as exc:
            errors.append(exc.metadata["error"].partition("(")[0])
        except Exception as exc:
            errors.append(repr(exc))
    write("outcome", errors=errors, waiting=turns.settled(huey.pending_count))


if __name__ == "__main__":
    turns.run(sys.argv[1:], send, globals())
