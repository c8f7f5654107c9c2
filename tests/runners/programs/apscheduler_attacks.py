"""APScheduler 3 where locks, listeners, imports, signals and threads meet: a scenario ends, or somebody is stuck."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import seen
from apscheduler.events import EVENT_JOB_MODIFIED
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from seen import in_turn, see, see_in_task, wait_for

try:
    import pytz  # before 3.10, its zones are the only ones that APScheduler takes
except ImportError:
    from datetime import UTC
else:
    UTC = pytz.utc  # type: ignore[assignment]

PATIENCE = 10

scheduler = BackgroundScheduler(timezone=UTC)
scheduler.start()
lock = threading.Lock()
told, locked = threading.Event(), threading.Event()
importing, adding = threading.Event(), threading.Event()


def nothing() -> None:
    """Do nothing, at a time that does not come."""


def listener() -> None:
    """A listener takes a lock of the application's, whose holder asks the scheduler for its jobs."""

    def listens(event: Any) -> None:
        told.set()
        locked.wait(PATIENCE)
        if lock.acquire(timeout=PATIENCE):
            see("listened")
            lock.release()

    def asks() -> None:
        told.wait(PATIENCE)
        with lock:
            locked.set()
            scheduler.get_jobs()

    scheduler.add_job(nothing, "interval", hours=1, id="changed")
    scheduler.add_listener(listens, EVENT_JOB_MODIFIED)
    threading.Thread(target=asks, daemon=True).start()
    scheduler.reschedule_job("changed", trigger="interval", hours=2)


def importing_a_module_that_adds_a_job() -> None:
    """A job of a module, by its name, is added while another thread imports that module, which adds one itself."""
    folder = Path(tempfile.mkdtemp())
    (folder / "adds_a_job.py").write_text(
        "from __main__ import adding, importing, nothing, scheduler\n"
        "importing.set()\n"
        "adding.wait(10)\n"
        "scheduler.add_job(nothing, 'interval', hours=1)\n"
    )
    sys.path.insert(0, str(folder))

    def adds() -> None:
        importing.wait(PATIENCE)
        held = threading.Thread(target=scheduler.add_job, args=("adds_a_job:nothing", "interval"), daemon=True)
        held.start()
        held.join(0.3)  # it waits for the import by now, or will; either way both get through
        adding.set()
        held.join(PATIENCE)
        if not held.is_alive():
            see("added")

    adder = threading.Thread(target=adds, daemon=True)
    adder.start()
    imports = threading.Thread(target=__import__, args=("adds_a_job",), daemon=True)
    imports.start()
    adder.join(2 * PATIENCE)
    imports.join(PATIENCE)
    if not imports.is_alive():
        see("imported")


def signals() -> None:
    """A signal handler removes all jobs, wherever adding one has got to."""

    def handle(number: int, frame: FrameType | None) -> None:
        scheduler.remove_all_jobs()
        see("handled")

    def trace(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_name == "setdefault" and "weakref" in frame.f_code.co_filename:
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, handle)
    threading.Timer(PATIENCE, os._exit, (1,)).start()  # where the handler waits for what it interrupts
    sys.settrace(trace)
    scheduler.add_job(nothing, "interval", hours=1)
    sys.settrace(None)
    see("went on")


def threads() -> None:
    """Many threads add and remove jobs, and whose a job is stays known as long as there is the job."""
    sys.setswitchinterval(1e-5)
    for number in range(500):
        scheduler.add_job(nothing, "interval", hours=1, id=f"stays {number}")

    def adds_and_removes(number: int) -> None:
        for turn in range(100):
            name = f"{number}.{turn}"
            in_turn(name, scheduler.add_job, nothing, "date", run_date="2099-01-01", id=name)
            scheduler.remove_job(name)

    started = [threading.Thread(target=adds_and_removes, args=(number,)) for number in range(6)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    from otelctx_instrumentation import apscheduler

    places = apscheduler._jobs_of(scheduler)
    seen.seen.append({"label": "remembered", "places": [name for _, name in places if not name.startswith("stays")]})


def adding_while_it_starts() -> None:
    """One session adds a job while another starts the scheduler, which runs it before `add_job` has returned."""
    starting = BackgroundScheduler(timezone=UTC)

    class Starts(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "tentatively" in record.msg:
                threading.Thread(target=in_turn, args=("A", starting.start)).start()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        if (
            event == "return"
            and frame.f_code.co_name == "add_job"
            and "apscheduler/schedulers" in frame.f_code.co_filename
        ):
            sys.setprofile(None)
            wait_for("at the start")

    logger = logging.getLogger("apscheduler.scheduler")
    logger.setLevel(logging.INFO)
    logger.addHandler(Starts())
    sys.setprofile(trace)
    in_turn("B", starting.add_job, see, "date", args=["at the start"])


def marked_coroutine_functions() -> None:
    """A function that gives a coroutine, and is marked as such a one for asyncio only: a compiled one may be."""

    def marked(label: str) -> Any:
        return see_in_task(label)

    marked._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)  # type: ignore[attr-defined]
    assert asyncio.iscoroutinefunction(marked)

    async def main() -> None:
        running = AsyncIOScheduler(timezone=UTC)
        in_turn("A", running.start)
        in_turn("B", running.add_job, marked, "interval", args=["recurring"], seconds=0.02)
        in_turn("C", running.add_job, marked, args=["one-shot"])
        async with asyncio.timeout(PATIENCE):
            while seen.number("recurring") < 2 or not seen.number("one-shot"):
                await asyncio.sleep(0.005)

    asyncio.run(main())


SCENARIOS = {
    "marked": marked_coroutine_functions,
    "listener": listener,
    "importing": importing_a_module_that_adds_a_job,
    "signals": signals,
    "threads": threads,
    "starting": adding_while_it_starts,
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
    seen.report()
