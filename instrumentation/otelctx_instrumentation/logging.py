"""Logging through a queue: ``logging.handlers.QueueHandler.enqueue`` and ``QueueListener.handle``.

A record that a `QueueHandler` takes is handled later, in the thread of a `QueueListener` that serves everybody. What is
patched and why there: in ``enqueue`` the record departs, as the very object that goes into the queue; in ``handle`` it
arrives, so that the listener's filters, formatters and handlers (OpenTelemetry's `LoggingHandler` for one) see the
session, the span and the baggage of whoever logged. The queue itself is not touched and need not be declared.

The record carries nothing, since formatters write out what they find on it: its snapshot lies beside it, until it
has been handled. There is no span for it, and nothing is compared in ``observe``.

What escapes: a record that crosses to another process, one that ``prepare`` makes a string or a dictionary of, a
subclass's ``enqueue`` or ``handle`` that does not call the original.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otelctx import faults, mode
from otelctx.policy import QUEUE
from otelctx.snapshot import Snapshot, arrive, depart, for_kind
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

_beside: Final[WeakKeyDictionary[Any, Snapshot]] = WeakKeyDictionary()


def _enqueue(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def enqueue(self: Any, record: Any) -> Any:
        if active.on and mode.current() != "observe":
            try:
                captured = depart()
                _beside[record] = for_kind(captured, QUEUE) if captured.detailed else captured
            except TypeError:  # a string, a dictionary
                pass
            except Exception as exc:
                faults.internal_error("logging", exc)
        return original(self, record)

    return enqueue


def _handle(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def handle(self: Any, record: Any) -> Any:
        departed: Snapshot | None = None
        if active.on:
            try:
                departed = _beside.pop(record, None)
            except TypeError:
                pass
        if departed is None:
            return original(self, record)
        return arrive(departed, QUEUE, original, (self, record), {})

    return handle


PATCHES = (
    Patch("logging.handlers", "QueueHandler.enqueue", _enqueue),
    Patch("logging.handlers", "QueueListener.handle", _handle),
)
