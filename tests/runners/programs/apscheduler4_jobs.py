"""APScheduler 4: schedulers that are started, and jobs that are added, in the turns of several sessions."""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_process
import attrs
import seen
from apscheduler import (
    AsyncScheduler,
    ConflictPolicy,
    JobAdded,
    JobReleased,
    Scheduler,
    SchedulerRole,
    TaskDefaults,
    current_async_scheduler,
    current_job,
    task,
)
from apscheduler.abc import JobExecutor
from apscheduler.datastores.memory import MemoryDataStore
from apscheduler.executors.async_ import AsyncJobExecutor
from apscheduler.executors.subprocess import ProcessPoolJobExecutor
from apscheduler.executors.thread import ThreadPoolJobExecutor
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from opentelemetry import baggage
from opentelemetry import context as otel_context
from seen import APP_KEY, in_turn, see, see_and_leave, see_in_task, wait_for, wait_until

import otelctx

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

MANY = TaskDefaults(max_running_jobs=100)
"""A task runs one job at a time otherwise, and `see` is the task of nearly all of them."""


def often() -> IntervalTrigger:
    return IntervalTrigger(seconds=0.05)


def soon(seconds: float = 0.0) -> DateTrigger:
    return DateTrigger(datetime.now(UTC) + timedelta(seconds=seconds))


@contextmanager
def turn(session: str) -> Iterator[None]:
    """A block of a coroutine that is a turn of `session`; see `seen.in_turn`."""
    token = APP_KEY.set(session)
    otel = otel_context.attach(baggage.set_baggage("app.session", session))
    try:
        with seen._tracer.start_as_current_span(f"turn {session}"):
            yield
    finally:
        otel_context.detach(otel)
        APP_KEY.reset(token)


async def until(label: str, times: int = 1) -> None:
    with anyio.fail_after(20):
        while seen.number(label) < times:
            await anyio.sleep(0.005)


def runs(main: Callable[[], Awaitable[None]]) -> None:
    anyio.run(main, backend="trio" if "trio" in sys.argv else "asyncio")
    seen.report()


def see_in_coroutine_of_a_function(label: str) -> Any:
    return see_in_task(label)


