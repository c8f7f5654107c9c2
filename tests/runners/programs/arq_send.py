"""Enqueues jobs as an application does: ``python arq_send.py SCENARIO``."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
import time
from typing import Any

import arq_app
import turns
from arq import create_pool
from arq_app import SERIALIZER, SETTINGS
from sightings import IS_ON, session, write

sent: dict[str, Any] = {}


async def send(pool: Any, task: str, label: str, *others: Any) -> None:
    if os.environ.get("IN_PLACE"):  # a call is all that arq knows of it
        await getattr(arq_app, task)({}, label, *others)
    else:
        sent[label] = await pool.enqueue_job(task, label, *others)


async def own(pool: Any) -> None:
    """With an id of the application's own, for later, and from a task."""
    with session("A"):
        await pool.enqueue_job("seen", "by its id", _job_id="its id")
        await pool.enqueue_job("retried", "retries later", 2, _defer_by=0.2)
        task = asyncio.create_task(pool.enqueue_job("seen", "from a task"))
    with session("B"):
        await task


async def now(pool: Any) -> None:
    """A cron job that somebody runs out of turn."""
    with session("A"):
        await pool.enqueue_job("cron:ticked", _job_id=f"by hand, {IS_ON}")


async def broken(pool: Any) -> None:
    """Carriers that are none."""
    carriers = {**turns.BROKEN, "number": 1, "list": ["1", "", "{}"]}
    dumps = pickle.dumps if not SERIALIZER else lambda data: json.dumps(data).encode()
    for name, carrier in carriers.items():
        now = int(time.time() * 1000)
        data = {"t": None, "f": "seen", "a": (name,), "k": {}, "et": now, "otelctx": carrier}
        await pool.psetex(f"arq:job:{name}", 60_000, dumps(data))
        await pool.zadd("arq:queue", {name: now})


async def outcome(pool: Any) -> None:
    """What has become of the messages that a worker in enforce has refused, and what is left."""
    errors = []
    for label in turns.REFUSED:
        try:
            await sent[label].result(timeout=20)
            errors.append("nothing")
        except Exception as exc:
            errors.append(type(exc).__name__)
    deadline = time.monotonic() + 20
    while (waiting := await pool.zcard("arq:queue")) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    write("outcome", errors=errors, waiting=waiting + len(await pool.keys("arq:in-progress*")))


async def main() -> None:
    pool = await create_pool(SETTINGS, **SERIALIZER)
    for scenario in sys.argv[1:]:
        if scenario in turns.SCENARIOS:
            for task, arguments in turns.of(scenario):
                await send(pool, task, *arguments)
        else:
            await globals()[scenario](pool)


if __name__ == "__main__":
    asyncio.run(main())
