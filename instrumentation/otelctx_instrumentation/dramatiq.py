"""Dramatiq 1.10 to 2.2: messages arrive as they departed, on every broker, for sync and async actors.

What is patched and why there. A middleware of ours would be one of the application's own list, which it reads, sets and
counts on, and could not give a message a context of its own: a ContextVar that an actor sets cannot be unset in its
worker's thread.

* ``Broker.emit_before`` is where every broker tells its middleware that a message is being enqueued. Our carrier is one
  of the message's options, and always written, so that the one of an earlier message never counts. A *retry* (any
  message that is enqueued once more from its own run) departs as its message did, whatever the actor has bound since.
* ``Broker.emit_after`` is where a worker tells it that an actor is done. What is enqueued there (what follows in a
  pipeline or after a group, callbacks) was brought along by the message, and departs as that did.
* ``ConsumerThread.handle_delayed_messages`` moves a message whose time has come to its queue: it keeps its carrier.
* ``WorkerThread.process_message`` is where a message arrives, with everything around it: the middleware, which sends
  retries, callbacks and what follows in a pipeline. An async actor runs in a copy of that context.

A worker's threads serve everybody, and start without a key (`otelctx_instrumentation.services`). Dramatiq has no
schedule of its own: a message that a cron run sends has that run's key.

What escapes: a call of an actor is no message, and its caller's own work; brokers that do not tell of what they
enqueue.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otelctx import faults, policy, tasks
from otelctx.mismatch import MismatchError
from otelctx.tokens import give_back
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from otelctx.runs import Arrival
    from otelctx.snapshot import Snapshot

RUNNER: Final = "dramatiq"


class _Run(NamedTuple):
    """The message that the current context runs."""

    id: str
    arrived: Snapshot


_RUN: Final[ContextVar[_Run | None]] = ContextVar("otelctx.dramatiq.run", default=None)
_MOVING: Final[ContextVar[bool]] = ContextVar("otelctx.dramatiq.moving", default=False)
"""Whether messages are enqueued whose time has come."""
_DONE: Final[ContextVar[bool]] = ContextVar("otelctx.dramatiq.done", default=False)
"""Whether the actor that the current context has run is done."""


def _emitting(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def emit_before(self: Any, signal: Any, *args: Any, **kwargs: Any) -> Any:
        if signal == "enqueue" and active.on and not _MOVING.get():
            try:
                _depart(*args, **kwargs)
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        return original(self, signal, *args, **kwargs)

    return emit_before


def _depart(message: Any, delay: Any = None) -> None:
    carrier = _carrier(str(message.message_id), policy.TASK if delay is None else policy.DEFERRED)
    options = message.options
    if not isinstance(message, tuple):  # up to 1.x, when nothing of a message could be replaced
        # An application may make several messages with the same options.
        options = dict(options)
        object.__setattr__(message, "options", options)  # as Dramatiq does: it is frozen
    options.pop(tasks.NAME, None)
    if carrier:
        options[tasks.NAME] = carrier


def _carrier(message: str, kind: int) -> str:
    run = _RUN.get()
    if run is not None and run.id == message:
        return run.arrived.run(tasks.depart, policy.RETRY, message=message)
    if run is not None and _DONE.get():
        return run.arrived.run(tasks.depart, kind, message=message)
    return tasks.depart(kind, message=message)


def _telling(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def emit_after(self: Any, signal: Any, *args: Any, **kwargs: Any) -> Any:
        token = _DONE.set(_DONE.get() or signal == "process_message")
        try:
            return original(self, signal, *args, **kwargs)
        finally:
            _DONE.reset(token)

    return emit_after


def _moving(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def handle_delayed_messages(self: Any) -> Any:
        token = _MOVING.set(True)
        try:
            return original(self)
        finally:
            _MOVING.reset(token)

    return handle_delayed_messages


def _processing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def process_message(self: Any, message: Any) -> Any:
        arriving: Arrival | None = None
        if active.on:
            try:
                arriving = _arrival(self.broker, message)
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        if arriving is None:
            return original(self, message)
        try:
            return arriving.run(_processed, arriving, original, self, message)
        except MismatchError as exc:  # of the arrival: what an actor raises, Dramatiq keeps to itself
            return _refused(self, message, exc)
        finally:
            del message

    return process_message


def _arrival(broker: Any, message: Any) -> Arrival:
    options = message.options
    retries = options.get("retries")
    return tasks.arrival(
        options.get(tasks.NAME),
        runner=RUNNER,
        job=message.actor_name,
        message=str(message.message_id),
        attempt=retries + 1 if isinstance(retries, int) else 1,
        called=getattr(broker.actors.get(message.actor_name), "fn", None),
    )


def _processed(arriving: Arrival, original: Callable[..., Any], worker: Any, message: Any) -> Any:
    tokens = _RUN.set(_Run(str(message.message_id), arriving.departs())), _DONE.set(False)
    try:
        return original(worker, message)
    finally:
        give_back(*tokens)


def _refused(worker: Any, message: Any, exc: MismatchError) -> None:
    """Let `message` fail as one does whose actor has raised `exc`: its worker's thread is to live on."""
    try:
        message.stuff_exception(exc)
        worker.broker.emit_after("process_message", message, exception=exc)
    finally:
        worker.consumers[message.queue_name].post_process_message(message)
        worker.work_queue.task_done()
        message.clear_exception()


PATCHES = (
    Patch("dramatiq.broker", "Broker.emit_before", _emitting),
    Patch("dramatiq.broker", "Broker.emit_after", _telling),
    # Newer versions have both names for these classes.
    Patch("dramatiq.worker", "_ConsumerThread.handle_delayed_messages", _moving),
    Patch("dramatiq.worker", "_WorkerThread.process_message", _processing),
)
