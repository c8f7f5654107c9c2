"""Jobs of an application that uses RQ: they write down what they see. Workers and senders import them."""

from __future__ import annotations

import os
from typing import Any

import attributes
import rq.worker
import sightings
from redis import Redis
from rq import Queue, Retry, get_current_job
from sightings import APP_KEY, see

if os.environ.get("TELEMETRY"):
    sightings.telemetry()

connection = Redis.from_url(os.environ["BROKER"])
queue = Queue("default", connection=connection, is_async=not os.environ.get("IN_PLACE"))


def seen(label: str) -> str:
    """Write down what is seen."""
    job = get_current_job()
    see(label, id=job.id if job else None, meta=job.meta if job else None)
    return label


def taints(label: str, key: str) -> None:
    """Set the application's variable, and never take it back."""
    see(label)
    APP_KEY.set(key)


def retried(label: str, times: int, bound: str = "") -> None:
    """Fail `times` times; `bound`: what the application's variable is by then."""
    see(label)
    if bound:
        APP_KEY.set(bound)
    if connection.incr(f"failed:{label}") <= times:
        raise ValueError(label)


def asks_again(label: str, times: int, bound: str) -> Any:
    """Ask for another attempt `times` times, by what it returns, which newer versions know."""
    see(label)
    APP_KEY.set(bound)
    return Retry(max=5) if connection.incr(f"asked:{label}") <= times else None


def dies(label: str) -> None:
    """Take its process down the first time."""
    see(label)
    if connection.incr(f"died:{label}") == 1:
        os._exit(1)


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


class _Watched:
    """A worker that says who it is before each job."""

    def execute_job(self, *args: Any, **kwargs: Any) -> Any:
        see("serves")
        return super().execute_job(*args, **kwargs)  # type: ignore[misc]


class ForkWorker(_Watched, rq.worker.Worker):
    """One that forks."""


class SimpleWorker(_Watched, rq.worker.SimpleWorker):
    """One that does not."""


if hasattr(rq.worker, "SpawnWorker"):

    class SpawnWorker(_Watched, rq.worker.SpawnWorker):
        """One that starts a new interpreter."""


def uninstalls(label: str) -> None:
    """Uninstall otelctx in the process that runs this."""
    see(label)
    attributes.uninstall("rq")


if os.environ.get("INSTALL"):
    attributes.install("rq")
