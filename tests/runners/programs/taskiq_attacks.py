"""taskiq, on a queue of its own process: kickers that schedule several tasks at once, and retries that are put off."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import seen
from seen import APP_KEY, see
from taskiq import AsyncBroker, BrokerMessage, Context, InMemoryBroker, ScheduleSource, TaskiqDepends, TaskiqScheduler
from taskiq.receiver import Receiver

import otelctx


class Queue(AsyncBroker):
    """A broker whose messages go through a queue of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()

    async def kick(self, message: BrokerMessage) -> None:
        """Put a message into the queue."""
        await self.messages.put(message.message)

    async def listen(self) -> AsyncGenerator[bytes, None]:
        """Take them out again."""
        while True:
            yield await self.messages.get()


class Source(ScheduleSource):
    """Schedules, by their ids."""

    def __init__(self) -> None:
        self.schedules: dict[str, Any] = {}

    async def add_schedule(self, schedule: Any) -> None:
        """Keep one; another task comes first."""
        await asyncio.sleep(0)
        self.schedules[schedule.schedule_id] = schedule

    async def get_schedules(self) -> list[Any]:
        """What is scheduled."""
        return [*self.schedules.values()]


broker = Queue()
source: Any = Source()


@broker.task(task_name="seen")
async def one(label: str) -> None:
    """Write down what is seen."""
    see(label)


@broker.task(task_name="retried", retry_on_error=True, max_retries=3, _retries=0)
async def retried(context: Context = TaskiqDepends()) -> None:  # noqa: B008
    """Fail once."""
    claim = otelctx.current_claim()
    see("retried")
    seen.seen[-1]["granted"] = claim and [claim.task_id, claim.attempt]
    if not int(context.message.labels.get("_retries", 0)):
        APP_KEY.set("left")
        raise ValueError("the first attempt")


async def at_once() -> None:
    """Five tasks of five sessions are scheduled by one kicker."""
    kicker: Any = one.kicker()

    def schedule(label: str) -> Any:
        return seen.in_turn(label, asyncio.ensure_future, kicker.schedule_by_time(source, datetime.now(UTC), label))

    created = await asyncio.gather(*(schedule(label) for label in "ABCDE"))
    await kicker.schedule_by_time(source, datetime.now(UTC), "nobody's")
    see("scheduled")
    seen.seen[-1]["schedules"] = len(source.schedules)
    seen.seen[-1]["kickers"] = all(one.kicker is kicker for one in created)
    seen.seen[-1]["left"] = kicker.custom_schedule_id


async def put_off() -> None:
    """A task that holds a claim is retried by way of a schedule."""
    from taskiq.middlewares import SmartRetryMiddleware

    broker.add_middlewares(SmartRetryMiddleware(default_delay=0, schedule_source=source))
    with otelctx.grant_claim(otelctx.Claim("task 1")), otelctx.bind(session="A"):
        await retried.kiq()


in_place = InMemoryBroker(await_inplace=True)


@in_place.task(task_name="sends")
async def sends() -> None:
    """A task that is run in place, for a session of its own, sends one to a worker."""
    APP_KEY.set("A.sub")
    await one.kiq("sent")


async def from_in_place() -> None:
    """A task of A's is scheduled that is run in place, when its time has come."""
    await seen.in_turn("A", asyncio.ensure_future, sends.schedule_by_time(source, datetime.now(UTC)))
    scheduler = TaskiqScheduler(in_place, [source])
    for name in list(source.schedules):
        await scheduler.on_ready(source, source.schedules.pop(name))


async def main(scenario: Any, labels: list[str]) -> None:
    """Run a scenario, a worker, and a scheduler that sends what is scheduled."""
    scheduler = TaskiqScheduler(broker, [source])
    worker = asyncio.create_task(Receiver(broker).listen(asyncio.Event()))
    await scenario()
    async with asyncio.timeout(20):
        while not all(seen.number(label) for label in labels) or source.schedules:
            for name in list(source.schedules):
                await scheduler.on_ready(source, source.schedules.pop(name))
            await asyncio.sleep(0.005)
        while scenario is put_off and seen.number("retried") < 2:
            for name in list(source.schedules):
                await scheduler.on_ready(source, source.schedules.pop(name))
            await asyncio.sleep(0.005)
    worker.cancel()
    seen.report()


if __name__ == "__main__":
    scenarios: Any = {"at_once": (at_once, [*"ABCDE"]), "put_off": (put_off, ["retried"])}
    scenarios["from_in_place"] = (from_in_place, ["sent"])
    asyncio.run(main(*scenarios[sys.argv[1]]))
