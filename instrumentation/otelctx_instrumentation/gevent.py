"""gevent: greenlets, and the native threads of its pools.

What is patched and why there: a greenlet starts in an empty context of its own, so by itself it loses everything.
``Greenlet.add_spawn_callback`` is gevent's own hook for it: it is called in the spawner's greenlet whenever one is
about to be scheduled, by ``spawn``, ``spawn_later``, ``start``, a pool, a server. (The class is C, and its methods
cannot be replaced.) What the greenlet runs, its ``_run``, is replaced there; gevent deletes it when the greenlet has
ended.
``ThreadPool.spawn`` is where work departs to a native thread; ``apply``, ``map`` and gevent's ``ThreadPoolExecutor`` go
through it.

A process that is monkey-patched starts a greenlet for every thread: there ``Thread.start`` is the hop, and the greenlet
is left as it is.

What escapes: greenlets without gevent's own class (``spawn_raw``, ``greenlet.greenlet``), and what the hub calls: links
of a greenlet, ``rawlink``, timers of the loop. They start in an empty context. A greenlet whose ``gr_context`` has been
set is its author's, and is left as it is. For gevent 20.9 (which has contexts) and newer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otelctx import compare, faults
from otelctx.policy import EXECUTOR, THREAD
from otelctx.snapshot import Snapshot, depart
from otelctx_instrumentation import owners
from otelctx_instrumentation.greenlets import Carried, carried
from otelctx_instrumentation.patching import Active, Hook, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

_STARTS_THREADS: Final = "ThreadPool._adjust_wait"
"""What gevent's thread pool runs in a greenlet: it starts the pool's threads, for whoever comes first."""


def _spawned(greenlet: Any) -> None:
    """A greenlet is about to be scheduled by the current one."""
    try:
        run = greenlet._run
        if isinstance(run, Carried) or _is_a_thread(run) or getattr(run, "__qualname__", None) == _STARTS_THREADS:
            return
        captured = depart()
        if greenlet.gr_context is not None:
            compare.compare_brought(captured, THREAD, greenlet.gr_context)
            return
        owners.spawned(greenlet, captured)
        carrying = carried(run, captured, THREAD)
        if carrying is not run:
            greenlet._run = carrying
    except Exception as exc:
        faults.internal_error("gevent", exc)


def _is_a_thread(run: object) -> bool:
    """Whether a greenlet is what a `threading.Thread` runs on."""
    threading = sys.modules.get("threading")
    thread = getattr(run, "__self__", None)
    return threading is not None and isinstance(thread, threading.Thread) and run == thread._bootstrap


def _spawn(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def spawn(self: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        captured: Snapshot | None = None
        if active.on:
            try:
                captured = depart()
                func = carried(func, captured, EXECUTOR)
            except Exception as exc:
                faults.internal_error("gevent", exc)
        result = original(self, func, *args, **kwargs)
        if captured is not None:
            owners.spawned(result, captured)
        return result

    return spawn


PATCHES = (Patch("gevent.threadpool", "ThreadPool.spawn", _spawn),)


def _hook(gevent: Any) -> None:
    if hasattr(gevent, "Greenlet"):  # else it is somebody's own module of that name
        gevent.Greenlet.add_spawn_callback(_spawned)


def _unhook(gevent: Any) -> None:
    if hasattr(gevent, "Greenlet"):
        gevent.Greenlet.remove_spawn_callback(_spawned)


# Its module `greenlet` gives way to a compiled one of another name while it is imported.
HOOKS = (Hook("gevent", _hook, _unhook),)
