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
* ``BaseScheduler._real_add_job`` and ``Job._modify`` are what these do under the scheduler's lock, so that whose a job
  is stands in the table before anybody runs it. Nothing of ours holds that lock while the application's code runs: an
  import of the job's module, a listener.
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
from contextvars import ContextVar
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
_lock = _thread.RLock()  # re-entrant: a signal handler may interrupt the thread that holds it
forks.renew_in_child(globals(), "_lock", _thread.RLock)


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
        adding: _Adding | None = None
        if active.on:
            try:
                args, kwargs, place = _with_id(args, kwargs)
                if place is not None:
                    adding = _Adding(place, _one_shot(args[0] if args else kwargs.get("func")))
            except Exception as exc:
                faults.internal_error("apscheduler", exc)
        if adding is None:
            return original(self, *args, **kwargs)
        # No lock of the scheduler's is held around the original, which may import the job's module. Into a scheduler
        # that runs, the job is put by `_real_add_job`; in one that does not run yet it waits for `start`.
        undo = _note_waiting(self, adding)
        token = _ADDING.set(adding)
        try:
            job = original(self, *args, **kwargs)
        except BaseException:
            undo()
            raise
        finally:
            _ADDING.reset(token)
        if getattr(job, "_jobstore_alias", None) is None:
            adding.note(self, job)
        return job

    return add_job


class _Adding(NamedTuple):
    """A job that is being added."""

    place: _Place
    added: _Added

    def note(self, scheduler: Any, job: Any) -> None:
        """Remember whose `job` is, which has been added. Never raises."""
        try:
            one_shot = self.added if _is_one_shot(job) else self.added._replace(departure=None)
            _note(scheduler, self.place, one_shot)
        except Exception as exc:
            faults.internal_error("apscheduler", exc)


_ADDING: Final[ContextVar[_Adding | None]] = ContextVar("otelctx.apscheduler.adding", default=None)


def _note_waiting(scheduler: Any, adding: _Adding) -> Callable[[], None]:
    """Note what waits for the scheduler to start, which another thread may do at any time; return what undoes it."""
    try:
        if scheduler.running:
            return _nothing
        jobs = _jobs_of(scheduler)
        before = jobs.get(adding.place)
        _note(scheduler, adding.place, adding.added)
    except Exception as exc:
        faults.internal_error("apscheduler", exc)
        return _nothing

    def undo() -> None:
        jobs.pop(adding.place, None)
        if before is not None:
            _note(scheduler, adding.place, before)

    return undo


def _nothing() -> None:
    """Undo nothing."""