def async_scheduler() -> None:
    """Case 36, and what is for one time."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            with turn("A"):
                scheduler = await stack.enter_async_context(AsyncScheduler(task_defaults=MANY))
                await scheduler.start_in_background()
            with turn("B"):
                await scheduler.add_schedule(see_in_task, often(), args=["recurring coroutine"])
            with turn("C"):
                await scheduler.add_schedule(
                    see, often(), args=["recurring function"], id="other", job_executor="threadpool"
                )
            with turn("E"):
                await scheduler.add_job(see_in_task, args=["one-shot coroutine"])
                await scheduler.add_job(see_in_coroutine_of_a_function, args=["one-shot coroutine of a function"])
                await scheduler.add_job(see, args=["one-shot function"])
                await scheduler.add_job(see, args=["one-shot in a thread"], job_executor="threadpool")
                await scheduler.add_schedule(see_in_task, soon(0.1), args=["date"])
                await scheduler.run_job(see_in_task, args=["waited for"])
                see("after")
            await scheduler.add_job(see, args=["nobody's"])
            await until("recurring coroutine", 2)
            await until("recurring function", 2)
            await until("date")
            with turn("D"):
                await scheduler.pause_schedule("other")
            await until("recurring coroutine", seen.number("recurring coroutine") + 3)
            was = seen.number("recurring function")
            with turn("D"):
                await scheduler.unpause_schedule("other", resume_from="now")
            await until("recurring function", was + 2)
            await until("nobody's")
            await scheduler.stop()

    runs(main)


def own() -> None:
    """Schedulers, and executors, of the application's own."""

    class InAThread(JobExecutor):
        """Hands a job to a thread that is there already, as the one for Qt does."""

        def __init__(self) -> None:
            self.jobs: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any], Any]]] = queue.SimpleQueue()
            threading.Thread(target=in_turn, args=("A", self.work), daemon=True).start()

        def work(self) -> None:
            while True:
                call, done = self.jobs.get()
                done(call())

        async def run_job(self, func: Any, job: Any) -> Any:
            loop = asyncio.get_running_loop()
            result = loop.create_future()
            self.jobs.put(
                (
                    lambda: func(*job.args, **job.kwargs),
                    lambda value: loop.call_soon_threadsafe(result.set_result, value),
                )
            )
            return await result

    class InAProcess(JobExecutor):
        async def run_job(self, func: Any, job: Any) -> Any:
            return await anyio.to_process.run_sync(func, *job.args)

    class InAPool(JobExecutor):
        async def run_job(self, func: Any, job: Any) -> Any:
            with ProcessPoolExecutor(1) as pool:
                return await asyncio.get_running_loop().run_in_executor(pool, func, *job.args)

    class Twice(AsyncJobExecutor):
        async def run_job(self, func: Any, job: Any) -> Any:
            await super().run_job(func, job)
            return await super().run_job(func, job)

    class Awaiting(JobExecutor):
        async def run_job(self, func: Any, job: Any) -> Any:
            assert asyncio.iscoroutinefunction(func), func
            return await func(*job.args)

    class Inquiring(JobExecutor):
        async def run_job(self, func: Any, job: Any) -> Any:
            assert not asyncio.iscoroutinefunction(func), func
            result = func(*job.args)
            return await result

    class Processes(ProcessPoolJobExecutor):
        async def run_job(self, func: Any, job: Any) -> Any:
            return await super().run_job(func, job)

    class OwnScheduler(AsyncScheduler):
        async def add_job(self, *args: Any, **kwargs: Any) -> Any:
            return await super().add_job(*args, **kwargs)

    executors = {
        "thread": InAThread(),
        "process": InAProcess(),
        "pool": InAPool(),
        "twice": Twice(),
        "awaiting": Awaiting(),
        "inquiring": Inquiring(),
        "processes": Processes(max_workers=1),
    }

    functions = {"awaiting": see_in_task, "inquiring": see_in_coroutine_of_a_function}

    async def main() -> None:
        os.environ["PARENT"] = str(os.getpid())
        async with AsyncExitStack() as stack:
            with turn("A"):
                scheduler = await stack.enter_async_context(OwnScheduler(job_executors=executors, task_defaults=MANY))
                await scheduler.start_in_background()
            with turn("B"):
                for name in executors:
                    function = functions.get(name, elsewhere if "p" in name else see)
                    result = await scheduler.run_job(function, args=[name], job_executor=name)
                    seen.seen.extend([result] if result else [])
            with turn("C"):
                await scheduler.add_schedule(see, often(), id="recurring", args=["recurring"], job_executor="twice")
            await until("recurring", 4)
            await scheduler.stop()

    runs(main)


def threads() -> None:
    """The scheduler for threads."""
    scheduler = Scheduler(task_defaults=TaskDefaults(max_running_jobs=100, job_executor=sys.argv[2]))
    in_turn("A", scheduler.start_in_background)
    in_turn("B", scheduler.add_schedule, see, often(), args=["recurring"], id="recurring")
    in_turn("C", scheduler.add_job, see, args=["one-shot"])
    in_turn("C", scheduler.add_schedule, see, soon(0.05), args=["one-shot"])
    in_turn("D", scheduler.run_job, see, args=["one-shot of D"])
    scheduler.add_job(see, args=["nobody's"])
    for label, times in {"recurring": 3, "one-shot": 2, "one-shot of D": 1, "nobody's": 1}.items():
        wait_for(label, times)
    scheduler.stop()
    seen.report()


def blocking() -> None:
    scheduler = Scheduler(task_defaults=TaskDefaults(max_running_jobs=100, job_executor="async"))
    threading.Thread(target=in_turn, args=("A", scheduler.run_until_stopped), daemon=True).start()
    in_turn("B", scheduler.add_schedule, see, often(), args=["recurring"], id="recurring")
    in_turn("C", scheduler.add_job, see, args=["one-shot"])
    wait_for("recurring", 3)
    wait_for("one-shot")
    scheduler.stop()
    seen.report()


async def see_in_task_and_leave(label: str) -> None:
    see_and_leave(label)


def leaving() -> None:
    """Jobs that set their variable and never reset it, one after the other in one thread, and on the loop."""
    executors = {"threadpool": ThreadPoolJobExecutor(max_workers=1), "async": AsyncJobExecutor()}
    scheduler = Scheduler(job_executors=executors)
    in_turn("A", scheduler.start_in_background)
    scheduler.add_schedule(see_and_leave, often(), args=["leaves"], id="leaves")
    scheduler.add_schedule(see_in_task_and_leave, often(), args=["task leaves"], id="task leaves", job_executor="async")
    for number in range(3):
        in_turn("B", scheduler.run_job, see_and_leave, args=[f"one-shot {number}"])
        scheduler.run_job(see_and_leave, args=[f"nobody's {number}"])
    wait_for("leaves", 4)
    wait_for("task leaves", 4)
    scheduler.stop()
    seen.report()


