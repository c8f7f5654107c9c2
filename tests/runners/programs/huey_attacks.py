"""Huey, with a consumer in threads of this process: tasks that leave their variable set, and what comes after them."""

from __future__ import annotations

import sys
from typing import Any

import huey
import seen
from huey.consumer import Consumer
from seen import APP_KEY, see, wait_for

import otelctx

app: Any = huey.MemoryHuey("attacks", results=True)


@app.task()
def one(*before: Any) -> None:
    """Write down what is seen."""
    see("handled" if isinstance(before[0], Exception) else str(before[0]))


@app.task()
def leaves(*before: Any) -> str:
    """The same, and leave the variable set."""
    see(str(before[0]))
    APP_KEY.set("left")
    return str(before[0])


@app.task(retries=1)
def fails(label: str) -> None:
    """The same, and fail; twice."""
    see(label)
    APP_KEY.set("left")
    raise ValueError(label)


@app.task()
def sends(label: str) -> str:
    """Work for a session of the task's own, and send something in its turn."""
    see(label)
    APP_KEY.set("A.sub")
    one(f"{label}:sent")
    return label


def brought() -> None:
    """What messages bring along: what follows in a pipeline, an error handler."""
    app.enqueue(leaves.s("first").then(leaves, "second").then(one, "third"))
    app.enqueue(fails.s("fails").error(one))
    app.enqueue(sends.s("sends").then(one, "after sends"))
    for label in ("third", "handled", "sends:sent", "after sends"):
        wait_for(label)


def chords() -> None:
    """The callback of a chord, whose last member is revoked or leaves the variable set."""
    member = leaves.s("member")
    app.enqueue(huey.chord([leaves.s("member"), member], one.s("body")))
    wait_for("body")
    revoked = leaves.s("never")
    app.revoke(revoked)
    app.enqueue(huey.chord([leaves.s("member"), revoked], one.s("body")))
    wait_for("body", 2)


if __name__ == "__main__":
    consumer = Consumer(app, workers=1, periodic=False, initial_delay=0.01)
    consumer.start()
    with otelctx.bind(session="A"):
        token = APP_KEY.set("A")
        {"brought": brought, "chords": chords}[sys.argv[1]]()
        APP_KEY.reset(token)
    seen.report()
