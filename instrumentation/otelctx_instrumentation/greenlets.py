"""What gevent's and eventlet's greenlets have in common: work that departed, and arrives once, as a thread's does.

Nothing is patched here. A greenlet has a context of its own, an empty one, which greenlet switches along with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otelctx import arrival, compare, metrics
from otelctx.departure import Departure
from otelctx.policy import EXECUTOR, NAMES, THREAD
from otelctx.snapshot import Snapshot, arrive
from otelctx_instrumentation.brought import context_of

if TYPE_CHECKING:
    from collections.abc import Callable

_nothing = metrics.hop_counter(NAMES[THREAD], "empty")


class Carried:
    """A function that arrives as it departed when it is called; it lets go of what it carried at entry."""

    __slots__ = ("__wrapped__", "carried", "kind")

    def __init__(self, fn: Callable[..., Any], carried: Snapshot | Departure, kind: int) -> None:
        self.__wrapped__: Callable[..., Any] = fn
        self.carried: Snapshot | Departure | None = carried
        self.kind = kind

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Arrive, and run."""
        carried, self.carried = self.carried, None
        try:
            if isinstance(carried, Snapshot):
                return arrive(carried, self.kind, self.__wrapped__, args, kwargs)
            if carried is not None:
                return arrival.in_full(carried, self.__wrapped__, args, kwargs)
            return self.__wrapped__(*args, **kwargs)
        finally:
            del carried, args, kwargs

    def __getattr__(self, name: str) -> Any:
        # A greenlet is named by what it runs.
        return getattr(self.__wrapped__, name)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


def carried(fn: Any, captured: Snapshot, kind: int) -> Any:
    """What to run in place of `fn`, which departs as `captured`: `fn` itself where there is nothing to carry."""
    if not callable(fn) or isinstance(fn, Carried):
        return fn
    brought = context_of(fn)
    if brought is not None:
        compare.compare_brought(captured, kind, brought)
        return fn
    if captured.detailed:
        return Carried(fn, Departure(captured, kind, called=fn), kind)
    if not captured.size and kind != EXECUTOR:  # a greenlet starts empty; a pool's thread may not be
        _nothing()
        return fn
    return Carried(fn, captured, kind)
