"""The standard library's schedulers: `sched`, a Timer that sets itself again, loops that somebody has written."""

from __future__ import annotations

import asyncio
import os
import sched
import sys
import threading

import seen
from seen import in_turn, see, wait_for

import otelctx

IS_ON = os.environ.get("OTELCTX_ENABLED") == "true"


def events() -> None:
    scheduler = sched.scheduler()

    def again() -> None:
        see("first run" if not seen.number("first run") else "later runs")
        if seen.number("later runs") < 2:
            scheduler.enter(0, 1, again)

    in_turn("A", scheduler.enter, 0, 1, again)
    in_turn("B", scheduler.enter, 0, 1, see, ("one-shot",))
    in_turn("C", scheduler.run)
    seen.report()


def timer() -> None:
    def again() -> None:
        see("first run" if not seen.number("first run") else "later runs")
        if seen.number("later runs") < 2:
            threading.Timer(0.001, again).start()

    in_turn("A", threading.Timer(0.001, again).start)
    wait_for("later runs", 2)
    seen.report()


def thread_loop() -> None:
    job = otelctx.cron_job("nightly")(see) if IS_ON else see

    def loop() -> None:
        for _ in range(2):
            job("run")

    def start() -> None:
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()

    in_turn("A", start)
    seen.report()


def asyncio_loop() -> None:
    async def nightly() -> None:
        see("run")

    job = otelctx.cron_job("nightly")(nightly) if IS_ON else nightly

    async def loop() -> None:
        for _ in range(2):
            await job()
            await asyncio.sleep(0.001)

    async def main() -> None:
        await in_turn("A", lambda: asyncio.create_task(loop()))

    asyncio.run(main())
    seen.report()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
