"""Tasks of an application that uses taskiq, on Redis or in place: they write down what they see."""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import Any

import attributes
import sightings
from sightings import APP_KEY, see
from taskiq import Context, InMemoryBroker, SimpleRetryMiddleware, TaskiqDepends, TaskiqEvents, TaskiqScheduler
from taskiq.schedule_sources import LabelScheduleSource
from taskiq.scheduler.scheduler import ScheduledTask
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

sightings.ambient()
if os.environ.get("TELEMETRY"):
    sightings.telemetry()

broker: Any = InMemoryBroker() if os.environ.get("IN_PLACE") else ListQueueBroker(url=os.environ["BROKER"])
if not os.environ.get("IN_PLACE"):
    broker = broker.with_result_backend(RedisAsyncResultBackend(os.environ["BROKER"]))
broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=5))
scheduler = TaskiqScheduler(broker, [LabelScheduleSource(broker)])


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def started(state: Any) -> None:
    see("serves")
    see("ready")


@broker.task(task_name="seen")
async def seen(label: str) -> None:
    """Write down what is seen."""
    await asyncio.sleep(0.001)
    see(label)


@broker.task(task_name="threaded")
def threaded(label: str) -> None:
    """A task that is no coroutine, in a pool of threads."""
    see(label)


@broker.task(task_name="taints")
async def taints(label: str, key: str) -> None:
    """Set the application's variable, and never take it back."""
    see(label)
    APP_KEY.set(key)


@broker.task(task_name="taints_a_thread")
def taints_a_thread(label: str, key: str) -> None:
    """The same in a pool of threads."""
    see(label)
    APP_KEY.set(key)


@broker.task(task_name="retried", retry_on_error=True)
async def retried(label: str, times: int, bound: str = "", context: Context = TaskiqDepends()) -> None:  # noqa: B008
    """Fail `times` times; `bound`: what the application's variable is by then."""
    tries = int(context.message.labels.get("_retries", 0))
    see(label, tries=tries)
    if bound:
        APP_KEY.set(bound)
    if tries < times:
        raise ValueError(label)


@broker.task(task_name="spreads")
async def spreads(label: str) -> None:
    """Send another task."""
    see(label)
    await seen.kiq(f"{label}:sent")


# Newer versions know intervals, in seconds: the first run is at once.
RECURS = {"interval": 1} if "interval" in inspect.signature(ScheduledTask).parameters else {"cron": "* * * * *"}


@broker.task(task_name="ticked", schedule=[{**RECURS, "args": ["tick"]}])
async def ticked(label: str) -> None:
    """A task that recurs."""
    see(label)
    APP_KEY.set("left by a tick")


@broker.task(task_name="uninstalls")
async def uninstalls(label: str) -> None:
    """Uninstall otelctx in the process that runs this."""
    see(label)
    attributes.uninstall("taskiq")


if os.environ.get("INSTALL"):
    attributes.install("taskiq")
