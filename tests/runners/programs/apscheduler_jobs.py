"""APScheduler 3: schedulers that are started, and jobs that are added, in the turns of several sessions."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import seen
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.executors.debug import DebugExecutor
from apscheduler.executors.pool import ProcessPoolExecutor, ThreadPoolExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.blocking import BlockingScheduler
from seen import in_turn, see, see_and_leave, see_in_task, wait_for, wait_until

if TYPE_CHECKING:
    pass

try:
    import pytz  # before 3.10, its zones are the only ones that APScheduler takes
except ImportError:
    pass
else:
    UTC = pytz.utc  # type: ignore[assignment]

OFTEN = {"seconds": 0.05}


def soon(seconds: float = 0.0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def asyncio_scheduler() -> None:
    async def main() -> None:
        async def until(label: str, times: int) -> None:
            while seen.number(label) < times:
                await asyncio.sleep(0.005)

        scheduler = AsyncIOScheduler(timezone=UTC)
        in_turn("A", scheduler.start)
        in_turn("B", scheduler.add_job, see_in_task, "interval", args=["recurring coroutine"], **OFTEN)
        other = in_turn("C", scheduler.add_job, see, "interval", args=["recurring function"], id="other", **OFTEN)
        in_turn("E", scheduler.add_job, see_in_task, args=["one-shot coroutine"])
        in_turn("E", scheduler.add_job, see, args=["one-shot function"])
        async with asyncio.timeout(20):
            await until("recurring coroutine", 2)
            await until("recurring function", 2)
            await until("one-shot coroutine", 1)
            await until("one-shot function", 1)
            in_turn("D", scheduler.pause_job, other.id)
            was = seen.number("recurring coroutine")
            await until("recurring coroutine", was + 3)
            in_turn("D", scheduler.resume_job, other.id)
            await until("recurring function", seen.number("recurring function") + 1)
            in_turn("E", other.modify, next_run_time=soon())
            await until("recurring function", seen.number("recurring function") + 1)
        seen.report()

    asyncio.run(main())


def background(executor: Any) -> None:
    scheduler = BackgroundScheduler(executors={"default": executor}, timezone=UTC)
    in_turn("A", scheduler.start)
    in_turn("B", scheduler.add_job, see, "interval", args=["recurring"], id="recurring", **OFTEN)
    in_turn("C", scheduler.add_job, see, "date", args=["one-shot"], run_date=soon(0.1), misfire_grace_time=60)
    in_turn("D", scheduler.add_job, see, "date", args=["one-shot of D"])
    scheduler.add_job(see, "date", args=["nobody's"])
    for label in ("recurring", "one-shot", "one-shot of D", "nobody's"):
        wait_for(label, 3 if label == "recurring" else 1)
    scheduler.pause()
    scheduler.remove_all_jobs()
    seen.report()


def leaving() -> None:
    scheduler = BackgroundScheduler(executors={"default": ThreadPoolExecutor(1)}, timezone=UTC)
    in_turn("A", scheduler.start)
    scheduler.add_job(see_and_leave, "interval", args=["leaves"], max_instances=9, **OFTEN)
    wait_for("leaves", 4)
    seen.report()


def blocking() -> None:
    scheduler = BlockingScheduler(executors={"default": DebugExecutor()}, timezone=UTC)
    in_turn("B", scheduler.add_job, see, "interval", args=["recurring"], **OFTEN)
    in_turn("C", scheduler.add_job, see, "date", args=["one-shot"], run_date=soon(0.1), misfire_grace_time=60)
    threading.Thread(target=in_turn, args=("A", scheduler.start), daemon=True).start()
    wait_for("recurring", 3)
    wait_for("one-shot")
    seen.report()


def late() -> None:
    """Two runs that were missed and are made up for, one after the other, in one submission."""
    scheduler = BackgroundScheduler(timezone=UTC)
    scheduler.start(paused=True)
    in_turn(
        "A",
        scheduler.add_job,
        see,
        "interval",
        args=["late"],
        seconds=60,
        next_run_time=soon(-150),
        coalesce=False,
        misfire_grace_time=3600,
    )
    scheduler.resume()
    wait_for("late", 3)
    seen.report()


def table_of_jobs() -> None:
    """What is remembered of jobs goes when they do."""
    from otelctx_instrumentation import apscheduler as ours

    scheduler = BackgroundScheduler(timezone=UTC)
    in_turn("A", scheduler.add_job, see, "date", args=["pending"], run_date=soon(), id="pending")
    in_turn("A", scheduler.start)
    wait_for("pending")
    far = soon(3600)

    def add(session: str, name: str, **more: Any) -> Any:
        return in_turn(session, scheduler.add_job, see, "date", args=[name], id=name, run_date=far, **more)

    scheduler.add_jobstore("memory", "second")
    add("A", "removed")
    add("A", "same")
    add("B", "same", jobstore="second")
    try:
        add("C", "same")  # there is one by this id
    except Exception as exc:
        seen.alerts.append(type(exc).__name__)
    scheduler.remove_job("removed")
    postponed = add("A", "postponed")
    in_turn("C", postponed.reschedule, "date", run_date=soon(0.05))
    wait_for("postponed")
    made_once = in_turn("A", scheduler.add_job, see, "interval", args=["made once"], hours=1)
    in_turn("D", made_once.reschedule, "date", run_date=soon(0.05))
    wait_for("made once")
    scheduler.modify_job("same", "default", next_run_time=soon())
    wait_for("same")
    scheduler.modify_job("same", "second", next_run_time=soon())
    wait_for("same", 2)
    add("A", "replaced")
    add("B", "replaced", replace_existing=True)
    scheduler.modify_job("replaced", next_run_time=soon())
    wait_for("replaced")
    deadline = time.monotonic() + 10
    while scheduler.get_jobs() and time.monotonic() < deadline:
        time.sleep(0.005)
    add("A", "left")
    add("A", "left in the second", jobstore="second")
    scheduler.remove_all_jobs("second")
    seen.seen.append({"label": "remembered", "places": sorted(map(list, ours._jobs_of(scheduler)))})
    seen.report()


def persistent(path: str) -> None:
    """A job of a store that outlives the process: added here, or run here."""
    scheduler = BackgroundScheduler(timezone=UTC)
    scheduler.add_jobstore("sqlalchemy", url=f"sqlite:///{path}")
    in_turn("B", scheduler.start, paused=True)
    if not scheduler.get_jobs():
        in_turn("A", scheduler.add_job, see, "date", args=["persistent"], run_date=soon(0.01), misfire_grace_time=3600)
        in_turn("A", scheduler.add_job, see, "date", args=["here"], run_date=soon(0.02), misfire_grace_time=3600)
        if "here" in sys.argv:
            scheduler.resume()
            wait_for("here")
        seen.report()
    scheduler.resume()
    wait_for("persistent")
    wait_for("here")
    seen.report()


def elsewhere(label: str) -> dict[str, Any]:
    """A job for another process, whose sighting comes back as its result."""
    seen.see(label)
    return {**seen.seen.pop(), "is_elsewhere": os.getpid() != int(os.environ["PARENT"])}


def processes() -> None:
    os.environ["PARENT"] = str(os.getpid())
    scheduler = BackgroundScheduler(executors={"default": ProcessPoolExecutor(1)}, timezone=UTC)
    scheduler.add_listener(lambda event: seen.seen.append(event.retval), EVENT_JOB_EXECUTED)
    in_turn("A", scheduler.start)
    in_turn("C", scheduler.add_job, elsewhere, args=["one-shot"], misfire_grace_time=60)  # a process is slow to start
    wait_for("one-shot")  # what this thread imports while another one forks stays locked in the child
    in_turn("B", scheduler.add_job, elsewhere, "interval", args=["recurring"], seconds=0.5, misfire_grace_time=60)
    wait_for("recurring", 2)
    scheduler.shutdown()  # its processes hold our standard output
    seen.report()


def greenlets() -> None:
    from apscheduler.schedulers.gevent import GeventScheduler
    from gevent import sleep

    scheduler = GeventScheduler(timezone=UTC)
    in_turn("A", scheduler.start)
    in_turn("B", scheduler.add_job, see, "interval", args=["recurring"], **OFTEN)
    in_turn("C", scheduler.add_job, see, args=["one-shot"])
    wait_for("one-shot", poll=lambda: sleep(0.005))
    wait_for("recurring", 2, poll=lambda: sleep(0.005))
    seen.report()


def tornado() -> None:
    from apscheduler.schedulers.tornado import TornadoScheduler

    async def main() -> None:
        scheduler = TornadoScheduler(timezone=UTC)
        in_turn("A", scheduler.start)
        in_turn("B", scheduler.add_job, see_in_task, "interval", args=["recurring coroutine"], **OFTEN)
        in_turn("B", scheduler.add_job, see, "interval", args=["recurring"], **OFTEN)
        in_turn("C", scheduler.add_job, see, args=["one-shot"])
        async with asyncio.timeout(20):
            for label in ("recurring coroutine", "recurring", "one-shot"):
                while not seen.number(label):
                    await asyncio.sleep(0.005)
        seen.report()

    asyncio.run(main())


def twisted() -> None:
    """Jobs of a reactor, which runs in a thread of its own, in a turn of A's; they run in the reactor's pool."""
    from apscheduler.schedulers.twisted import TwistedScheduler
    from twisted.internet import reactor

    reactor.suggestThreadPoolSize(1)
    scheduler = TwistedScheduler(timezone=UTC)
    reactor.callWhenRunning(scheduler.start)
    threading.Thread(target=in_turn, args=("A", reactor.run, False), daemon=True).start()
    wait_until(lambda: scheduler.running)
    in_turn("B", scheduler.add_job, see, "interval", args=["recurring"], id="recurring", **OFTEN)
    in_turn("C", scheduler.add_job, see, args=["one-shot"], misfire_grace_time=60)
    in_turn("C", scheduler.add_job, see, "date", args=["one-shot"], run_date=soon(0.1), misfire_grace_time=60)
    wait_for("one-shot", 2)
    wait_for("recurring", 3)
    in_turn("D", scheduler.pause_job, "recurring")
    in_turn("D", scheduler.resume_job, "recurring")
    wait_for("recurring", seen.number("recurring") + 2)
    scheduler.add_job(see_and_leave, args=["leaves"], misfire_grace_time=60)
    wait_for("leaves")
    scheduler.add_job(see, args=["nobody's"], misfire_grace_time=60)
    wait_for("nobody's")
    seen.report()


if __name__ == "__main__":
    scenario = sys.argv[1]
    if scenario == "threads":
        background(ThreadPoolExecutor(2))
    elif scenario == "debug":
        background(DebugExecutor())
    elif scenario == "persistent":
        persistent(sys.argv[2])
    else:
        globals()[scenario]()
