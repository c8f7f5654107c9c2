"""aiocron: functions that are called each second, set up and waited for in the turns of several sessions."""

from __future__ import annotations

import asyncio
import sys

import aiocron
import seen
from seen import APP_KEY, in_turn, see, see_and_leave

EVERY_SECOND = "* * * * * *"


async def nightly(label: str) -> None:
    see(label)
    await asyncio.sleep(0.001)
    see(f"{label}, later")
    APP_KEY.set("left")


async def turns() -> None:
    async def wait() -> None:
        await aiocron.crontab(EVERY_SECOND, func=see, args=("waited for",), start=False).next()
        see("C, afterwards")
        await aiocron.crontab(EVERY_SECOND, start=False).next()
        see("C, still")

    async def by_hand() -> None:
        await nightly("by hand")

    in_turn("A", aiocron.crontab, EVERY_SECOND, func=nightly, args=("coroutine",))
    in_turn("B", aiocron.crontab, EVERY_SECOND, func=see_and_leave, args=("function",))
    waiting = in_turn("C", lambda: asyncio.create_task(wait()))
    await in_turn("D", lambda: asyncio.create_task(by_hand()))
    async with asyncio.timeout(20):
        while seen.number("coroutine, later") < 2 or seen.number("function") < 2:
            await asyncio.sleep(0.005)
        await waiting
    seen.report()


class Watched(aiocron.Cron):  # type: ignore[misc]
    """An application's own: the timer asks it when it is to fire next."""

    def get_next(self) -> float:
        see("is armed")
        return float(super().get_next())


async def armed() -> None:
    in_turn("A", Watched, EVERY_SECOND, func=see, args=("runs",), start=True)
    async with asyncio.timeout(20):
        while seen.number("runs") < 2:
            await asyncio.sleep(0.005)
    seen.report()


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]]())
