r"""Huey 2.5 to 3.5: tasks arrive as their message departed, periodic tasks are cron runs.

Where a message departs: ``Huey.serialize_task``, by which a task is written to the queue and to the schedule. A task
that was read keeps what it was sent with when it is written again (the scheduler does that when it is due); a retry
departs anew, as its message, and so does what the message has brought along: the next task of a pipeline, an error
handler, a chord's callback. A periodic task has a key of its own each time that somebody enqueues it: the scheduler at
its minute, or a call.

A message is a named tuple with no room for anything, and nothing may be in a task's arguments that older workers would
hand to the function. But ``pickle.loads`` ignores what comes behind a pickle: there our carrier is, put there by
``Serializer._serialize``, which is inside of what Huey compresses and signs.

Where a task arrives: ``Huey._execute``, with everything around it: hooks, retries, the tasks that follow it. In
immediate mode a task is never written: it is its caller's own work, but for a periodic one, which is a cron run.

A consumer's workers and its scheduler serve everybody: ``Consumer.start`` starts them in a context without a key.

What escapes: serializers that do not go through ``Serializer._serialize`` (their messages arrive with a fresh key);
``MiniHuey``; the signal ``EXECUTING``, which is sent before a task has arrived.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otelctx import arrival, cron, faults, mode, policy, tasks, workers
from otelctx.keys import MISSING
from otelctx.mismatch import MismatchError
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from otelctx.runs import Arrival
    from otelctx.snapshot import Snapshot

RUNNER: Final = "huey"

NOTE: Final = "_otelctx"
"""The attribute in which a task that was read from a message has what it was sent with; None where it was nothing."""

BROUGHT: Final = "_otelctx_brought"
"""The attribute in which a task that came with another one's message has what that was."""

BEGIN: Final = b"\0otelctx:"
END: Final = b"\0"
"""What is around a carrier, behind a pickle. A pickle itself ends with a full stop."""


class _Run(NamedTuple):
    """The task that the current context runs."""

    id: str
    arrived: Snapshot


class _Bringer(NamedTuple):
    """The task whose message has brought others along."""

    id: str
    name: str
    carrier: str | None


_RUN: Final[ContextVar[_Run | None]] = ContextVar("otelctx.huey.run", default=None)
_SENDING: Final[ContextVar[str | None]] = ContextVar("otelctx.huey.sending", default=None)
"""What belongs to the message that is being written."""
_READING: Final[ContextVar[list[str] | None]] = ContextVar("otelctx.huey.reading", default=None)
"""Where what belongs to the message that is being read is put."""


def _is_periodic(task: object) -> bool:
    from huey.api import PeriodicTask  # type: ignore[import-not-found]  # only where Huey calls this

    return isinstance(task, PeriodicTask)


def _is_message(data: object) -> bool:
    from huey.registry import Message  # type: ignore[import-not-found]

    return isinstance(data, Message)


def _name_of(task: Any) -> str:
    return f"{type(task).__module__}.{type(task).__name__}"


def _writing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def serialize_task(self: Any, task: Any) -> Any:
        if not active.on:
            return original(self, task)
        carrier: str | None = None
        try:
            carrier = vars(task).get(NOTE, MISSING)
            if carrier is MISSING:
                carrier = _departing(task)
        except Exception as exc:
            faults.internal_error(RUNNER, exc)
        token = _SENDING.set(carrier)
        try:
            return original(self, task)
        finally:
            _SENDING.reset(token)

    return serialize_task


def _departing(task: Any) -> str:
    if _is_periodic(task):
        return tasks.depart(policy.CRON, message=str(task.id), runner=RUNNER, job=_name_of(task))
    kind = policy.TASK if task.eta is None else policy.DEFERRED
    by: _Bringer | None = vars(task).get(BROUGHT)
    if by is None:
        return tasks.depart(kind, message=str(task.id))
    run = _RUN.get()
    if run is not None and run.id == by.id:
        arrived = run.arrived
    else:  # it has not run: somebody has revoked it
        arriving = tasks.arrival(by.carrier, runner=RUNNER, job=by.name, message=str(by.id))
        arrived = arriving.departure.snapshot
    return arrived.run(tasks.depart, kind, message=str(task.id))


