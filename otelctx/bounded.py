"""Tables that forget: what came first goes where there is no room for more."""

from __future__ import annotations

from typing import Any


def make_room(table: dict[Any, Any], at_most: int) -> None:
    """Let go of what was put into `table` first, until fewer than `at_most` entries are left. Thread-safe."""
    while len(table) >= at_most:
        try:
            table.pop(next(iter(table)), None)
        except (RuntimeError, StopIteration):  # another thread has put something in, or has taken the last one out
            continue
