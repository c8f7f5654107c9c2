"""taskiq 0.9 to 0.13: tasks arrive as their message departed, a scheduler's ticks are cron runs.

What is patched and why there. A middleware of ours would be one of the application's own list, and could not give a
task a context of its own: a ContextVar that it sets cannot be unset in whoever awaits it.

* ``AsyncKicker._prepare_message`` is where every message is made. Our carrier is one of its labels, and always written:
  a retry is sent with the labels of the message that it repeats. A *retry* keeps its message's key, whatever the task
  has bound since.
* ``AsyncKicker.schedule_by_time`` gives a task to a schedule, for whose turn it is; ``TaskiqScheduler.on_ready`` sends
  it when it is due. What recurs (``cron``, ``interval``) is minted there, each time.
* ``Receiver.run_task`` is where a task arrives, with its dependencies, and the middleware that is told of its errors
  and sends its retries. `InMemoryBroker` runs tasks in the caller, whose own work they are; but for ticks.
* ``Receiver.listen`` serves everybody, and works in a context without a key, whoever starts it.

What escapes: ``pre_execute`` and ``post_execute`` of an application's middleware, which run as nobody.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otelctx import faults, policy, runs, tasks
from otelctx import snapshot as snapshots
from otelctx.mismatch import MismatchError
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from otelctx.runs import Arrival
    from otelctx.snapshot import Snapshot

RUNNER: Final = "taskiq"


class _Run(NamedTuple):
    """The message that the current context runs."""

    id: str
    arrived: Snapshot


_RUN: Final[ContextVar[_Run | None]] = ContextVar("otelctx.taskiq.run", default=None)
_TICK: Final[ContextVar[str | None]] = ContextVar("otelctx.taskiq.tick", default=None)
"""The recurring task that is being sent."""
_DUE: Final[ContextVar[Snapshot | None]] = ContextVar("otelctx.taskiq.due", default=None)
"""Whose the scheduled task is that is being sent."""
_SCHEDULE: Final[ContextVar[str | None]] = ContextVar("otelctx.taskiq.schedule", default=None)
"""The id of the schedule that a task is being given to."""


def _preparing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def _prepare_message(self: Any, *args: Any, **kwargs: Any) -> Any:
        message = original(self, *args, **kwargs)
        if active.on:
            try:
                labels = {name: value for name, value in message.labels.items() if name != tasks.NAME}
                carrier = _departing(message)
                message.labels = {**labels, tasks.NAME: carrier} if carrier else labels
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        return message

    return _prepare_message


def _departing(message: Any) -> str:
    tick, due, schedule, run = _TICK.get(), _DUE.get(), _SCHEDULE.get(), _RUN.get()
    if tick is not None:
        return tasks.depart(policy.CRON, message=message.task_id, runner=RUNNER, job=tick)
    if due is not None:
        return due.run(tasks.depart, policy.DEFERRED, message=message.task_id)
    bound_to = message.task_id if schedule is None else schedule
    if run is not None and run.id == message.task_id:
        return run.arrived.run(tasks.depart, policy.RETRY, message=bound_to)
    return tasks.depart(policy.TASK if schedule is None else policy.DEFERRED, message=bound_to)


def _scheduling(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def schedule_by_time(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not active.on:
            return await original(self, *args, **kwargs)
        given = self.custom_schedule_id
        schedule = self.broker.id_generator() if given is None else given  # as taskiq does
        self.custom_schedule_id = schedule
        token = _SCHEDULE.set(schedule)
        try:
            return await original(self, *args, **kwargs)
        finally:
            _SCHEDULE.reset(token)
            self.custom_schedule_id = given

    return schedule_by_time


def _sending(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def on_ready(self: Any, *args: Any, **kwargs: Any) -> Any:
        tick: str | None = None
        due: Snapshot | None = None
        if active.on:
            try:
                task: Any = kwargs.get("task", args[-1] if args else None)
                if task.cron is not None or getattr(task, "interval", None) is not None:
                    tick = task.task_name
                else:
                    due = tasks.arrival(
                        task.labels.get(tasks.NAME),
                        runner=RUNNER,
                        job=task.task_name,
                        message=str(getattr(task, "schedule_id", "")),
                    ).departure.snapshot
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        tokens = _TICK.set(tick), _DUE.set(due)
        try:
            return await original(self, *args, **kwargs)
        finally:
            for token in tokens:
                token.var.reset(token)  # type: ignore[arg-type]

    return on_ready


def _running(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def run_task(self: Any, target: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        arriving: Arrival | None = None
        if active.on:
            try:
                arriving = _arrival(self.broker, target, message)
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        if arriving is None:
            return await original(self, target, message, *args, **kwargs)

        async def run() -> Any:
            tokens = _RUN.set(_Run(message.task_id, snapshots.depart())), _TICK.set(None), _DUE.set(None)
            try:
                return await original(self, target, message, *args, **kwargs)
            finally:
                for token in tokens:
                    token.var.reset(token)  # type: ignore[arg-type]

        try:
            return await arriving.run_async(run)
        except MismatchError as exc:  # of the arrival: what a task raises is in its result
            from taskiq.result import TaskiqResult  # type: ignore[import-not-found]  # only where taskiq calls this

            return TaskiqResult(
                is_err=True, log=None, return_value=None, execution_time=0, error=exc, labels=message.labels
            )

    return run_task


def _arrival(broker: Any, target: Any, message: Any) -> Arrival | None:
    carrier = message.labels.get(tasks.NAME)
    arriving = tasks.arrival(
        carrier,
        runner=RUNNER,
        job=message.task_name,
        message=message.task_id,
        attempt=1 + sum(_number(message.labels.get(label)) for label in ("_retries", "X-Taskiq-requeue")),
        is_cron=carrier is None and "schedule_id" in message.labels,  # sent by a scheduler without otelctx
        called=target,
    )
    in_memory = sys.modules.get("taskiq.brokers.inmemory_broker")
    if in_memory is not None and isinstance(broker, in_memory.InMemoryBroker):
        return arriving if arriving.departure.kind == policy.CRON else None
    return arriving


def _number(label: object) -> int:
    try:
        return max(0, int(label))  # type: ignore[call-overload,no-any-return]  # newer versions keep numbers as text
    except (TypeError, ValueError):
        return 0


def _serving(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def listen(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not active.on:
            return await original(self, *args, **kwargs)
        return await runs.served(original, self, *args, **kwargs)

    return listen


PATCHES = (
    Patch("taskiq.kicker", "AsyncKicker._prepare_message", _preparing),
    Patch("taskiq.kicker", "AsyncKicker.schedule_by_time", _scheduling),
    Patch("taskiq.scheduler.scheduler", "TaskiqScheduler.on_ready", _sending),
    Patch("taskiq.receiver.receiver", "Receiver.run_task", _running),
    Patch("taskiq.receiver.receiver", "Receiver.listen", _serving),
)
