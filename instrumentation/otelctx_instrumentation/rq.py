"""RQ 1.16 to 3.0: jobs arrive as they were enqueued, cron's ticks are cron runs.

Where a job departs: `Job.to_dict`, by which every way to enqueue, schedule or defer one writes it to Redis. Our field
is one of the job's hash, beside RQ's own; ``job.meta`` is the application's. A job that was read from Redis keeps what
it was enqueued with, whoever writes it again (the scheduler, a worker that requeues it or enqueues what depended on
it); one that the application enqueues by ``Queue.enqueue_job`` departs anew, and so does a *retry* (`Job.retry` and a
returned ``Retry``), with its message's key. Ticks are known by ``CronJob.enqueue``.

Where a job arrives: ``perform_job`` of the workers (fork, spawn and simple alike), which covers its callbacks, and what
depends on it. Callbacks of a job whose process is gone, which the worker itself calls, arrive as the job too. A queue
that is not asynchronous runs its jobs in the caller, who is who they are.

A worker serves everybody, so it works in a context without a key (`Worker.work`), whoever starts it.

What escapes: rq-scheduler, whose jobs are enqueued by a process of nobody's, and so have a fresh key each time.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otelctx import faults, flow, mode, policy, tasks, workers
from otelctx.interruption import pass_on
from otelctx.keys import MISSING
from otelctx.mismatch import MismatchError
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from otelctx.runs import Arrival
    from otelctx.snapshot import Snapshot

RUNNER: Final = "rq"

NOTE: Final = "_otelctx"
"""The attribute in which a job has what it was enqueued with; None where it brought nothing."""


class _Run(NamedTuple):
    """The job that the current context runs."""

    id: str
    attempt: int
    arrived: Snapshot


_RUN: Final[ContextVar[_Run | None]] = ContextVar("otelctx.rq.run", default=None)
_TICK: Final[ContextVar[str | None]] = ContextVar("otelctx.rq.tick", default=None)
"""The cron job that is being enqueued."""


def _writing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def to_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        said = original(self, *args, **kwargs)
        if active.on:
            try:
                carrier = vars(self).get(NOTE, MISSING)
                if carrier is MISSING:
                    carrier = vars(self)[NOTE] = _departing(self)
                if carrier:
                    said[tasks.NAME] = carrier
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        return said

    return to_dict


def _departing(job: Any) -> str:
    tick = _TICK.get()
    if tick is not None:
        return tasks.depart(policy.CRON, message=job.id, runner=RUNNER, job=tick)
    # A str enum, whose own text differs between versions.
    is_deferred = "scheduled" in (job._status, getattr(job._status, "value", None))
    return tasks.depart(policy.DEFERRED if is_deferred else policy.TASK, message=job.id)


def _reading(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def restore(self: Any, raw_data: Any) -> Any:
        result = original(self, raw_data)
        if active.on:
            try:
                carrier = raw_data.get(tasks.NAME.encode(), raw_data.get(tasks.NAME))
                vars(self)[NOTE] = carrier.decode("ascii", "replace") if isinstance(carrier, bytes) else carrier
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        return result

    return restore


def _enqueueing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def enqueue_job(self: Any, job: Any, *args: Any, **kwargs: Any) -> Any:
        if active.on:
            vars(job).pop(NOTE, None)
        return original(self, job, *args, **kwargs)

    return enqueue_job


def _retrying(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def retry(self: Any, *args: Any, **kwargs: Any) -> Any:
        if active.on:
            try:
                run = _RUN.get()
                if run is None or run.id != self.id:  # its process is gone, and the worker itself sends it once more
                    arriving = _arrival(self, is_told=True)
                    run = _Run(self.id, arriving.attempt, arriving.departure.snapshot)
                # RQ counts attempts down from a number that it forgets, or not at all.
                again = run.attempt + 1
                vars(self)[NOTE] = run.arrived.run(tasks.depart, policy.RETRY, message=self.id, attempt=again)
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        return original(self, *args, **kwargs)

    return retry


def _ticking(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def enqueue(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not active.on:
            return original(self, *args, **kwargs)
        name = getattr(self, "name", None) or getattr(self, "func_name", None)
        name = name or getattr(getattr(self, "func", None), "__name__", "")
        token = _TICK.set(str(name))
        try:
            return original(self, *args, **kwargs)
        finally:
            _TICK.reset(token)

    return enqueue


def _arrival(job: Any, *, is_told: bool = False) -> Arrival:
    if flow.registry.unresolved():
        # RQ imports a job's module when it runs it: what the application declares may be there only then.
        try:
            job.func  # noqa: B018
        except (Exception, SystemExit):  # RQ will see it too, and say so
            pass
    retries = getattr(job, "number_of_retries", None)  # since 2.0, of those that a job asks for by what it returns
    return tasks.arrival(
        vars(job).get(NOTE),
        runner=RUNNER,
        job=_name_of(job),
        message=job.id,
        attempt=retries + 1 if isinstance(retries, int) else 1,
        is_told=is_told,
    )


def _name_of(job: Any) -> str:
    try:
        return str(job.func_name)
    except Exception as exc:  # its data cannot be read: RQ says so when it runs it
        pass_on(exc)
        return "job"


def _performing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def perform_job(self: Any, job: Any, *args: Any, **kwargs: Any) -> Any:
        arriving: Arrival | None = None
        if active.on:
            try:
                arriving = _arrival(job)
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        if arriving is None:
            return original(self, job, *args, **kwargs)

        has_begun = False

        def perform() -> Any:
            nonlocal has_begun
            has_begun = True
            token = _RUN.set(_Run(job.id, arriving.attempt, arriving.departs()))
            try:
                return original(self, job, *args, **kwargs)
            finally:
                _RUN.reset(token)

        try:
            return arriving.run(perform)
        except MismatchError as exc:
            if has_begun:
                raise
            return _refused(exc, original, self, job, *args, **kwargs)

    return perform_job


def _refused(exc: MismatchError, original: Callable[..., Any], worker: Any, job: Any, *args: Any, **kwargs: Any) -> Any:
    """Let `job` fail as one does that has raised `exc`: its worker would end."""

    def perform() -> Any:
        raise exc

    vars(job)["perform"] = perform
    try:
        return original(worker, job, *args, **kwargs)
    finally:
        vars(job).pop("perform", None)


def _calling_back(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """The replacement of what calls a callback, which the job has brought along: it runs as the job has arrived.

    Also in the worker itself, where the job's process is gone.
    """

    def call(job: Any, *args: Any, **kwargs: Any) -> Any:
        arrived: Snapshot | None = None
        if active.on and mode.current() != "observe":
            try:
                run = _RUN.get()
                if run is not None and run.id == job.id:
                    arrived = run.arrived
                else:
                    arrived = _arrival(job, is_told=True).departure.snapshot
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        if arrived is None:
            return original(job, *args, **kwargs)
        return arrived.run(original, job, *args, **kwargs)

    return call


def _working(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def work(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not active.on:
            return original(self, *args, **kwargs)
        return workers.serving(original, self, *args, **kwargs)

    return work


PATCHES = (
    Patch("rq.job", "Job.to_dict", _writing),
    Patch("rq.job", "Job.restore", _reading),
    Patch("rq.job", "Job.retry", _retrying),
    Patch("rq.job", "Job._handle_retry_result", _retrying),
    Patch("rq.job", "Job.execute_success_callback", _calling_back),
    Patch("rq.job", "Job.execute_failure_callback", _calling_back),
    Patch("rq.job", "Job.execute_stopped_callback", _calling_back),
    # Newer ones are functions, known to whoever calls them by a name of its own.
    Patch("rq.worker.base", "execute_success_callback", _calling_back),
    Patch("rq.worker.base", "execute_failure_callback", _calling_back),
    Patch("rq.worker.worker_classes", "execute_stopped_callback", _calling_back),
    Patch("rq.registry", "execute_failure_callback", _calling_back),
    Patch("rq.queue", "Queue.enqueue_job", _enqueueing),
    Patch("rq.cron", "CronJob.enqueue", _ticking),
    # Up to 2.5 it is the one class's, later the other's.
    Patch("rq.worker", "Worker.perform_job", _performing, is_own=True),
    Patch("rq.worker", "BaseWorker.perform_job", _performing, is_own=True),
    Patch("rq.worker", "BaseWorker.work", _working),
)
