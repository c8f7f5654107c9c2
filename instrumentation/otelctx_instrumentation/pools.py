"""Pools of ``multiprocessing.pool``: ``Pool`` and ``ThreadPool``.

What is patched and why there: ``apply``, ``map`` and ``starmap`` go through ``apply_async`` and ``_map_async``;
``imap`` and ``imap_unordered`` stand alone. The function is replaced by one that arrives as the call departed, for
each item of a chunk, and so are the result callbacks, which the pool's own thread runs. ``Pool`` sends its function to
processes: what is sent then pickles where the function does (`otelctx.carrier`).

What escapes: an iterable that ``imap`` consumes in the pool's own thread is run there, as without otelctx. Of a
``Pool``, what `otelctx_instrumentation.processes` says of processes that may not be able to import otelctx.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from otelctx import arrival, carrier, compare, faults
from otelctx.carrier import Carried
from otelctx.departure import Departure
from otelctx.policy import CALLBACK, EXECUTOR, PROCESS
from otelctx.snapshot import Snapshot, arrive, depart
from otelctx_instrumentation.brought import context_of
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable


class _Departed:
    """What one call took along; emptied when its result callback has run, since results outlive their work."""

    __slots__ = ("can_arrive", "departure", "snapshot")

    def __init__(self, captured: Snapshot, kind: int, pool: Any) -> None:
        self.can_arrive = kind == EXECUTOR or carrier.can_arrive(pool._ctx.get_start_method())
        self.snapshot: Snapshot | None = captured
        self.departure = Departure(captured, kind) if captured.detailed else None


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


def _sent(fn: Any, departed: _Departed, kind: int) -> Any:
    """What a pool of processes is given for `fn`."""
    if not callable(fn) or departed.snapshot is None or context_of(fn) is not None or not departed.can_arrive:
        return fn
    if departed.departure is not None:
        departed.departure.called = fn
    return Carried(*carrier.packed(departed.departure or departed.snapshot, kind), fn)


def _carrying(callbacks: int | None, *, sent: bool) -> Callable[[Callable[..., Any], Active], Callable[..., Any]]:
    """The replacement of a method that takes a function, and result callbacks besides.

    Callbacks are the positional arguments from `callbacks` (after the function) on, or given by their names. `sent`:
    the function goes to a process.
    """
    kind, carry = (PROCESS, _sent) if sent else (EXECUTOR, _carried)

    def replace(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
        def call(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
            if active.on and isinstance(self, sys.modules["multiprocessing.pool"].ThreadPool) is not sent:
                try:
                    departed = _Departed(depart(), kind, self)
                    func = carry(func, departed, kind)
                    if callbacks is not None:
                        plain, given = args[:callbacks], args[callbacks:]
                        args = (*plain, *(_carried(fn, departed, CALLBACK) for fn in given))
                        named = kwargs.keys() & {"callback", "error_callback"}
                        kwargs |= {name: _carried(kwargs[name], departed, CALLBACK) for name in named}
                except Exception as exc:
                    faults.internal_error("pool", exc)
            return original(self, func, *args, **kwargs)

        return call

    return replace


PATCHES = (
    # ThreadPool first: its originals are then `Pool`'s own.
    Patch("multiprocessing.pool", "ThreadPool.apply_async", _carrying(2, sent=False)),
    Patch("multiprocessing.pool", "ThreadPool._map_async", _carrying(3, sent=False)),
    Patch("multiprocessing.pool", "ThreadPool.imap", _carrying(None, sent=False)),
    Patch("multiprocessing.pool", "ThreadPool.imap_unordered", _carrying(None, sent=False)),
    Patch("multiprocessing.pool", "Pool.apply_async", _carrying(2, sent=True)),
    Patch("multiprocessing.pool", "Pool._map_async", _carrying(3, sent=True)),
    Patch("multiprocessing.pool", "Pool.imap", _carrying(None, sent=True)),
    Patch("multiprocessing.pool", "Pool.imap_unordered", _carrying(None, sent=True)),
)
