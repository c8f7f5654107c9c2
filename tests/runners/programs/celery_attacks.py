"""Celery, with a worker in a thread of this process: tasks that leave their variable set, and what comes after them."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import seen
from celery import Celery, chain, chord, signals
from celery.contrib.testing.worker import start_worker
from seen import APP_KEY, see, wait_for

import otelctx

app = Celery("celery_attacks", broker="memory://", backend="cache+memory://")
app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
app.conf.task_protocol = int(os.environ.get("PROTOCOL", "2"))
app.conf.update(worker_prefetch_multiplier=1, broker_transport_options={"polling_interval": 0.01})


@app.task
def one(label: str) -> None:
    """Write down what is seen."""
    see(label)


@app.task
def leaves(label: str) -> None:
    """The same, and leave the variable set."""
    see(label)
    APP_KEY.set("left")


@app.task
def fails(label: str) -> None:
    """The same, and fail."""
    see(label)
    APP_KEY.set("left")
    raise ValueError(label)


@app.task(bind=True)
def sends(self: Any, label: str) -> None:
    """Work for a session of the task's own, and send something in its turn; run an eager task that has a callback."""
    see(label)
    APP_KEY.set("A.sub")
    one.delay(f"{label}:sent")
    one.s(f"{label}:eager").apply(link=one.si(f"{label}:eager:link"))
    fails.s(f"{label}:eager:fails").apply(link_error=failed_eagerly.s())


@app.task(bind=True, max_retries=1)
def looks(self: Any, label: str) -> None:
    """Write down the headers that the task has got; twice."""
    see(label)
    seen.seen[-1]["headers"] = [self.request.headers, self.request.as_execution_options().get("headers")]
    seen.seen[-1]["others"] = sorted(name for name in vars(self.request) if "otel" in name)
    raise self.retry(countdown=0)


@app.task
def failed_eagerly(request: Any, exc: Any, traceback: Any) -> None:
    """An error callback of a task that a task runs within itself."""
    see("sends:eager:called back")


@app.task
def failed(request: Any, exc: Any, traceback: Any) -> None:
    """An error callback of the newer kind: Celery calls it."""
    see("called back")


def brought() -> None:
    """What messages bring along: links, callbacks, error callbacks, bodies of chords."""
    chain(leaves.si("chain 1"), one.si("chain 2")).delay()
    wait_for("chain 2")
    leaves.apply_async(["linked"], link=one.si("link"))
    wait_for("link")
    leaves.apply_async(["linked twice"], link=[one.si("link of two"), one.si("link of two")])
    wait_for("link of two", 2)
    fails.apply_async(["failing"], link_error=failed.s())
    wait_for("called back")
    fails.apply_async(["failing again"], link_error=one.si("sent back"))
    wait_for("sent back")
    chord([leaves.si("header"), leaves.si("header")], one.si("body")).delay()
    wait_for("body")
    sends.apply_async(["sends"], link=one.si("link of sends"))
    for label in ("sends:sent", "sends:eager:link", "sends:eager:called back", "link of sends"):
        wait_for(label)


def revoked() -> None:
    """A header of a chord that is revoked: its error callback is sent by the worker itself."""
    header = [one.si("header"), one.si("never").set(expires=-1)]
    chord(header, one.si("body").on_error(one.si("sent back"))).delay()
    wait_for("sent back")


def headers() -> None:
    """Tasks that are sent with headers of the application's, and without."""
    own = {"mine": "1"}
    looks.apply_async(["with headers"], headers=own)
    looks.apply_async(["without headers"])
    for label in ("with headers", "without headers"):
        wait_for(label, 2)
    see("own")
    seen.seen[-1]["own"] = own


def broken() -> None:
    """A message whose carrier cannot be read, for a task that fails."""

    def breaks(headers: Any = None, **_: Any) -> None:
        headers["otelctx"] = "1..{"

    signals.before_task_publish.connect(breaks)
    result = fails.delay("broken")
    result.get(timeout=20, propagate=False)
    signals.before_task_publish.disconnect(breaks)
    one.delay("next")
    wait_for("next")  # the worker is done with the one before


if __name__ == "__main__":
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="CRITICAL"):
        with otelctx.bind(session="A"):
            token = APP_KEY.set("A")
            {"brought": brought, "revoked": revoked, "headers": headers, "broken": broken}[sys.argv[1]]()
            APP_KEY.reset(token)
        time.sleep(0)
        seen.report()
