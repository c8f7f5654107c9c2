"""A run of somebody's job, and functions each of whose calls is one."""

from __future__ import annotations

from contextvars import copy_context
from functools import wraps
from types import CoroutineType, coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from otelctx import arrival, faults, mode, workers
from otelctx import snapshot as snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping
    from contextlib import AbstractContextManager
    from contextvars import Context
    from types import TracebackType

    from otelctx.departure import Departure
    from otelctx.snapshot import Snapshot

P = ParamSpec("P")
R = TypeVar("R")


class Arrival:
    """One run, as it departed: `run` a function, await a coroutine function by `run_async`, or enter a block; once.

    A block is for runners that tell of a run by two calls, in one thread or one greenlet: it changes the context in
    place, and what the work leaves in an application's variable that was absent can then only be cleared, not unset.
    """

    __slots__ = ("_block", "_called", "_is_watched", "attempt", "departure")

    def __init__(self, departure: Departure, called: object, attempt: int = 1) -> None:
        self.departure = departure
        self.attempt = attempt
        self._called = called
        self._is_watched = mode.current() == "observe"
        self._block: AbstractContextManager[None] | None = None

    def run(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn` as the message departed; what it returns or raises is passed on."""
        departure = self.departure
        try:
            if self._is_watched:
                return arrival.observed(departure, fn, args, kwargs)
            return arrival.replayed(departure, fn, args, kwargs)
        finally:
            del departure, fn, args, kwargs

    def departs(self) -> Snapshot:
        """What a message departs as that is sent once more from within the run, the current context: a retry.

        In observe a run has the worker's own context, which is nobody's message.
        """
        return self.departure.snapshot if self._is_watched else snapshots.depart()

    async def run_async(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Await ``fn(*args, **kwargs)`` as it departed, in a context of its own; see `awaited`."""
        if self._is_watched:
            with self:
                return await fn(*args, **kwargs)
        result: R = await awaited(self.departure, fn, args, kwargs)
        return result

    def __enter__(self) -> None:
        enter = arrival.watched if self._is_watched else arrival.entered
        self._block = enter(self.departure, self._called)
        self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(kind, exc, traceback)


async def awaited(
    departure: Departure, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Await ``fn(*args, **kwargs)`` as it departed, in every mode, in a context of its own.

    A task may run one coroutine after the other, and what one of them has set could not be unset for the next; nor
    could what whoever made the task has set. Undeclared variables are the task's, as without otelctx.
    """
    context = workers.without_declared(copy_context(), departure.snapshot.cells)

    async def work() -> Any:
        with arrival.entered(departure, fn, ends=True):
            return await fn(*args, **kwargs)

    try:
        return await _within(context, work())
    finally:
        workers.give_back(context)
        del context


def returned(departure: Departure, result: R) -> R:
    """What a run has returned: a coroutine, which a plain function may have made, is that run's, whoever awaits it."""
    if type(result) is not CoroutineType:
        return result
    work: Any = result
    return captured(departure.snapshot, work, departure)  # type: ignore[return-value]


async def captured(snapshot: Snapshot, work: Coroutine[Any, Any, R], run: Departure | None = None) -> R:
    """Await `work` as the identity of `snapshot`, whoever awaits it: in a context of its own, as `awaited` does.

    `run` is not over until `work` is.
    """
    context = workers.without_declared(copy_context(), snapshot.cells)

    async def inside() -> R:
        with arrival.attached(snapshot, whole=True, ends=True):
            return await work

    try:
        return await _within(context, inside())
    finally:
        workers.give_back(context)
        del context


async def served(fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Await ``fn(*args, **kwargs)``, which serves everybody, without key, claim and span; see `workers.serving`."""
    here = copy_context()
    if mode.current() == "observe" or workers.declared.isdisjoint(here):
        return await fn(*args, **kwargs)
    context = workers.without_declared(here)
    try:
        return await _within(context, fn(*args, **kwargs))
    finally:
        workers.give_back(context)
        del here, context


@coroutine
def _within(context: Context, work: Coroutine[Any, Any, R]) -> Generator[Any, Any, R]:
    """Await `work`, each step of it in `context`. Whoever runs it sees what it yields, and it what is thrown in."""
    step: Callable[..., Any] = work.send
    given: Any = None
    while True:
        try:
            yielded = context.run(step, given)
        except StopIteration as over:
            result: R = over.value
            return result
        try:
            step, given = work.send, (yield yielded)
        except GeneratorExit:
            context.run(work.close)
            raise
        except BaseException as exc:
            step, given = work.throw, exc


def each_call(
    fn: Callable[..., Any], departed: Callable[[], Departure | None], *, is_asynchronous: bool
) -> Callable[..., Any]:
    """A function like `fn`, each of whose calls is a run that departed as `departed` then says (None: a plain call).

    It is a coroutine function where `is_asynchronous`. Where `departed` raises, that is contained, and the call plain.
    """

    def depart() -> Departure | None:
        try:
            return departed()
        except Exception as exc:
            faults.internal_error("run", exc)
            return None

    if is_asynchronous:

        @wraps(fn)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            departing = depart()
            if departing is None:
                return await fn(*args, **kwargs)
            return await Arrival(departing, fn).run_async(fn, *args, **kwargs)

        return run_async

    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        departing = depart()
        return fn(*args, **kwargs) if departing is None else Arrival(departing, fn).run(fn, *args, **kwargs)

    return run