def _reading(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def deserialize_task(self: Any, data: Any) -> Any:
        if not active.on:
            return original(self, data)
        found: list[str] = []
        token = _READING.set(found)
        try:
            task = original(self, data)
        finally:
            _READING.reset(token)
        try:
            vars(task)[NOTE] = carrier = found[-1] if found else None
            _bring(task, _Bringer(task.id, _name_of(task), carrier))
        except Exception as exc:
            faults.internal_error(RUNNER, exc)
        return task

    return deserialize_task


def _bring(task: Any, by: _Bringer) -> None:
    """Mark what has come with `task`, which was read from its message."""
    chord = getattr(task, "chord_config", None)  # of newer versions
    for brought in (task.on_complete, task.on_error, None if chord is None else chord.callback):
        if brought is not None:
            vars(brought)[BROUGHT] = by
            _bring(brought, by)


def _pickling(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def _serialize(self: Any, data: Any) -> Any:
        written = original(self, data)
        carrier = _SENDING.get()
        if active.on and carrier and isinstance(written, bytes) and _is_message(data):
            written += BEGIN + carrier.encode("ascii", "replace") + END
        return written

    return _serialize


def _unpickling(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def _deserialize(self: Any, data: Any) -> Any:
        message = original(self, data)
        found = _READING.get()
        if active.on and found is not None and isinstance(data, bytes) and data.endswith(END):
            before, begin, carrier = data.removesuffix(END).rpartition(BEGIN)
            if before and begin:
                found.append(carrier.decode("ascii", "replace"))
        return message

    return _deserialize


def _enqueueing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def enqueue(self: Any, task: Any) -> Any:
        departing = None
        if active.on and self._immediate and mode.current() != "observe":
            try:
                if _is_periodic(task) and not cron.is_within(RUNNER, _name_of(task)):
                    departing = cron.departure(RUNNER, _name_of(task))
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        if departing is None:
            return original(self, task)
        return arrival.apart(departing, original, (self, task), {})

    return enqueue


def _executing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def _execute(self: Any, task: Any, timestamp: Any) -> Any:
        arriving: Arrival | None = None
        if active.on and NOTE in vars(task):
            try:
                arriving = _arrival(task)
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        if arriving is None:
            return original(self, task, timestamp)

        has_begun = False

        def execute() -> Any:
            nonlocal has_begun
            has_begun = True
            token = _RUN.set(_Run(task.id, arriving.departs()))
            try:
                return original(self, task, timestamp)
            finally:
                _RUN.reset(token)

        try:
            return arriving.run(execute)
        except MismatchError as exc:
            if has_begun:
                raise
            return _refused(exc, original, self, task, timestamp)

    return _execute


def _refused(exc: MismatchError, original: Callable[..., Any], huey: Any, task: Any, timestamp: Any) -> Any:
    """Let `task` fail as one does that has raised `exc`: Huey loses what is raised around one."""

    def execute() -> Any:
        raise exc

    vars(task)["execute"] = execute
    try:
        return original(huey, task, timestamp)
    finally:
        vars(task).pop("execute", None)


def _arrival(task: Any) -> Arrival:
    # Huey counts retries down, from what the task was declared with if nothing else was said.
    gone = type(task).default_retries - task.retries
    return tasks.arrival(
        vars(task)[NOTE],
        runner=RUNNER,
        job=_name_of(task),
        message=str(task.id),
        attempt=max(gone, 0) + 1,
        is_cron=vars(task)[NOTE] is None and _is_periodic(task),  # sent by a scheduler without otelctx
    )


def _requeueing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def _requeue_task(self: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
        run = _RUN.get()
        if active.on and run is not None and run.id == task.id:
            vars(task)[NOTE] = run.arrived.run(tasks.depart, policy.RETRY, message=str(task.id))
        return original(self, task, *args, **kwargs)

    return _requeue_task


def _starting(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def start(self: Any) -> Any:
        return workers.serving(original, self) if active.on else original(self)

    return start


PATCHES = (
    Patch("huey.serializer", "Serializer._serialize", _pickling),
    Patch("huey.serializer", "Serializer._deserialize", _unpickling),
    Patch("huey.api", "Huey.serialize_task", _writing),
    Patch("huey.api", "Huey.deserialize_task", _reading),
    Patch("huey.api", "Huey.enqueue", _enqueueing),
    Patch("huey.api", "Huey._requeue_task", _requeueing),
    Patch("huey.api", "Huey._execute", _executing),
    Patch("huey.consumer", "Consumer.start", _starting),
)
