"""Coroutines of an application that uses arq, and its worker's settings. Workers and senders import it."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import attributes
import sightings
from arq import Retry, cron
from arq.connections import RedisSettings
from sightings import APP_KEY, see

sightings.ambient()
if os.environ.get("TELEMETRY"):
    sightings.telemetry()

SETTINGS = RedisSettings.from_dsn(os.environ["BROKER"])


def dumps(data: dict[str, Any]) -> bytes:
    return json.dumps(data, default=str).encode()


def strict(data: dict[str, Any]) -> bytes:
    """A serializer that takes arq's own entries only."""
    if "f" in data and "s" not in data and set(data) != {"t", "f", "a", "k", "et"}:
        raise TypeError(data)
    return dumps(data)


SERIALIZERS = {
    "pickle": {},
    "json": {"job_serializer": dumps, "job_deserializer": json.loads},
    "strict": {"job_serializer": strict, "job_deserializer": json.loads},
}
SERIALIZER: Any = SERIALIZERS[os.environ.get("SERIALIZER", "pickle")]


async def seen(ctx: Any, label: str) -> None:
    """Write down what is seen."""
    see(label)


async def taints(ctx: Any, label: str, key: str) -> None:
    """Set the application's variable, and never take it back."""
    see(label)
    APP_KEY.set(key)


async def retried(ctx: Any, label: str, times: int, bound: str = "") -> None:
    """Run `times` times more; `bound`: what the application's variable is by then."""
    see(label, tries=ctx["job_try"])
    if bound:
        APP_KEY.set(bound)
    await asyncio.sleep(0.001)
    if ctx["job_try"] <= times:
        raise Retry(defer=0.05)


async def spreads(ctx: Any, label: str) -> None:
    """Enqueue another job."""
    see(label)
    await ctx["redis"].enqueue_job("seen", f"{label}:sent")


async def ticked(ctx: Any) -> None:
    """A cron job."""
    see("tick", id=ctx["job_id"])
    APP_KEY.set("left by a tick")


async def uninstalls(ctx: Any, label: str) -> None:
    """Uninstall otelctx in the process that runs this."""
    see(label)
    attributes.uninstall("arq")


async def renamed(ctx: Any) -> None:
    """A cron job by a name of the application's."""
    see("tick by another name")


async def started(ctx: Any) -> None:
    see("serves")
    see("ready")
    if not os.environ.get("TABLE"):
        APP_KEY.set("left at the start")


async def job_starts(ctx: Any) -> None:
    see("job starts", id=ctx["job_id"])


async def job_ends(ctx: Any) -> None:
    see("job ends", id=ctx["job_id"])


EACH_SECOND: Any = set(range(60))
CRON_JOBS = [cron(ticked, second=EACH_SECOND), cron(renamed, name="nightly", second=EACH_SECOND)]


class WorkerSettings:
    functions = [seen, taints, retried, spreads, uninstalls]  # noqa: RUF012
    cron_jobs = CRON_JOBS if os.environ.get("TICK") else []
    redis_settings = SETTINGS
    on_startup = started
    on_job_start = job_starts
    on_job_end = job_ends
    max_tries = 5
    max_jobs = 1
    poll_delay = 0.05


for _name, _value in SERIALIZER.items():
    setattr(WorkerSettings, _name, staticmethod(_value))

if os.environ.get("INSTALL"):
    attributes.install("arq")
