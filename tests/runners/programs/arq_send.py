"""Enqueues jobs as an application does: ``python arq_send.py SCENARIO``."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import time
from typing import Any

from arq import create_pool
from arq_app import SERIALIZER, SETTINGS
from sightings import IS_ON, see, session

import otelctx


async def one(pool: Any) -> None:
    """Under A, under B and under nothing."""
    for key in "AB":
        with session(key):
            await pool.enqueue_job("seen", key, _job_id=f"job of {key}")
    await pool.enqueue_job("seen", "nobody")
    with otelctx.bind(session="bound"):
        await pool.enqueue_job("seen", "bound")


async def taint(pool: Any) -> None:
    """A job that sets the key and never resets it, before one of nobody."""
    for number in range(3):
        with session("A"):
            await pool.enqueue_job("taints", f"A{number}", "tainted")
        await pool.enqueue_job("seen", f"nobody{number}")


async def retry(pool: Any) -> None:
    """Under A, with B served in between; a job that binds another key before it is retried."""
    with session("A"):
        await pool.enqueue_job("retried", "retries", 2)
        await pool.enqueue_job("retried", "binds and retries", 2, "tainted")
        await pool.enqueue_job("retried", "retries later", 2, _defer_by=0.2)
    with session("B"):
        await pool.enqueue_job("seen", "between")
    await pool.enqueue_job("retried", "nobody retries", 2)


async def everything(pool: Any) -> None:
    """Everything that enqueues otherwise."""
    with session("A"):
        await pool.enqueue_job("spreads", "spreads")
        task = asyncio.create_task(pool.enqueue_job("seen", "from a task"))
        see("after")
    with session("B"):
        await task


async def now(pool: Any) -> None:
    """A cron job that somebody runs out of turn."""
    with session("A"):
        await pool.enqueue_job("cron:ticked", _job_id=f"by hand, {IS_ON}")


async def traced(pool: Any) -> None:
    """Within a span."""
    from opentelemetry import trace

    with session("A"), trace.get_tracer("tests").start_as_current_span("turn"):
        await pool.enqueue_job("retried", "traced", 1)


async def claimed(pool: Any) -> None:
    """By a worker that holds a claim."""
    with session("A"), otelctx.grant_claim(otelctx.Claim("t1")):
        await pool.enqueue_job("retried", "claimed", 1)


async def broken(pool: Any) -> None:
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
    dumps = pickle.dumps if not SERIALIZER else lambda data: json.dumps(data).encode()
    for name, carrier in carriers.items():
        now = int(time.time() * 1000)
        data = {"t": None, "f": "seen", "a": (name,), "k": {}, "et": now, "otelctx": carrier}
        await pool.psetex(f"arq:job:{name}", 60_000, dumps(data))
        await pool.zadd("arq:queue", {name: now})


async def table(pool: Any) -> None:
    """The rows of the table: after B's job, which leaves the key."""
    with session("B"):
        await pool.enqueue_job("taints", "B", "B")
    with session("A"):
        await pool.enqueue_job("seen", "under A")
    await pool.enqueue_job("seen", "under nothing")
    with session("A"):
        await pool.enqueue_job("retried", "retry", 1)


async def main() -> None:
    await globals()[sys.argv[1]](await create_pool(SETTINGS, **SERIALIZER))


if __name__ == "__main__":
    asyncio.run(main())
