"""APScheduler 3, and so python-telegram-bot's JobQueue. From 3.6 to 3.11: 3.5 is for Pythons before 3.10.

A recurring job is a cron job: each run has a key of its own, no claim, and a root span. A *one-shot* job (its trigger
is a ``DateTrigger``) inherits from whoever added it, without the claim.

What is patched and why there:

* ``executors.base:BaseExecutor.submit_job`` is where every executor gets a job that is due. It is given a job like it,
  whose function arrives: each call of it is a run, also where several missed runs are made up for. The function that
  executors run it with, ``run_job``, stays as it is, since process pools import it by its name.
* ``schedulers.base:BaseScheduler.add_job`` is where a job departs. Whose it is stands in a table beside the scheduler,
  by job store and id, since jobs are pickled into their stores. It goes when the job does (``remove_job``,
  ``remove_all_jobs``, ``remove_jobstore``).
* ``modify_job``, which ``reschedule_job`` goes through: who makes a one-shot job of a recurring one has added it.
* ``BaseScheduler._process_jobs`` is the scheduler at work, on an event loop in the context of the last one who has
  touched it. It works for everybody, without key and span.

What escapes: a job that was put into a persistent store by another process, or before a restart, has nobody who added
it: it runs minted, one-shot or not. So do the oldest ones of more than 10,000 that wait at one scheduler.
"""

from __future__ import annotations

import _thread
import re
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from otelctx import carrier, cron, faults, forks, policy, runs, snapshot, workers
from otelctx.bounded import make_room
from otelctx.departure import Departure
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import SpanContext

RUNNER: Final = "apscheduler"

AT_MOST: Final = 10_000
"""For how many jobs of one scheduler it is remembered who has added them."""

_Place: TypeAlias = tuple[str, str]
"""A job's store and its id there."""


class _Added(NamedTuple):
    """Whose doing a job is."""

    departure: Departure | None
    """As whom it runs; None for a recurring job."""
    cause: SpanContext | None
    """The span in which it was added."""
    at_once: SpanContext | None = None
    """The span in which somebody has asked for its next run."""


_added: WeakKeyDictionary[Any, dict[_Place, _Added]] = WeakKeyDictionary()
_lock = _thread.allocate_lock()
forks.renew_in_child(globals(), "_lock", _thread.allocate_lock)


def _jobs_of(scheduler: Any) -> dict[_Place, _Added]:
    with _lock:
        return _added.setdefault(scheduler, {})


def _note(scheduler: Any, place: _Place, added: _Added) -> None:
    jobs = _jobs_of(scheduler)
    jobs.pop(place, None)
    make_room(jobs, AT_MOST)
    jobs[place] = added


def _is_one_shot(job: Any) -> bool:
    date = sys.modules.get("apscheduler.triggers.date")  # imported with the first trigger of that kind
    return date is not None and isinstance(job.trigger, date.DateTrigger)


def _one_shot(called: object) -> _Added:
    """A job that the current context adds, which runs as that."""
    return _Added(Departure(snapshot.depart_as(policy.DEFERRED), policy.DEFERRED, called=called), cron.cause())


def _name_of(job: Any) -> str:
    """What a job is called: its id, or its name, where its id is one that was made up for it."""
    return str(job.name if _MADE_UP.fullmatch(job.id) else job.id)


_MADE_UP: Final = re.compile("[0-9a-f]{32}")

# What `add_job` takes, after ``self``: func, trigger, args, kwargs, id, name, misfire_grace_time, coalesce,
# max_instances, next_run_time, jobstore, …
_ID: Final = 4
_STORE: Final = 10


def _add_job(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def add_job(self: Any, *args: Any, **kwargs: Any) -> Any:
        place: _Place | None = None
        if active.on:
            try:
                args, kwargs, place = _with_id(args, kwargs)
            except Exception as exc:
                faults.internal_error("apscheduler", exc)
        if place is None:
            return original(self, *args, **kwargs)
        # Re-entrant, and held by whoever runs jobs: none runs before it is noted, or as somebody who cannot add it.
        with self._jobstores_lock:
            before = _jobs_of(self).get(place)
            try:
                _note(self, place, _one_shot(args[0] if args else kwargs.get("func")))
            except Exception as exc:
                faults.internal_error("apscheduler", exc)
            try:
                job = original(self, *args, **kwargs)
            except BaseException:
                _jobs_of(self).pop(place, None)
                if before is not None:
                    _note(self, place, before)
                raise
            try:
                added = _jobs_of(self).get(place)
                if added is not None and not _is_one_shot(job):
                    _note(self, place, added._replace(departure=None))
            except Exception as exc:
                faults.internal_error("apscheduler", exc)
            return job

    return add_job


def _with_id(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], _Place | None]:
    """The arguments of `add_job` with an id in them, made up as `Job` does; and where the job will be."""
    given = args[_ID] if len(args) > _ID else kwargs.get("id")
    if not given:
        from uuid import uuid4

        given = uuid4().hex
        if len(args) > _ID:
            args = (*args[:_ID], given, *args[_ID + 1 :])
        else:
            kwargs = {**kwargs, "id": given}
    store = args[_STORE] if len(args) > _STORE else kwargs.get("jobstore", "default")
    is_right = isinstance(given, str) and isinstance(store, str)  # else the original says what is wrong
    return args, kwargs, (store, given) if is_right else None