def elsewhere(label: str) -> dict[str, Any]:
    """A job for another process, whose sighting comes back as its result."""
    seen.see(label)
    about = {"pid": os.getpid(), "environment": os.environ.get("APP_SESSION")}
    return {**seen.seen.pop(), "is_elsewhere": os.getpid() != int(os.environ["PARENT"]), **about}


def processes() -> None:
    os.environ["PARENT"] = str(os.getpid())
    if "in code" in sys.argv:
        otelctx.install(keys={"session": {"sources": [{"contextvar": "seen:APP_KEY"}]}})
    executors = {"processpool": ProcessPoolJobExecutor(max_workers=1)}
    scheduler = Scheduler(job_executors=executors, task_defaults=TaskDefaults(job_executor="processpool"))
    in_turn("A", scheduler.start_in_background)
    seen.seen.append(in_turn("B", scheduler.run_job, elsewhere, args=["one-shot"]))
    seen.seen.append(in_turn("C", scheduler.run_job, elsewhere, args=["one-shot of C"]))
    seen.seen.append(scheduler.run_job(elsewhere, args=["nobody's"]))
    released: list[Any] = []
    scheduler.subscribe(lambda event: released.append(event.job_id), {JobReleased})
    in_turn(
        "D",
        scheduler.add_schedule,
        elsewhere,
        IntervalTrigger(seconds=0.2),
        args=["recurring"],
        id="recurring",
        job_result_expiration_time=60,
    )
    wait_for_results(scheduler, released, 2)
    scheduler.stop()
    seen.report()


def wait_for_results(scheduler: Any, released: list[Any], times: int) -> None:
    def poll() -> None:
        while released:
            result = scheduler.get_job_result(released.pop(), wait=False)
            if result.exception is not None:
                raise result.exception
            seen.seen.append(result.return_value)
        threading.Event().wait(0.01)

    wait_for("recurring", times, poll)


def data_store(path: str, serializer: str) -> Any:
    from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
    from apscheduler.serializers.json import JSONSerializer
    from apscheduler.serializers.pickle import PickleSerializer
    from sqlalchemy import create_engine

    made = JSONSerializer() if serializer == "json" else PickleSerializer()
    # One connection: two of a scheduler's loops would lock SQLite against each other.
    engine = create_engine(f"sqlite:///{path}", pool_size=1, max_overflow=0)
    return SQLAlchemyDataStore(engine, serializer=made)


def persistent(path: str, serializer: str, what: str) -> None:
    """Jobs of a store that outlives the process: added by one, brought about by a second, run by a third."""
    role = {"tick": SchedulerRole.scheduler, "work": SchedulerRole.worker}.get(what, SchedulerRole.both)
    with Scheduler(data_store(path, serializer), role=role, task_defaults=MANY) as scheduler:
        if what == "add":
            in_turn("A", scheduler.add_job, see, args=["one-shot"], metadata={"app": "its own"})
            in_turn("B", scheduler.add_schedule, see, soon(), id="date", args=["date"], metadata={"app": "its own"})
            in_turn("C", scheduler.add_schedule, see, often(), args=["recurring"], id="recurring")
            in_turn("D", scheduler.add_schedule, see, soon(3600), id="late", args=["late"])
            scheduler.add_job(see, args=["nobody's"])
        if what != "add":
            in_turn("E", scheduler.start_in_background)
        if what == "tick":
            wait_until(lambda: {"date", "recurring"} <= {job.schedule_id for job in scheduler.get_jobs()})
        elif what == "work":
            for label in ("one-shot", "date", "nobody's", "recurring"):
                wait_for(label)
        if what != "add":
            scheduler.stop()
    seen.report()


@task(id="decorated", job_executor="async", metadata={"task": "its own", "both": "task"})
async def with_metadata(label: str) -> None:
    see(label)
    seen.seen[-1]["metadata"] = {**current_job.get().metadata}