def _really_add_job(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def _real_add_job(self: Any, job: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, job, *args, **kwargs)
        adding = _ADDING.get()
        if active.on and adding is not None and adding.place[1] == job.id:
            adding.note(self, job)  # before anybody runs it: the scheduler's lock is held here
        return result

    return _real_add_job


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
        is_noted = active.on and ("trigger" in changes or changes.get("next_run_time") is not None)
        token = _MODIFYING.set([self] if is_noted else [])
        try:
            return original(self, *args, **changes)
        finally:
            _MODIFYING.reset(token)

    return modify_job


_MODIFYING: Final[ContextVar[list[Any] | None]] = ContextVar("otelctx.apscheduler.modifying", default=None)
"""The scheduler one of whose jobs is being modified, until that is noted: its listeners are told later."""


def _modify(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def _modify(self: Any, **changes: Any) -> Any:
        result = original(self, **changes)
        modifying = _MODIFYING.get()
        if modifying:
            try:
                _note_change(modifying.pop(), self)  # before anybody runs it: the scheduler's lock is held here
            except Exception as exc:
                faults.internal_error("apscheduler", exc)
        return result

    return _modify


def _note_change(scheduler: Any, job: Any) -> None:
    jobs = _jobs_of(scheduler)
    place = (job._jobstore_alias, job.id)
    if place[0] is None:  # not in a store yet, since the scheduler has not started
        place = next((known for known in [*jobs] if known[1] == job.id), ("default", job.id))
    added = jobs.get(place)
    if _is_one_shot(job):
        if added is None or added.departure is None:
            _note(scheduler, place, _one_shot(job.func))
    else:
        _note(scheduler, place, _Added(None, None if added is None else added.cause, cron.cause()))


def _remove_job(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def remove_job(self: Any, *args: Any, **kwargs: Any) -> Any:
        noted: dict[_Place, _Added] = {}
        store = args[1] if len(args) > 1 else kwargs.get("jobstore")
        try:
            noted = _noted(self, args[0] if args else kwargs.get("job_id"), store)
        except Exception as exc:
            faults.internal_error("apscheduler", exc)
        removed = original(self, *args, **kwargs)
        try:
            # Without a store it was removed from the first one that has it.
            if store is None and (len(self._jobstores) > 1 or not self.running):
                noted = {place: added for place, added in noted.items() if self.get_job(place[1], place[0]) is None}
            _forget(self, noted)
        except Exception as exc:
            faults.internal_error("apscheduler", exc)
        return removed

    return remove_job


def _noted(scheduler: Any, job_id: Any, store: Any) -> dict[_Place, _Added]:
    """What is remembered of the job `job_id` in `store`, or in whatever store where that is None."""
    jobs = _jobs_of(scheduler)
    if store is not None:
        places: list[_Place] = [(store, job_id)]
    elif scheduler.running:
        places = [(alias, job_id) for alias in [*scheduler._jobstores]]
    else:  # it waits for the start, with stores that may not be there yet
        places = [place for place in [*jobs] if place[1] == job_id]
    return {place: jobs[place] for place in places if place in jobs}


def _forget(scheduler: Any, noted: dict[_Place, _Added]) -> None:
    """Forget what was `noted` of jobs that are gone; whatever was added by the same name since, stays."""
    jobs = _jobs_of(scheduler)
    with scheduler._jobstores_lock:
        for place, added in noted.items():
            if jobs.get(place) is added:
                del jobs[place]


def _remove_store(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """``remove_all_jobs(jobstore=None)`` and ``remove_jobstore(alias, …)``: the jobs of one store go, or all."""

    def remove(self: Any, *args: Any, **kwargs: Any) -> Any:
        noted: dict[_Place, _Added] = {}
        try:
            store = args[0] if args else kwargs.get("jobstore", kwargs.get("alias"))
            noted = {place: added for place, added in _jobs_of(self).copy().items() if store in (None, place[0])}
        except Exception as exc:
            faults.internal_error("apscheduler", exc)
        removed = original(self, *args, **kwargs)
        try:
            _forget(self, noted)
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
    return runs.each_call(fn, departed, is_asynchronous=_is_coroutine_function(fn))


def _is_coroutine_function(fn: Callable[..., Any]) -> bool:
    """Whether `fn` is one for the executors that run coroutines, which go by asyncio's mark where there is one."""
    util = sys.modules["apscheduler.util"]
    known: Callable[[object], bool] | None = getattr(util, "iscoroutinefunction_partial", None)
    if known is None:  # the oldest versions
        import asyncio
        import inspect

        known = inspect.iscoroutinefunction if sys.version_info >= (3, 14) else asyncio.iscoroutinefunction
        while isinstance(fn, partial):
            fn = fn.func
    return known(fn)


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
    Patch("apscheduler.schedulers.base", "BaseScheduler._real_add_job", _really_add_job),
    Patch("apscheduler.schedulers.base", "BaseScheduler.modify_job", _modify_job),
    Patch("apscheduler.job", "Job._modify", _modify),
    Patch("apscheduler.schedulers.base", "BaseScheduler.remove_job", _remove_job),
    Patch("apscheduler.schedulers.base", "BaseScheduler.remove_all_jobs", _remove_store),
    Patch("apscheduler.schedulers.base", "BaseScheduler.remove_jobstore", _remove_store),
)
