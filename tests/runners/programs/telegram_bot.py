"""python-telegram-bot's JobQueue in a real Application, without Telegram: jobs that handlers schedule in turns."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import seen
from seen import in_turn, see
from telegram.ext import Application, CallbackContext, ContextTypes

del ContextTypes


async def job(context: CallbackContext[Any, Any, Any, Any]) -> None:
    assert context.job is not None
    see(str(context.job.name))


async def until(label: str, times: int = 1) -> None:
    while seen.number(label) < times:
        await asyncio.sleep(0.005)


async def main() -> None:
    # Its network is never used: a JobQueue is started with the application, and needs no initialized bot.
    application = Application.builder().token("1:offline").build()
    queue = application.job_queue
    assert queue is not None
    await in_turn("A", lambda: asyncio.create_task(queue.start()))
    in_turn("B", queue.run_repeating, job, 0.05, first=0.01, name="repeating")
    in_turn("C", queue.run_once, job, 0.05, name="once")
    daily = in_turn("C", queue.run_daily, job, dt.time(3, 0), name="daily")
    async with asyncio.timeout(20):
        await until("once")
        await until("repeating", 2)
        in_turn("D", queue.run_once, job, 0.01, name="once of D")
        await until("once of D")
        await until("repeating", 5)
        # "Run now", from within a turn of A's.
        await in_turn("A", lambda: asyncio.create_task(daily.run(application)))
        in_turn("A", daily.job.modify, next_run_time=dt.datetime.now(dt.UTC))
        await until("daily", 2)
    seen.report()


if __name__ == "__main__":
    asyncio.run(main())
