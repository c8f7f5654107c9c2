"""Exact counts by label, for paths where even a lock costs too much."""

from __future__ import annotations

from _thread import RLock  # re-entrant: a signal handler may interrupt the thread that holds it
from itertools import count
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Label = TypeVar("Label", bound="Hashable")


class Ticks(Generic[Label]):
    """Counts by label. To count is one call of a C function that takes no lock and loses nothing between threads.

    An `itertools.count` tells its number only as it counts on, so a read consumes a tick, and remembers that it did.
    """

    # No `__slots__`: eventlet's monkey_patch finds locks in an object's `__dict__` only, and complains of any other.

    def __init__(self) -> None:
        self._ticks: dict[Label, Callable[[], int]] = {}
        self._reads: dict[Label, int] = {}
        self.renew_lock()

    def counter(self, label: Label) -> Callable[[], int]:
        """Get the function that counts one more of `label`; always the same one. What it returns is no count."""
        tick = self._ticks.get(label)
        # setdefault: of two threads that come first at once, both get the same counter.
        return tick if tick is not None else self._ticks.setdefault(label, count().__next__)

    def counts(self) -> dict[Label, int]:
        """How often each label was counted, also those with none yet. Thread-safe; does not disturb those who count."""
        counts = {}
        with self._lock:
            for label, tick in list(self._ticks.items()):
                reads = self._reads.get(label, 0)
                counts[label] = tick() - reads
                self._reads[label] = reads + 1
        return counts

    def renew_lock(self) -> None:
        """In a forked child: the lock may be held by a thread that is gone."""
        self._lock = RLock()