def metadata() -> None:
    """What the application has put there itself."""

    async def main() -> None:
        async with AsyncScheduler(task_defaults=MANY) as scheduler:
            await scheduler.start_in_background()
            with turn("A"):
                await scheduler.add_job(with_metadata, args=["job"], metadata={"both": "job"})
                await scheduler.add_job("decorated", args=["by id"])
                await scheduler.add_schedule(with_metadata, soon(), args=["schedule"], metadata={"both": "schedule"})
                await scheduler.configure_task("configured", func=with_metadata, metadata={"app": [1, {"a": True}]})
                await scheduler.run_job("configured", args=["configured"])
            copied = next(one["metadata"] for one in seen.seen if one["label"] == "configured")
            with turn("B"):
                await scheduler.run_job("decorated", args=["copied"], metadata=copied)
                try:
                    await scheduler.add_job("decorated", args=["wrong"], metadata={"no": object()})
                except ValueError as exc:
                    seen.alerts.append(str(exc)[:25])
            for label in ("job", "by id", "schedule"):
                await until(label)
            await scheduler.stop()

    runs(main)


def broken() -> None:
    """Carriers that are none."""

    async def main() -> None:
        async with AsyncScheduler(task_defaults=MANY) as scheduler:
            carriers: dict[str, Any] = {
                "text": "nonsense",
                "truncated": None,
                "oversized": "1.." + "x" * 9000,
                "types": 3,
                "list": [1],
                "json": '1..{"t":"x","n":3}',
            }
            with turn("A"):
                for label in carriers:
                    await scheduler.add_job(see, args=[label])
                await scheduler.add_schedule(see, soon(), args=["schedule"], id="broken")
            for job in await scheduler.get_jobs():
                was = job.metadata["otelctx"]
                bad = carriers[job.args[0]]
                job.metadata["otelctx"] = was[: len(was) // 2] if bad is None else bad
            (schedule,) = await scheduler.get_schedules()
            schedule.metadata["otelctx"] = "nonsense"
            await scheduler.start_in_background()
            for label in (*carriers, "schedule"):
                await until(label)
            await scheduler.stop()

    runs(main)


def swapped() -> None:
    """Carriers that belong to another job, or to another schedule."""

    async def main() -> None:
        async with AsyncScheduler(task_defaults=MANY) as scheduler:
            with turn("A"):
                await scheduler.add_job(see, args=["job of A's"])
                await scheduler.add_schedule(see, soon(), args=["schedule of A's"], id="A's")
            with turn("B"):
                await scheduler.add_job(see, args=["job of B's"])
                await scheduler.add_job(see, args=["like a schedule"])
                await scheduler.add_job(see, args=["untouched"])
                await scheduler.add_schedule(see, soon(), args=["schedule of B's"], id="B's")
            first, second, third, _ = await scheduler.get_jobs()
            one, other = await scheduler.get_schedules()
            first.metadata, second.metadata, third.metadata = second.metadata, first.metadata, {**one.metadata}
            one.metadata, other.metadata = other.metadata, one.metadata
            await scheduler.start_in_background()
            labels = ("job", "schedule")
            for label in ("like a schedule", "untouched", *(f"{what} of {who}'s" for what in labels for who in "AB")):
                await until(label)
            await scheduler.stop()

    runs(main)


def subscribed() -> None:
    """What somebody does who is told of D's job is not D's adding of it."""

    async def main() -> None:
        async with AsyncScheduler(task_defaults=MANY) as scheduler:
            await scheduler.start_in_background()
            with turn("B"):
                await scheduler.add_schedule(see, soon(3600), args=["of B's"], id="of B's", paused=True)

            async def touch(event: Any) -> None:
                schedule = await scheduler.get_schedule("of B's")
                again = attrs.evolve(schedule, paused=False, next_fire_time=datetime.now(UTC))
                await scheduler.data_store.add_schedule(again, ConflictPolicy.replace)

            scheduler.subscribe(touch, {JobAdded}, one_shot=True)
            with turn("D"):
                await scheduler.add_job(see, args=["of D's"])
            await until("of B's")
            await until("of D's")
            await scheduler.stop()

    runs(main)


def claims() -> None:
    async def main() -> None:
        async with AsyncScheduler(task_defaults=MANY) as scheduler:
            with otelctx.grant_claim(otelctx.Claim("t1")):
                await scheduler.start_in_background()
                with turn("A"):
                    await scheduler.add_job(see, args=["one-shot"])
                    await scheduler.add_schedule(see, often(), args=["recurring"], id="recurring")
                    see("holder")
            await until("one-shot")
            await until("recurring", 2)
            await scheduler.stop()

    runs(main)


def refused(path: str) -> None:
    """Enforce: APP_SESSION, which nobody can set for a job, says B."""

    async def main() -> None:
        stores: dict[str, Any] = {"memory": MemoryDataStore(), "json": data_store(path, "json")}
        os.environ["PARENT"] = str(os.getpid())
        for name, store in stores.items():
            async with AsyncScheduler(store, task_defaults=MANY) as scheduler:
                await scheduler.start_in_background()
                for executor in scheduler.job_executors:
                    for session in "AB":
                        label = f"{name} {executor} {session}"
                        function = elsewhere if executor == "processpool" else see
                        try:
                            with turn(session):
                                result = await scheduler.run_job(function, args=[label], job_executor=executor)
                            seen.seen.extend([result] if result else [])
                        except Exception as exc:
                            seen.seen.append(
                                {"label": f"refused {label}", "type": type(exc).__name__, "text": str(exc)}
                            )
                assert scheduler.state.name == "started"
                await scheduler.stop()

    runs(main)


class WatchedStore(MemoryDataStore):
    """A data store that looks around wherever a scheduler asks it for something."""

    async def start(self, *args: Any) -> None:
        see("store starts")
        await super().start(*args)

    async def acquire_schedules(self, *args: Any) -> Any:
        see("store")
        return await super().acquire_schedules(*args)

    async def acquire_jobs(self, *args: Any) -> Any:
        see("store")
        return await super().acquire_jobs(*args)

    async def cleanup(self) -> None:
        see("store")
        await super().cleanup()


class WatchedExecutor(AsyncJobExecutor):
    """An executor that does so before and after a job."""

    async def start(self, *args: Any) -> None:
        see("executor")
        await super().start(*args)

    async def run_job(self, func: Any, job: Any) -> Any:
        see("executor")
        try:
            return await super().run_job(func, job)
        finally:
            see("executor")


def services() -> None:
    """What works for everybody, started in A's turn."""

    async def main() -> None:
        executors: dict[str, JobExecutor] = {"watched": WatchedExecutor()}
        scheduler = AsyncScheduler(WatchedStore(), job_executors=executors)
        async with AsyncExitStack() as stack:
            with turn("A"):
                await stack.enter_async_context(scheduler)
                scheduler.subscribe(lambda event: see("subscriber"), {JobReleased})
                await scheduler.start_in_background()
            with turn("B"):
                await scheduler.add_job(see_in_task_and_leave, args=["B"])
            await until("B")
            await until("subscriber")
            await scheduler.stop()

    runs(main)


async def waits(label: str) -> None:
    see(label)
    try:
        await anyio.sleep_forever()
    finally:
        see(f"{label}, afterwards")


def outcomes() -> None:
    """Jobs that end otherwise."""

    async def main() -> None:
        events: list[Any] = []
        async with AsyncScheduler(task_defaults=MANY) as scheduler:
            scheduler.subscribe(events.append, {JobReleased})
            with turn("A"):
                late = datetime.now(UTC) - timedelta(hours=1)
                await scheduler.add_schedule(see, DateTrigger(late), args=["missed"], misfire_grace_time=1)
                await scheduler.add_job(waits, args=["cancelled"])
                await scheduler.add_job(fails)
                await scheduler.start_in_background()
            await until("cancelled")
            with anyio.fail_after(20):
                while len(events) < 2:
                    await anyio.sleep(0.005)
            await scheduler.stop()
            await until("cancelled, afterwards")
            with anyio.fail_after(20):
                while len(events) < 3:
                    await anyio.sleep(0.005)
        found = sorted(event.outcome.name for event in events)
        seen.seen.append({"label": "outcomes", "found": found, "left": len(scheduler._running_jobs)})

    runs(main)


def given_up() -> None:
    """What adds a job is given up meanwhile, and closed in another context, as a garbage collector does it."""

    class Store(MemoryDataStore):
        async def add_job(self, job: Any) -> None:
            await anyio.sleep_forever()

    async def main() -> None:
        async with AsyncScheduler(Store()) as scheduler:
            adding = scheduler.add_job(see, args=["never"])
            contextvars.copy_context().run(adding.send, None)
            adding.close()

    raised: list[str] = []
    try:
        asyncio.run(main())
    except Exception as exc:
        raised.append(repr(exc))
    seen.seen.append({"label": "given up", "raised": raised})
    seen.report()


def crowded_in_a_thread(session: str) -> None:
    found = APP_KEY.get(None), otelctx.get("session")
    APP_KEY.set("left behind")
    seen.seen.append({"label": "crowd", "session": session, "found": found})


async def crowded(session: str) -> None:
    first = APP_KEY.get(None), otelctx.get("session")
    await anyio.sleep(0)
    assert (APP_KEY.get(None), otelctx.get("session")) == first
    crowded_in_a_thread(session)


def crowd() -> None:
    """Jobs of 25 sessions, all at once, with ticks between them."""

    async def main() -> None:
        async with AsyncScheduler(task_defaults=MANY) as scheduler:
            await scheduler.start_in_background()
            for number in range(5):
                with turn(f"S{number}"):
                    await scheduler.add_schedule(crowded, often(), args=["nobody's"])

            async def add(session: str) -> None:
                with turn(session):
                    for _ in range(10):
                        await scheduler.add_job(crowded, args=[session])
                        await scheduler.add_job(crowded_in_a_thread, args=[session], job_executor="threadpool")

            async with anyio.create_task_group() as sessions:
                for number in range(25):
                    sessions.start_soon(add, f"S{number}")
            with anyio.fail_after(40):
                while sum(one["session"] != "nobody's" for one in seen.seen) < 500:
                    await anyio.sleep(0.01)
            await until("crowd", 505)
            await scheduler.stop()

    runs(main)


async def spreads(label: str) -> None:
    see(label)
    scheduler = current_async_scheduler.get()
    assert scheduler is not None
    if not seen.number(f"{label}: added"):
        await scheduler.add_job(see, args=[f"{label}: added"], job_executor="threadpool")


def spreading() -> None:
    """Jobs that add jobs."""

    async def main() -> None:
        async with AsyncScheduler(task_defaults=MANY) as scheduler:
            await scheduler.start_in_background()
            with turn("A"):
                await scheduler.add_job(spreads, args=["one-shot"])
            with turn("B"):
                await scheduler.add_schedule(spreads, often(), args=["recurring"], id="recurring")
            await until("one-shot: added")
            await until("recurring: added")
            await scheduler.stop()

    runs(main)


def fails() -> None:
    raise ValueError("of the job")


def failing() -> None:
    async def main() -> None:
        async with AsyncScheduler() as scheduler:
            await scheduler.start_in_background()
            for executor in scheduler.job_executors:
                try:
                    with turn("A"):
                        await scheduler.run_job(fails, job_executor=executor)
                except ValueError as exc:
                    seen.seen.append({"label": executor, "text": str(exc)})
            await scheduler.stop()

    runs(main)


def turned_on_and_off() -> None:
    """What is there after `uninstall` is what was there before `install`."""
    from otelctx_instrumentation import apscheduler4, patching

    def found() -> list[object]:
        return [vars(owner(patch)).get(patch.path.partition(".")[2]) for patch in apscheduler4.PATCHES]

    def owner(patch: Any) -> Any:
        return getattr(sys.modules[patch.module], patch.path.partition(".")[0])

    before = found()
    otelctx.install(keys={"session": {"sources": [{"contextvar": "seen:APP_KEY"}]}})
    once = found()
    otelctx.install(keys={"session": {"sources": [{"contextvar": "seen:APP_KEY"}]}})
    patched = [path for module, path, _ in patching.applied() if module.startswith("apscheduler")]
    seen.seen.append(
        {
            "label": "patched",
            "all": not any(now is was for now, was in zip(once, before, strict=True)),
            "once": found() == once and len(patched) == len(set(patched)) == len(before),
            "names": [now.__name__ == was.__name__ for now, was in zip(once, before, strict=True)],
        }
    )

    async def main() -> None:
        async with AsyncScheduler(task_defaults=MANY) as scheduler:
            with turn("A"):
                await scheduler.start_in_background()
                await scheduler.run_job(see, args=["on"])
                await scheduler.add_schedule(see_in_task, often(), args=["recurring"])
            await until("recurring", 2)
            otelctx.uninstall()
            seen.seen.append({"label": "undone", "exactly": all(a is b for a, b in zip(found(), before, strict=True))})
            await until("recurring", seen.number("recurring") + 2)
            with turn("B"):
                await scheduler.run_job(with_metadata, args=["off"])
            await scheduler.stop()

    runs(main)


if __name__ == "__main__":
    scenario = sys.argv[1]
    if scenario in ("persistent", "refused"):
        globals()[scenario](*sys.argv[2:])
    else:
        globals()[scenario]()
