"""APScheduler 4 (4.0.0a6, an alpha), with `AsyncScheduler` and `Scheduler`. Version 3 is another module's.

A job that a schedule brings about is a cron run: its key is its own, it has no claim, and its span is a root with a
Link to whoever has added the schedule. A schedule with a ``DateTrigger`` is for one time, and so is what `add_job` and
`run_job` ask for: that is whose turn has added it, without the claim.

What is patched and why there:

* ``AsyncScheduler.add_job`` and ``add_schedule`` are where jobs depart; ``Scheduler``, which is for threads, calls them
  in its caller's context. An id is made up in ``Job.__init__`` or ``Schedule.__init__``: there our carrier, bound to
  the id, gets into the ``metadata``. Every data store keeps that; each job of a schedule gets a copy of its schedule's.
  It is always written, so that what was copied from another job's metadata never counts.
* ``AsyncScheduler._run_job`` is where a job that is due is given to its executor. The function that it is given is one
  like it, which arrives where an executor calls it: in a loop, a thread, or (it pickles) another process. What is
  raised there, a refusal included, is how the job has ended.
* ``ProcessPoolJobExecutor.run_job`` arrives before it sends the function to another process, where there may be nothing
  that collects spans. It does that by anyio, which has a module of its own.
* ``AsyncScheduler.run_until_stopped`` and ``_ensure_services_initialized`` (the loops, and the tasks of data stores and
  event brokers) serve everybody, whoever starts them.

What escapes: jobs and schedules that are given to a data store directly (no key; a schedule's run is minted); callbacks
of `subscribe`, which run as whoever publishes the event, nobody for the end of a job; an executor of the application's
own that never calls the function it is given.
"""

from __future__ import annotations

import re
import time
from contextvars import ContextVar
from functools import partial, update_wrapper, wraps
from typing import TYPE_CHECKING, Any, Final

from otelctx import carrier, cron, faults, policy, runs, tasks
from otelctx.runs import Arrival
from otelctx.tokens import give_back
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from otelctx.departure import Departure

RUNNER: Final = "apscheduler"

_ADDING: Final[ContextVar[bool]] = ContextVar("otelctx.apscheduler4.adding", default=False)
"""Whether a job or a schedule is being added, and not made yet."""


