"""Thread pools of ``multiprocessing.pool``.

What is patched and why there: ``apply``, ``map`` and ``starmap`` go through ``apply_async`` and ``_map_async``;
``imap`` and ``imap_unordered`` stand alone. The function is replaced by one that arrives as the call departed, for
each item of a chunk, and so are the result callbacks, which the pool's own thread runs. Only on ``ThreadPool``: what
its parent class ``Pool`` hands to processes has to be pickled.

What escapes: an iterable that ``imap`` consumes in the pool's own thread is run there, as without otelctx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otelctx import arrival, compare, faults
from otelctx.departure import Departure
from otelctx.policy import CALLBACK, EXECUTOR
from otelctx.snapshot import Snapshot, arrive, depart
from otelctx_instrumentation.brought import context_of
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable


class _Departed:
    """What one call took along; emptied when its result callback has run, since results outlive their work."""

    __slots__ = ("departure", "snapshot")

    def __init__(self, captured: Snapshot) -> None:
        self.snapshot: Snapshot | None = captured
        self.departure = Departure(captured, EXECUTOR) if captured.detailed else None


class _Carried:
    """A function that arrives, at each call, as the batch departed."""

    __slots__ = ("__wrapped__", "departed", "kind")

    def __init__(self, fn: Callable[..., Any], departed: _Departed, kind: int) -> None:
        self.__wrapped__ = fn
        self.departed = departed
        self.kind = kind

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        captured, departure = self.departed.snapshot, self.departed.departure
        if self.kind == CALLBACK:
            self.departed.snapshot = self.departed.departure = None
        try:
            if captured is None:
                return self.__wrapped__(*args, **kwargs)
            if departure is not None:
                return arrival.in_full(departure.again(self.kind), self.__wrapped__, args, kwargs)
            return arrive(captured, self.kind, self.__wrapped__, args, kwargs)
        finally:
            del captured, departure, args, kwargs

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


def _carried(fn: Any, departed: _Departed, kind: int) -> Any:
    if not callable(fn) or departed.snapshot is None:
        return fn
    brought = context_of(fn)
    if brought is not None:
        compare.compare_brought(departed.snapshot, kind, brought)
        return fn
    return _Carried(fn, departed, kind)


def _carrying(callbacks: int | None) -> Callable[[Callable[..., Any], Active], Callable[..., Any]]:
    """The replacement of a method that takes a function, and result callbacks besides.

    Callbacks are the positional arguments from `callbacks` (after the function) on, or given by their names.
    """

    def replace(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
        def call(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
            if active.on:
                try:
                    departed = _Departed(depart())
                    func = _carried(func, departed, EXECUTOR)
                    if callbacks is not None:
                        plain, given = args[:callbacks], args[callbacks:]
                        args = (*plain, *(_carried(fn, departed, CALLBACK) for fn in given))
                        named = kwargs.keys() & {"callback", "error_callback"}
                        kwargs |= {name: _carried(kwargs[name], departed, CALLBACK) for name in named}
                except Exception as exc:
                    faults.internal_error("thread pool", exc)
            return original(self, func, *args, **kwargs)

        return call

    return replace


PATCHES = (
    Patch("multiprocessing.pool", "ThreadPool.apply_async", _carrying(2)),
    Patch("multiprocessing.pool", "ThreadPool._map_async", _carrying(3)),
    Patch("multiprocessing.pool", "ThreadPool.imap", _carrying(None)),
    Patch("multiprocessing.pool", "ThreadPool.imap_unordered", _carrying(None)),
)
