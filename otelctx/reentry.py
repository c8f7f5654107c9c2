"""A guard against work that leads back into itself.

An alert runs code that is not ours (log handlers, exporters, callbacks), and that code may hop, and mismatch, and
alert. A `Reentry` says whether the calling code is inside such work already.

It lives in a ContextVar, which follows greenlets and tasks where a thread-local does not. A thread or task that starts
inside the work may inherit the context and outlive it, so what is inherited is a mark that the work clears as it ends.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextvars import Token


class Mark:
    """One run of the work; cleared as it ends."""

    __slots__ = ("active",)

    def __init__(self) -> None:
        self.active = True


class Reentry:
    """Around the work: `token = enter()`, and `leave(token)` in a `finally`. One object serves all threads."""

    __slots__ = ("_mark",)

    def __init__(self, name: str) -> None:
        self._mark: ContextVar[Mark | None] = ContextVar(f"otelctx.{name}", default=None)

    def active(self) -> bool:
        """Whether the calling code runs inside the work. Never raises."""
        mark = self._mark.get()
        return mark is not None and mark.active

    def enter(self) -> Token[Mark | None]:
        """Begin the work in this context; returns what `leave` takes."""
        return self._mark.set(Mark())

    def leave(self, token: Token[Mark | None]) -> None:
        """End the work, in the context of `enter`; also for those who inherited that context and outlive it."""
        mark = self._mark.get()
        if mark is not None:
            mark.active = False
        self._mark.reset(token)
