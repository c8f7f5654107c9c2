"""arq 0.23 to 0.28: jobs arrive as they were enqueued, cron jobs are cron runs.

Where a job departs: ``ArqRedis.enqueue_job``, which chooses its id, and ``serialize_job``, where our carrier becomes
one more entry of the dictionary that is pickled (or given to the application's own serializer). Workers without otelctx
ignore it. A *retry* runs the same message once more, and so has its key. A cron job is known by ``Worker.run_cron``
and by arq's name for it, ``cron:…``: whoever enqueues one, at its time or out of turn, a run has a key of its own.

Where a job arrives: ``deserialize_job_raw`` in ``Worker.run_job``, which runs in a task of each job's own, before the
hooks around it and the coroutine itself. That is the first place at which the message is known.

A worker serves everybody: ``Worker.main`` works in a context without a key, whoever starts it.

What escapes: a message of a sender without otelctx has another fresh key at each attempt; the hooks ``on_startup`` and
``on_shutdown`` are no job's; a serializer that takes no entries but arq's own (its messages arrive with a fresh key); a
cron job by another name that is enqueued by hand is whose turn has enqueued it.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otelctx import arrival, faults, mode, policy, runs, tasks
from otelctx.mismatch import MismatchError
from otelctx.tokens import give_back
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

RUNNER: Final = "arq"

CRON: Final = "cron:"
"""What arq's own names for cron jobs begin with."""


class _Run:
    """One job on its way through ``Worker.run_job``."""

    __slots__ = ("block", "id", "worker")

    def __init__(self, worker: Any, job_id: str) -> None:
        self.worker = worker
        self.id = job_id
        self.block: AbstractContextManager[None] | None = None


_RUN: Final[ContextVar[_Run | None]] = ContextVar("otelctx.arq.run", default=None)
_SENDING: Final[ContextVar[str]] = ContextVar("otelctx.arq.sending", default="")
"""What belongs to the job that is being enqueued."""
_TICKING: Final[ContextVar[bool]] = ContextVar("otelctx.arq.ticking", default=False)
"""Whether cron jobs are enqueued whose time has come."""


def _enqueueing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def enqueue_job(self: Any, *args: Any, **kwargs: Any) -> Any:
        carrier = ""
        if active.on:
            try:
                if not kwargs.get("_job_id"):
                    from uuid import uuid4

                    kwargs["_job_id"] = uuid4().hex  # as arq does
                carrier = _departing(args[0] if args else kwargs.get("function"), kwargs)
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        token = _SENDING.set(carrier)
        try:
            return await original(self, *args, **kwargs)
        finally:
            give_back(token)

    return enqueue_job


def _departing(function: object, options: dict[str, Any]) -> str:
    name, message = str(function), str(options["_job_id"])
    if _TICKING.get() or name.startswith(CRON):
        return tasks.depart(policy.CRON, message=message, runner=RUNNER, job=name.removeprefix(CRON))
    is_deferred = options.get("_defer_until") or options.get("_defer_by")
    return tasks.depart(policy.DEFERRED if is_deferred else policy.TASK, message=message)


def _serializing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def serialize_job(*args: Any, serializer: Any = None, **kwargs: Any) -> Any:
        carrier = _SENDING.get()
        if not active.on or not carrier:
            return original(*args, serializer=serializer, **kwargs)

        def serialized(data: Any) -> Any:
            if serializer is None:
                from pickle import dumps

                return dumps({**data, tasks.NAME: carrier})
            try:
                return serializer({**data, tasks.NAME: carrier})
            except Exception as exc:
                faults.internal_error(RUNNER, exc, "the serializer takes arq's own entries only")
            return serializer(data)

        return original(*args, serializer=serialized, **kwargs)

    return serialize_job


def _ticking(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def run_cron(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _TICKING.set(True)
        try:
            return await original(self, *args, **kwargs)
        finally:
            give_back(token)

    return run_cron


def _running(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def run_job(self: Any, job_id: str, *args: Any, **kwargs: Any) -> Any:
        if not active.on:
            return await original(self, job_id, *args, **kwargs)
        return await runs.served(_run, original, self, job_id, args, kwargs)

    return run_job


async def _run(original: Callable[..., Any], worker: Any, job_id: str, args: Any, kwargs: Any) -> Any:
    run = _Run(worker, job_id)
    token = _RUN.set(run)
    try:
        return await original(worker, job_id, *args, **kwargs)
    finally:
        if run.block is not None:
            run.block.__exit__(None, None, None)
        _RUN.reset(token)


def _deserializing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def deserialize_job_raw(r: Any, *, deserializer: Any = None) -> Any:
        run = _RUN.get()
        if not active.on or run is None or run.block is not None:
            return original(r, deserializer=deserializer)
        carriers: list[object] = []

        def deserialized(data: Any) -> Any:
            if deserializer is None:
                from pickle import loads

                said = loads(data)  # as arq does: what comes from its own queue
            else:
                said = deserializer(data)
            carriers.append(said.get(tasks.NAME) if isinstance(said, dict) else None)
            return said

        job = original(r, deserializer=deserialized)
        # How often it was tried is a local variable of `run_job` at this point, and an argument of what it calls later.
        tried = sys._getframe(1).f_locals.get("job_try")
        try:
            run.block = _arrived(run, carriers[0], job, tried)
        except MismatchError as exc:
            from arq.jobs import DeserializationError  # type: ignore[import-not-found]  # only where arq calls this

            # Its worker ends for anything else that is raised here.
            raise DeserializationError(str(exc)) from exc
        except Exception as exc:
            faults.internal_error(RUNNER, exc)
        return job

    return deserialize_job_raw


def _arrived(run: _Run, carrier: object, job: Any, tried: object) -> AbstractContextManager[None]:
    name, asked = job[0], job[3]
    function = run.worker.functions.get(name)
    called = getattr(function, "coroutine", None)
    arriving = tasks.arrival(
        carrier,
        runner=RUNNER,
        job=str(name).removeprefix(CRON) if hasattr(function, "next_run") else str(name),
        message=run.id,
        attempt=max([1, *(number for number in (tried, asked) if isinstance(number, int))]),
        is_cron=carrier is None and hasattr(function, "next_run"),  # enqueued by a worker without otelctx
        called=called,
    )
    if mode.current() == "observe":
        block = arrival.watched(arriving.departure, called)
    else:
        block = arrival.entered(arriving.departure, called, ends=True)
    block.__enter__()
    return block


def _serving(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def main(self: Any) -> Any:
        return await (runs.served(original, self) if active.on else original(self))

    return main


PATCHES = (
    Patch("arq.connections", "ArqRedis.enqueue_job", _enqueueing),
    Patch("arq.connections", "serialize_job", _serializing),
    Patch("arq.worker", "Worker.run_cron", _ticking),
    Patch("arq.worker", "Worker.run_job", _running),
    Patch("arq.worker", "deserialize_job_raw", _deserializing),
    Patch("arq.worker", "Worker.main", _serving),
)
