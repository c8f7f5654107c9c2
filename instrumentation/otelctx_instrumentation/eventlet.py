"""eventlet: green threads, and the native threads of ``tpool``.

What is patched and why there: a green thread starts in an empty context of its own, so by itself it loses everything.
``GreenThread.__init__`` is called in the spawner's, by ``spawn``, ``spawn_after``, ``spawn_after_local`` and pools, and
``GreenThread.main`` with the function, in the green thread. ``spawn_n`` has no such class; it goes through
``_spawn_n``. ``tpool.execute`` hands a function to a native thread.

A process that is monkey-patched starts a green thread for every thread: there ``Thread.start`` is the hop, and the
green thread is left as it is.

What escapes: ``greenlet.greenlet`` by hand, ``GreenThread.link``, timers of the hub. A green thread whose
``gr_context`` has been set is its author's. For eventlet 0.33 and newer, with greenlet 1.0 (which has contexts).
"""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from otelctx import faults
from otelctx.policy import EXECUTOR, THREAD
from otelctx.snapshot import Snapshot, depart
from otelctx_instrumentation import owners
from otelctx_instrumentation.greenlets import carried
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

_DEPARTED: Final = "_otelctx_departed"

_THREADS: Final = "eventlet.green.thread"


def _is_a_thread(fn: object) -> bool:
    """Whether a green thread is what a `threading.Thread` runs on, in a process that is monkey-patched."""
    return getattr(fn, "__module__", None) == _THREADS


def _init(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if active.on:
            try:
                setattr(self, _DEPARTED, depart())
            except Exception as exc:
                faults.internal_error("eventlet", exc)

    return __init__


def _main(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def main(self: Any, function: Any, args: Any, kwargs: Any) -> Any:
        captured: Snapshot | None = vars(self).pop(_DEPARTED, None)
        if active.on and captured is not None:
            try:
                # Not empty: the author has set `gr_context`.
                if not _is_a_thread(function) and not copy_context():
                    owners.spawned(self, captured)
                    function = carried(function, captured, THREAD)
            except Exception as exc:
                faults.internal_error("eventlet", exc)
        del captured
        return original(self, function, args, kwargs)

    return main


def _spawn_n(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def spawn_n(seconds: Any, func: Any, args: Any, kwargs: Any) -> Any:
        if active.on and not _is_a_thread(func):
            try:
                func = carried(func, depart(), THREAD)
            except Exception as exc:
                faults.internal_error("eventlet", exc)
        return original(seconds, func, args, kwargs)

    return spawn_n


def _execute(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def execute(meth: Any, *args: Any, **kwargs: Any) -> Any:
        if active.on:
            try:
                meth = carried(meth, depart(), EXECUTOR)
            except Exception as exc:
                faults.internal_error("eventlet", exc)
        return original(meth, *args, **kwargs)

    return execute


PATCHES = (
    Patch("eventlet.greenthread", "GreenThread.__init__", _init),
    Patch("eventlet.greenthread", "GreenThread.main", _main),
    Patch("eventlet.greenthread", "_spawn_n", _spawn_n),
    Patch("eventlet.tpool", "execute", _execute),
)
