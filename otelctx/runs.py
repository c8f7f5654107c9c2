"""A run of somebody's job, and functions each of whose calls is one."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from otelctx import arrival, faults, mode

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from otelctx.departure import Departure

P = ParamSpec("P")
R = TypeVar("R")


class Arrival:
    """One run, as it departed: `run` a function, or enter it as a ``with`` block, once.

    A block is for runners that tell of a run by two calls, in one thread or one greenlet: it changes the context in
    place, and what the work leaves in an application's variable that was absent can then only be cleared, not unset.
    """

    __slots__ = ("_block", "_called", "_is_watched", "departure")

    def __init__(self, departure: Departure, called: object) -> None:
        self.departure = departure
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
            with Arrival(departing, fn):
                return await fn(*args, **kwargs)

        return run_async

    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        departing = depart()
        return fn(*args, **kwargs) if departing is None else Arrival(departing, fn).run(fn, *args, **kwargs)

    return run
