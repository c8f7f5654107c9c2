"""Jobs of an application that uses RQ: they write down what they see. Workers and senders import them."""

from __future__ import annotations

import os
from typing import Any

import sightings
from redis import Redis
from rq import Queue, get_current_job
from sightings import APP_KEY, see

sightings.ambient()
if os.environ.get("TELEMETRY"):
    sightings.telemetry()

connection = Redis.from_url(os.environ["BROKER"])
queue = Queue("default", connection=connection)


def seen(label: str) -> str:
    """Write down what is seen."""
    job = get_current_job()
    see(label, id=job.id if job else None, meta=job.meta if job else None)
    return label


def taints(label: str, key: str) -> None:
    """Set the application's variable, and never take it back."""
    see(label)
    APP_KEY.set(key)


def fails(label: str, times: int = 99, bound: str = "") -> None:
    """Fail `times` times; `bound`: what the application's variable is by then."""
    see(label)
    if bound:
        APP_KEY.set(bound)
    if connection.incr(f"failed:{label}") <= times:
        raise ValueError(label)


def spreads(label: str) -> None:
    """Enqueue another job."""
    see(label)
    queue.enqueue(seen, f"{label}:sent")


def hangs(label: str) -> None:
    """Run until it is stopped."""
    import time

    see(label)
    time.sleep(30)


def succeeded(job: Any, connection: Any, result: Any) -> None:
    """Be called back."""
    see("on_success")


def failed(job: Any, connection: Any, *exc_info: Any) -> None:
    """Be called back."""
    see("on_failure")


def stopped(job: Any, connection: Any) -> None:
    """Be called back, in the worker itself."""
    see("on_stopped")