def _adding(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """``add_job`` and ``add_schedule``: what they make departs."""

    async def add(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _ADDING.set(active.on)
        try:
            return await original(self, *args, **kwargs)
        finally:
            give_back(token)

    return add


def _making(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """``Job(…)`` and ``Schedule(…)``, which data stores make as well of what they have read."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - what it replaces is called that
        original(self, *args, **kwargs)
        if active.on and _ADDING.get():
            _ADDING.set(False)  # what is published from now on may make others
            try:
                _depart(self)
            except Exception as exc:
                faults.internal_error(RUNNER, exc)

    return __init__


def _depart(made: Any) -> None:
    made.metadata.pop(tasks.NAME, None)
    trigger, name = getattr(made, "trigger", None), str(made.id)
    if trigger is None or _is_for_one_time(trigger):
        sent = tasks.depart(policy.DEFERRED, message=name)
    else:
        sent = tasks.depart(policy.CRON, message=name, runner=RUNNER, job=_called_as(name, made.task_id))
    if sent:
        made.metadata[tasks.NAME] = sent


def _is_for_one_time(trigger: object) -> bool:
    from apscheduler.triggers.date import DateTrigger  # type: ignore[import-not-found]  # only where version 4 calls us

    return isinstance(trigger, DateTrigger)


def _called_as(schedule: str | None, task: str) -> str:
    """What a job is called: its schedule's id, or its task, where that id is one that was made up for it."""
    return task.rpartition(":")[2] if schedule is None or _MADE_UP.fullmatch(schedule) else schedule


_MADE_UP: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _running(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def _run_job(self: Any, job: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        if active.on:
            try:
                func = _arriving(job, func, self.job_executors.get(job.executor))
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        return await original(self, job, func, *args, **kwargs)

    return _run_job


def _arriving(job: Any, fn: Callable[..., Any], executor: object) -> Callable[..., Any]:
    """A function like `fn`, each call of which is the run of `job`; one more call (a retry) has the same key."""
    from apscheduler.executors.async_ import AsyncJobExecutor  # type: ignore[import-not-found]

    departing = _departed(job, fn)
    departed = partial(departing.again, departing.kind)
    if isinstance(executor, AsyncJobExecutor):
        return runs.each_call(_awaiting(fn), departed, is_asynchronous=True)
    if cron.is_asynchronous(fn) and not _is_process_pool(executor):
        return runs.each_call(fn, departed, is_asynchronous=True)
    return _Due(fn, departing)


def _departed(job: Any, fn: Callable[..., Any]) -> Departure:
    from datetime import UTC, datetime

    schedule = job.schedule_id
    departing = tasks.arrival(
        job.metadata.get(tasks.NAME),
        runner=RUNNER,
        job=_called_as(schedule, job.task_id),
        message=str(job.id if schedule is None else schedule),
        is_schedule=schedule is not None,
        called=fn,
    ).departure
    # A schedule's carrier is as old as the schedule; the job waits since its time has come.
    departing.clock = time.monotonic() - max(0.0, (datetime.now(UTC) - job.created_at).total_seconds())
    return departing


def _awaiting(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` as a coroutine function: `AsyncJobExecutor` awaits what a function returns, if that can be awaited."""
    from inspect import isawaitable

    @wraps(fn)
    async def run(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        return await result if isawaitable(result) else result

    return run


class _Due:
    """A job's function, each call of which is its run. It pickles wherever the function does."""

    def __init__(self, fn: Callable[..., Any], departing: Departure) -> None:
        update_wrapper(self, fn)
        self.__wrapped__ = fn
        self.otelctx = departing

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        from inspect import iscoroutine

        result = self.arrival().run(self.__wrapped__, *args, **kwargs)
        return self.arrival().run_async(_itself, result) if iscoroutine(result) else result

    def arrival(self) -> Arrival:
        """One run."""
        departing = self.otelctx
        return Arrival(departing.again(departing.kind), self.__wrapped__)

    def __reduce__(self) -> tuple[Any, ...]:
        # By an executor of the application's own.
        if not carrier.can_arrive("spawn"):
            return partial, (self.__wrapped__,)
        departing = self.otelctx
        text, hop = carrier.packed(departing, departing.kind)
        waited = time.monotonic() - departing.clock
        return carrier.Carried, (text, (hop[0], hop[1] - waited, *hop[2:]), self.__wrapped__)


async def _itself(result: Coroutine[Any, Any, Any]) -> Any:
    return await result


def _is_process_pool(executor: object) -> bool:
    from apscheduler.executors.subprocess import ProcessPoolJobExecutor  # type: ignore[import-not-found]

    return isinstance(executor, ProcessPoolJobExecutor)


def _sending(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def run_job(self: Any, func: Any, job: Any) -> Any:
        if not active.on or not isinstance(func, _Due):
            return await original(self, func, job)
        return await func.arrival().run_async(original, self, func.__wrapped__, job)

    return run_job


def _serving(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def serve(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not active.on:
            return await original(self, *args, **kwargs)
        return await runs.served(original, self, *args, **kwargs)

    return serve


PATCHES = (
    Patch("apscheduler._structures", "Job.__init__", _making),
    Patch("apscheduler._structures", "Schedule.__init__", _making),
    Patch("apscheduler._schedulers.async_", "AsyncScheduler.add_job", _adding),
    Patch("apscheduler._schedulers.async_", "AsyncScheduler.add_schedule", _adding),
    Patch("apscheduler._schedulers.async_", "AsyncScheduler._run_job", _running),
    Patch("apscheduler._schedulers.async_", "AsyncScheduler.run_until_stopped", _serving),
    Patch("apscheduler._schedulers.async_", "AsyncScheduler._ensure_services_initialized", _serving),
    Patch("apscheduler.executors.subprocess", "ProcessPoolJobExecutor.run_job", _sending),
)
