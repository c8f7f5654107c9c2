"""Executors: ``ThreadPoolExecutor.submit`` and ``map``.

What is patched and why there: ``submit`` is where the work departs, in the context of whoever asks for it; ``map``,
``loop.run_in_executor`` and executor subclasses that override ``_adjust_thread_count`` or call ``super().submit`` go
through it. ``map`` itself is patched since ``map(buffersize=)`` (3.14) submits its later items from the *consumer's*
context. Loops are not patched: uvloop's is no ``BaseEventLoop``.

What escapes: a subclass whose ``submit`` never calls ``super().submit``, and executors of other libraries. Executors of
processes and of interpreters run their work where no object of this process can go, and have modules of their own.
"""

from __future__ import annotations

from functools import update_wrapper
from types import FunctionType
from typing import TYPE_CHECKING, Any

from otelctx import arrival, compare, faults, mode
from otelctx.departure import Departure
from otelctx.policy import EXECUTOR
from otelctx.snapshot import Snapshot, arrive, depart
from otelctx_instrumentation import theirs
from otelctx_instrumentation.brought import context_of
from otelctx_instrumentation.owners import cannot_note, note
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otelctx.owners import Owner


class _Item:
    """One call of a ``map``: all of them depart as the ``map`` did, whoever submits them and when."""

    __wrapped__: Callable[..., Any]

    def __init__(self, fn: Callable[..., Any], captured: Snapshot) -> None:
        update_wrapper(self, fn)  # a subclass's `submit` may look at the function's name
        self.snapshot = captured

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


def _submit(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if type(fn) is FunctionType and active.on and fn.__code__ is not theirs.submitted:
            try:
                captured = depart()
            except Exception as exc:
                faults.internal_error("executor", exc)
            else:
                if not captured.detailed:
                    future = original(self, arrive, captured, EXECUTOR, fn, args, kwargs)
                    if captured.owner is not None:
                        try:
                            future._otelctx_owner = captured.owner  # `note`, without what a call costs
                        except Exception as exc:
                            cannot_note(future, exc)
                    return future
        if not active.on:
            return original(self, fn, *args, **kwargs)
        owner, call = _call(fn, args, kwargs)
        future = original(self, *call)
        if owner is not None:
            note(future, owner)
        return future

    return submit


def _call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Owner | None, tuple[Any, ...]]:
    """What to submit for ``fn(*args, **kwargs)``, a function and its positional arguments; and whose it is."""
    try:
        if type(fn) is _Item:
            captured = fn.snapshot
            called = fn = fn.__wrapped__
        else:
            captured = depart()
            called = theirs.unwrap(fn)
            if mode.current() != "observe":
                fn = called
        brought = context_of(called)
        if brought is not None:
            compare.compare_brought(captured, EXECUTOR, brought)
        elif captured.detailed:
            departure = Departure(captured, EXECUTOR, called=called)
            return departure.snapshot.owner, (arrival.in_full, departure, fn, args, kwargs)
        else:
            return captured.owner, (arrive, captured, EXECUTOR, fn, args, kwargs)
    except Exception as exc:
        faults.internal_error("executor", exc)
    return None, (_plainly, fn, args, kwargs)


def _plainly(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    try:
        return fn(*args, **kwargs)
    finally:
        del fn, args, kwargs


def _map(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def map_(self: Any, fn: Callable[..., Any], *iterables: Any, **kwargs: Any) -> Any:
        if active.on:
            try:
                fn = _Item(fn, depart())
            except Exception as exc:
                faults.internal_error("executor", exc)
        return original(self, fn, *iterables, **kwargs)

    return map_


PATCHES = (
    Patch("concurrent.futures.thread", "ThreadPoolExecutor.submit", _submit),
    Patch("concurrent.futures.thread", "ThreadPoolExecutor.map", _map),
)
