"""Executors of interpreters: ``InterpreterPoolExecutor.submit`` and ``map`` (3.14 and newer).

What is patched and why there: as for ``ThreadPoolExecutor``, whose methods it inherits; but its work runs in another
interpreter, where no object of this one can go. What is sent is a text (`otelctx.carrier`), the function and its
arguments as they are, and a function that asks nothing of the interpreter that it comes to: where otelctx cannot be
imported there, the work runs plainly. ``map`` departs as a whole, whoever submits its items and when (``buffersize=``).

Each interpreter is on or off by itself: on where ``OTELCTX_ENABLED`` says so, since ``.pth`` lines run in each of
them. Where it is off, the keys arrive all the same.

What escapes: ``Interpreter.call``, ``call_in_thread`` and ``exec``. An argument that cannot be sent fails with the same
exception as without otelctx, whose text shows all that was to be sent: that there is something of otelctx's, too.
"""

from __future__ import annotations

from functools import update_wrapper
from typing import TYPE_CHECKING, Any

from otelctx import carrier, faults
from otelctx.policy import EXECUTOR
from otelctx.snapshot import Snapshot, depart
from otelctx_instrumentation.owners import note
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from otelctx.owners import Owner


def _without_globals() -> Callable[..., Any]:
    def run(sealed: memoryview, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A local function, so that it is sent by its code and not by its name, and has no globals there.
        try:
            from otelctx.carrier import arrive_sealed
        except Exception:
            return fn(*args, **kwargs)
        return arrive_sealed(sealed, fn, args, kwargs)

    return run


_run = _without_globals()


class _Item:
    """What a ``map`` submits in place of its function: all items depart as the ``map`` did."""

    __wrapped__: Callable[..., Any]

    def __init__(self, fn: Callable[..., Any]) -> None:
        update_wrapper(self, fn)  # a subclass's `submit` may look at the function's name
        self.departed = _departing(fn)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


def _departing(fn: Callable[..., Any]) -> tuple[memoryview, Owner | None]:
    departing = carrier.departing(depart(), EXECUTOR, fn)
    owner = (departing if isinstance(departing, Snapshot) else departing.snapshot).owner
    return carrier.sealed(*carrier.packed(departing, EXECUTOR)), owner


def _of_standard_library(method: Callable[..., Any]) -> Callable[..., Any]:
    # It is inherited from ThreadPoolExecutor, which is patched by then: what wraps the method there sends objects.
    while (inner := getattr(method, "__wrapped__", None)) is not None:
        method = inner
    return method


def _submit(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    plain = _of_standard_library(original)

    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        departed: tuple[memoryview, Owner | None] | None = None
        if isinstance(fn, _Item):
            departed, fn = fn.departed, fn.__wrapped__
        elif active.on and callable(fn):
            try:
                departed = _departing(fn)
            except Exception as exc:
                faults.internal_error("executor", exc)
        if departed is None:
            return plain(self, fn, *args, **kwargs)
        sealed, owner = departed
        future = plain(self, _run, sealed, fn, args, kwargs)
        if owner is not None:
            note(future, owner)
        return future

    return submit


def _map(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    plain = _of_standard_library(original)

    def map_(self: Any, fn: Callable[..., Any], *iterables: Any, **kwargs: Any) -> Any:
        if active.on and callable(fn):
            try:
                fn = _Item(fn)
            except Exception as exc:
                faults.internal_error("executor", exc)
        return plain(self, fn, *iterables, **kwargs)

    return map_


PATCHES = (
    Patch("concurrent.futures.interpreter", "InterpreterPoolExecutor.submit", _submit),
    Patch("concurrent.futures.interpreter", "InterpreterPoolExecutor.map", _map),
)
