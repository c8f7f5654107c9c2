"""Sends tasks as an application does: ``python taskiq_send.py SCENARIO``."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from typing import Any

import taskiq_app as tasks
import turns
from sightings import see, session, write
from taskiq.message import BrokerMessage
from taskiq.schedule_sources import LabelScheduleSource
from taskiq_app import broker, scheduler

sent: dict[str, Any] = {}


async def send(task: str, *arguments: Any) -> None:
    sent[str(arguments[0])] = await getattr(tasks, task).kiq(*arguments)


async def threaded() -> None:
    """Tasks that are no coroutines; some of them set the key and never reset it."""
    for key in "AB":
        with session(key):
            await tasks.threaded.kiq(f"{key}, threaded")
    for number in range(3):
        with session("A"):
            await tasks.taints_a_thread.kiq(f"threaded A{number}", "tainted")
        await tasks.threaded.kiq(f"threaded nobody{number}")


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
    for name, carrier in turns.BROKEN.items():
        labels = {"otelctx": carrier}
        said = {"task_id": name, "task_name": "seen", "labels": labels, "args": [name], "kwargs": {}}
        await broker.kick(BrokerMessage(task_id=name, task_name="seen", message=json.dumps(said).encode(), labels={}))


async def in_memory() -> None:
    """On a broker that runs tasks in their caller."""
    with session("A"):
        await tasks.threaded.kiq("in place, threaded")
    await tick()


async def outcome() -> None:
    """What has become of the messages that a worker in enforce has refused, and what is left."""
    results = [await sent[label].wait_result(timeout=20) for label in turns.REFUSED]
    from redis.asyncio import Redis

    client = Redis.from_url(os.environ["BROKER"])
    waiting = await client.llen("taskiq")
    await client.aclose() if hasattr(client, "aclose") else await client.close()
    write("outcome", errors=[type(result.error).__name__ for result in results], waiting=waiting)


async def main() -> None:
    in_place = os.environ.get("IN_PLACE")
    await broker.startup()
    for scenario in sys.argv[1:]:
        if scenario in turns.SCENARIOS:
            for task, arguments in turns.of(scenario):
                await send(task, *arguments)
        else:
            await globals()[scenario]()
    while in_place and (others := asyncio.all_tasks() - {asyncio.current_task()}):
        await asyncio.wait(others)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
