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
from otelctx.mismatch import MismatchError
from otelctx.tokens import give_back
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Token

    from otelctx.departure import Departure
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
_DUE: Final[ContextVar[Departure | None]] = ContextVar("otelctx.taskiq.due", default=None)
"""Whose the scheduled task is that is being sent."""
_SCHEDULING: Final[ContextVar[Any]] = ContextVar("otelctx.taskiq.scheduling", default=None)
"""The kicker that is giving a task to a schedule."""


def _preparing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def _prepare_message(self: Any, *args: Any, **kwargs: Any) -> Any:
        message = original(self, *args, **kwargs)
        if active.on:
            try:
                labels = {name: value for name, value in message.labels.items() if name != tasks.NAME}
                carrier = _departing(message, self.custom_schedule_id if self is _SCHEDULING.get() else None)
                message.labels = {**labels, tasks.NAME: carrier} if carrier else labels
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        return message

    return _prepare_message


def _departing(message: Any, schedule: str | None) -> str:
    tick, due, run = _TICK.get(), _DUE.get(), _RUN.get()
    if tick is not None:
        return tasks.depart(policy.CRON, message=message.task_id, runner=RUNNER, job=tick)
    if due is not None:
        kind = policy.RETRY if due.kind == policy.RETRY else policy.DEFERRED  # one that is put off is a retry
        return due.snapshot.run(tasks.depart, kind, message=message.task_id)
    bound_to = message.task_id if schedule is None else schedule
    if run is not None and run.id == message.task_id:
        return run.arrived.run(tasks.depart, policy.RETRY, message=bound_to)
    return tasks.depart(policy.TASK if schedule is None else policy.DEFERRED, message=bound_to)


def _scheduling(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def schedule_by_time(self: Any, *args: Any, **kwargs: Any) -> Any:
        kicker = _with_schedule(self) if active.on else self
        if kicker is self:
            return await original(self, *args, **kwargs)
        token = _SCHEDULING.set(kicker)
        try:
            created = await original(kicker, *args, **kwargs)
        finally:
            give_back(token)
        if getattr(created, "kicker", None) is kicker:
            created.kicker = self
        return created

    return schedule_by_time


def _with_schedule(kicker: Any) -> Any:
    """A kicker like `kicker` that knows its schedule's id: one may give several tasks to schedules at once."""
    try:
        from copy import copy

        like = copy(kicker)
        if like.custom_schedule_id is None:
            like.custom_schedule_id = kicker.broker.id_generator()  # as taskiq does
        return like
    except Exception as exc:
        faults.internal_error(RUNNER, exc)
        return kicker


def _sending(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def on_ready(self: Any, *args: Any, **kwargs: Any) -> Any:
        tick: str | None = None
        due: Departure | None = None
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
                        attempt=_attempt(task.labels),
                    ).departure
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        tokens = _TICK.set(tick), _DUE.set(due)
        try:
            return await original(self, *args, **kwargs)
        finally:
            give_back(*tokens)

    return on_ready


def _running(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def run_task(self: Any, target: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        arriving: Arrival | None = None
        if active.on:
            try:
                arriving = _arrival(self.broker, target, message)
            except Exception as exc:
                faults.internal_error(RUNNER, exc)

        async def run() -> Any:
            # What sends this task is done with that, where it runs in place.
            tokens: list[Token[Any]] = [_TICK.set(None), _DUE.set(None)]
            if arriving is not None:
                tokens.append(_RUN.set(_Run(message.task_id, arriving.departs())))
            try:
                return await original(self, target, message, *args, **kwargs)
            finally:
                give_back(*tokens)

        if arriving is None:
            return await (run() if active.on else original(self, target, message, *args, **kwargs))
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
        attempt=_attempt(message.labels),
        is_cron=carrier is None and "schedule_id" in message.labels,  # sent by a scheduler without otelctx
        called=target,
    )
    in_memory = sys.modules.get("taskiq.brokers.inmemory_broker")
    if in_memory is not None and isinstance(broker, in_memory.InMemoryBroker):
        return arriving if arriving.departure.kind == policy.CRON else None
    return arriving


def _attempt(labels: Mapping[str, object]) -> int:
    return 1 + sum(_number(labels.get(label)) for label in ("_retries", "X-Taskiq-requeue"))


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
