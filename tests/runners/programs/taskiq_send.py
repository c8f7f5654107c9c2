"""Sends tasks as an application does: ``python taskiq_send.py SCENARIO``."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys

import taskiq_app as tasks
from sightings import see, session
from taskiq.message import BrokerMessage
from taskiq.schedule_sources import LabelScheduleSource
from taskiq_app import broker, scheduler

import otelctx


async def one() -> None:
    """Under A, under B and under nothing."""
    for key in "AB":
        with session(key):
            await tasks.seen.kicker().with_labels(mine=key).kiq(key)
            await tasks.threaded.kiq(f"{key}, threaded")
    await tasks.seen.kiq("nobody")
    with otelctx.bind(session="bound"):
        await tasks.seen.kiq("bound")


async def taint() -> None:
    """A task that sets the key and never resets it, before one of nobody."""
    for number in range(3):
        with session("A"):
            await tasks.taints.kiq(f"A{number}", "tainted")
            await tasks.taints_a_thread.kiq(f"threaded A{number}", "tainted")
        await tasks.seen.kiq(f"nobody{number}")
        await tasks.threaded.kiq(f"threaded nobody{number}")


async def retry() -> None:
    """Under A, with B served in between; a task that binds another key before it fails."""
    with session("A"):
        await tasks.retried.kiq("retries", 2)
        await tasks.retried.kiq("binds and retries", 2, "tainted")
    with session("B"):
        await tasks.seen.kiq("between")
    await tasks.retried.kiq("nobody retries", 2)


async def everything() -> None:
    with session("A"):
        await tasks.spreads.kiq("spreads")
        await tasks.seen("called")


async def claimed() -> None:
    """By a worker that holds a claim."""
    with session("A"), otelctx.grant_claim(otelctx.Claim("t1")):
        await tasks.retried.kiq("claimed", 1)


async def traced() -> None:
    """Within a span."""
    from opentelemetry import trace

    with session("A"), trace.get_tracer("tests").start_as_current_span("turn"):
        await tasks.retried.kiq("traced", 1)


async def tick() -> None:
    """What the scheduler does at its minute, in a process that was started in a turn of A's; twice."""
    source = LabelScheduleSource(broker)
    await source.startup()
    (task,) = await source.get_schedules()
    is_given = "source" in inspect.signature(type(scheduler).on_ready).parameters  # older versions ask the task for it
    with session("A"):
        for _ in range(2):
            await scheduler.on_ready(*([source] if is_given else []), task)
        see("after")


async def broken() -> None:
    """Carriers that are none."""
    carriers = {
        "text": "nonsense",
        "truncated": '1..{"n":"0',
        "oversized": "1.." + "x" * 20_000,
        "types": '1..{"n":"0","t":"yesterday","keys":{"session":["B"]}}',
        "signature": '1.AAAA.{"n":"0","t":1,"keys":{"session":{"v":"B"}}}',
    }
    for name, carrier in carriers.items():
        labels = {"otelctx": carrier}
        said = {"task_id": name, "task_name": "seen", "labels": labels, "args": [name], "kwargs": {}}
        await broker.kick(BrokerMessage(task_id=name, task_name="seen", message=json.dumps(said).encode(), labels={}))


async def table() -> None:
    """The rows of the table: after B's task, which leaves the key."""
    with session("B"):
        await tasks.taints.kiq("B", "B")
    with session("A"):
        await tasks.seen.kiq("under A")
    await tasks.seen.kiq("under nothing")
    with session("A"):
        await tasks.retried.kiq("retry", 1)


async def in_place() -> None:
    """On a broker that runs tasks in their caller."""
    with session("A"):
        await tasks.seen.kiq("in place")
        await tasks.threaded.kiq("in place, threaded")
    await tick()
    await asyncio.sleep(0)
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


async def main() -> None:
    await broker.startup()
    await globals()[sys.argv[1]]()
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
