"""How often one alert is repeated: at most so many times a minute for one key, reason and place."""

from __future__ import annotations

import time
from _thread import RLock  # re-entrant: a signal handler may interrupt the thread that holds it
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

WINDOW: Final = 60.0
"""Seconds that the limit is for."""

PLACES: Final = 1024
"""How many places are remembered at once; past that, the one whose window began longest ago is forgotten."""


class Verdict(NamedTuple):
    """`deliver`: whether this alert is delivered; `held_back`: then, how many like it were not since the last one."""

    deliver: bool
    held_back: int


class _Window:
    __slots__ = ("began", "delivered", "held")

    def __init__(self, began: float) -> None:
        self.began, self.delivered, self.held = began, 0, 0


_HOLD: Final = Verdict(False, 0)


class AlertRate:
    """Counts alerts by place, in windows that begin with an alert and last a minute.

    `per_minute` alerts of each window are delivered (0: none) and the rest is held back; how many these were is told
    to the next that is delivered. Memory is bounded by `PLACES`. Thread-safe, and usable in a forked child, which
    starts anew: what its parent held back is the parent's to tell.

    Args:
        per_minute: how many alerts of one place are delivered in a minute.
        clock: seconds that never go back.
    """

    # No `__slots__`: eventlet's monkey_patch finds locks in an object's `__dict__` only, and complains of any other.

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Start anew, with a new lock: in a forked child the old one may be held by a thread that is gone."""
        self._lock = RLock()
        self._windows: dict[Hashable, _Window] = {}

    def ask(self, place: Hashable) -> Verdict:
        """Count an alert of `place` and say whether it is delivered. Raises nothing for a hashable `place`."""
        now = self._clock()
        with self._lock:
            window = self._current(place, now)
            if window.delivered >= self._per_minute:
                window.held += 1
                return _HOLD
            window.delivered += 1
            held, window.held = window.held, 0
            return Verdict(True, held)

    def hold(self, place: Hashable) -> None:
        """Count an alert of `place` as held back, whatever its rate."""
        now = self._clock()
        with self._lock:
            self._current(place, now).held += 1

    def _current(self, place: Hashable, now: float) -> _Window:
        window = self._windows.get(place)
        if window is not None and now - window.began < WINDOW:
            return window
        fresh = _Window(now)
        if window is not None:
            fresh.held = window.held
            del self._windows[place]  # to be the youngest again: a dict drops from its front what was put in first
        elif len(self._windows) >= PLACES:
            del self._windows[next(iter(self._windows))]
        self._windows[place] = fresh
        return fresh

    def __len__(self) -> int:
        """How many places are remembered."""
        return len(self._windows)
