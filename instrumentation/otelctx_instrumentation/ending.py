"""The end of the interpreter: the patches step aside before otelctx loses its names.

When an interpreter ends, its modules are emptied, the one that was imported last first, and finalizers run all the
while. One that hops calls a replacement whose globals are None by then. So the first module to be emptied is this one,
which is imported when all others are, and what it holds turns every patch off: the originals are called as they are.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from otelctx_instrumentation import patching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otelctx_instrumentation.patching import Active


class _Last:
    """Turns the patches off when it goes."""

    __slots__ = ("in_force", "is_the_end")

    def __init__(self, in_force: Callable[[], Iterable[Active]], is_the_end: Callable[[], bool]) -> None:
        self.in_force = in_force
        self.is_the_end = is_the_end

    def __del__(self) -> None:
        if self.is_the_end():
            for active in self.in_force():
                active.on = False


_last = _Last(patching.in_force(), sys.is_finalizing)