def _modify_job(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def modify_job(self: Any, *args: Any, **changes: Any) -> Any:
        if not active.on:
            return original(self, *args, **changes)
        with self._jobstores_lock:
            job = original(self, *args, **changes)
            try:
                if "trigger" in changes or changes.get("next_run_time") is not None:
                    _note_change(self, job)
            except Exception as exc:
                faults.internal_error("apscheduler", exc)
            return job

    return modify_job


def _note_change(scheduler: Any, job: Any) -> None:
    jobs = _jobs_of(scheduler)
    place = (job._jobstore_alias, job.id)
    if place[0] is None:  # not in a store yet, since the scheduler has not started
        place = next((known for known in jobs if known[1] == job.id), ("default", job.id))
    added = jobs.get(place)
    if _is_one_shot(job):
        if added is None or added.departure is None:
            _note(scheduler, place, _one_shot(job.func))
    else:
        _note(scheduler, place, _Added(None, None if added is None else added.cause, cron.cause()))


def _remove_job(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def remove_job(self: Any, *args: Any, **kwargs: Any) -> Any:
        removed = original(self, *args, **kwargs)
        try:
            job_id = args[0] if args else kwargs.get("job_id")
            jobstore = args[1] if len(args) > 1 else kwargs.get("jobstore")
            jobs = _jobs_of(self)
            for place in [known for known in jobs if known[1] == job_id and jobstore in (None, known[0])]:
                # Without a store it was removed from the first one that has it.
                if jobstore is not None or self.get_job(job_id, place[0]) is None:
                    jobs.pop(place, None)
        except Exception as exc:
            faults.internal_error("apscheduler", exc)
        return removed

    return remove_job


def _remove_store(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """``remove_all_jobs(jobstore=None)`` and ``remove_jobstore(alias, …)``: the jobs of one store go, or all."""

    def remove(self: Any, *args: Any, **kwargs: Any) -> Any:
        removed = original(self, *args, **kwargs)
        try:
            store = args[0] if args else kwargs.get("jobstore", kwargs.get("alias"))
            jobs = _jobs_of(self)
            for place in [known for known in jobs if store in (None, known[0])]:
                jobs.pop(place, None)
        except Exception as exc:
            faults.internal_error("apscheduler", exc)
        return removed

    return remove


def _process_jobs(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def process_jobs(self: Any) -> Any:
        return workers.serving(original, self) if active.on else original(self)

    return process_jobs


def _submit_job(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def submit_job(self: Any, job: Any, run_times: Any) -> Any:
        if active.on:
            try:
                job = _arriving(self._scheduler, job)
            except Exception as exc:
                faults.internal_error("apscheduler", exc)
        return original(self, job, run_times)

    return submit_job


def _arriving(scheduler: Any, job: Any) -> Any:
    """A job like `job`, each call of whose function is a run."""
    place, name = (job._jobstore_alias, job.id), _name_of(job)
    jobs = _jobs_of(scheduler)
    added = jobs.get(place)
    departed: Callable[[], Departure]
    departing: Departure | None = None
    if added is not None and added.departure is not None and _is_one_shot(job):
        departing = added.departure.again(policy.DEFERRED)
        departing.name = name
        departed = partial(departing.again, policy.DEFERRED)
    else:
        cause = None if added is None else added.at_once or added.cause
        departed = partial(_tick, name, job.func, cause, time.monotonic())
        if added is not None and added.at_once is not None:
            jobs[place] = added._replace(at_once=None)
    like = _like(job)
    like.func = _each_call(job.func, departed)
    like.otelctx = job, name, departing
    return like


def _tick(name: str, called: object, cause: SpanContext | None, due: float) -> Departure:
    departing = cron.departure(RUNNER, name, called, cause=cause)
    departing.clock = due
    return departing


def _each_call(fn: Callable[..., Any], departed: Callable[[], Departure]) -> Callable[..., Any]:
    import inspect

    # As the executors that run coroutines look at it.
    innermost = fn
    while isinstance(innermost, partial):
        innermost = innermost.func
    return runs.each_call(fn, departed, is_asynchronous=inspect.iscoroutinefunction(innermost))


def _like(job: Any) -> Any:
    like_it = _classes.get(type(job)) or _classes.setdefault(type(job), _class_like(type(job)))
    like = like_it.__new__(like_it)
    for name in type(job).__slots__:
        if name != "__weakref__" and hasattr(job, name):
            setattr(like, name, getattr(job, name))
    return like


_classes: dict[type[Any], Any] = {}


def _class_like(job_class: Any) -> Any:
    class Arriving(job_class):  # type: ignore[misc]
        """A job that is due, on its way to the executor."""

        __slots__ = ("otelctx",)

        def __reduce_ex__(self, protocol: Any) -> Any:
            # To another process goes the job itself, and what it takes to arrive there.
            job, name, departing = self.otelctx
            return _in_process, (job, name, None if departing is None else carrier.packed(departing, policy.DEFERRED))

    return Arriving


def _in_process(job: Any, name: str, packed: tuple[str, carrier.Hop] | None) -> Any:
    """`job`, which has come to this process to be run."""
    if packed is None:
        job.func = _each_call(job.func, partial(_tick, name, job.func, None, time.monotonic()))
    else:
        job.func = carrier.Carried(*packed, job.func)
    return job


PATCHES = (
    Patch("apscheduler.executors.base", "BaseExecutor.submit_job", _submit_job),
    Patch("apscheduler.schedulers.base", "BaseScheduler._process_jobs", _process_jobs),
    Patch("apscheduler.schedulers.base", "BaseScheduler.add_job", _add_job),
    Patch("apscheduler.schedulers.base", "BaseScheduler.modify_job", _modify_job),
    Patch("apscheduler.schedulers.base", "BaseScheduler.remove_job", _remove_job),
    Patch("apscheduler.schedulers.base", "BaseScheduler.remove_all_jobs", _remove_store),
    Patch("apscheduler.schedulers.base", "BaseScheduler.remove_jobstore", _remove_store),
)
