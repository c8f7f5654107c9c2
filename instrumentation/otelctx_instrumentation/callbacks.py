"""Done-callbacks: ``concurrent.futures.Future.add_done_callback``.

What is patched and why there: a callback runs after the task's own context is gone, in the worker that finished the
future (or in whatever thread resolves it), so it departs where it is *added*. On a future that is done already it
runs at once, in the adder's own context: that is no hop.

What escapes: asyncio's futures keep the adder's context by themselves and are not touched, nor is asyncio's own
plumbing (``_call_set_state`` and friends), which would make three hops of one ``run_in_executor``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from otelctx import arrival, compare, faults, place
from otelctx.departure import Departure
from otelctx.policy import CALLBACK
from otelctx.snapshot import Snapshot, arrive, depart
from otelctx_instrumentation.brought import context_of
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable


class _Callback:
    """A callback that departed.

    It lets go of what it carried when it has run: futures keep their callbacks for as long as they live.
    """

    __slots__ = ("__wrapped__", "carried")

    def __init__(self, fn: Callable[[Any], Any], carried: Snapshot | Departure) -> None:
        self.__wrapped__ = fn
        self.carried: Snapshot | Departure | None = carried

    def __call__(self, future: Any, is_the_end: Callable[[], bool] = sys.is_finalizing) -> Any:
        carried, self.carried = self.carried, None
        try:
            if is_the_end():  # a finalizer resolves the future, and what `arrive` needs may be gone
                return self.__wrapped__(future)
            if isinstance(carried, Snapshot):
                return arrive(carried, CALLBACK, self.__wrapped__, (future,), {})
            if carried is not None:
                return arrival.in_full(carried, self.__wrapped__, (future,), {})
            return self.__wrapped__(future)
        finally:
            del carried, future

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


def _is_plumbing(fn: object) -> bool:
    module = place.attribute(fn, "__module__")
    return isinstance(module, str) and module.startswith("asyncio.")


def _add_done_callback(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def add_done_callback(self: Any, fn: Callable[[Any], Any]) -> Any:
        if active.on and callable(fn):
            try:
                if self._state in ("PENDING", "RUNNING", "CANCELLED") and not _is_plumbing(fn):
                    fn = _departing(fn)
            except Exception as exc:
                faults.internal_error("callback", exc)
        return original(self, fn)

    return add_done_callback


def _departing(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    captured = depart()
    brought = context_of(fn)
    if brought is not None:
        compare.compare_brought(captured, CALLBACK, brought)
        return fn
    return _Callback(fn, Departure(captured, CALLBACK) if captured.detailed else captured)


PATCHES = (Patch("concurrent.futures._base", "Future.add_done_callback", _add_done_callback),)
