"""A guard against work that leads back into itself.

An alert runs code that is not ours (log handlers, exporters, callbacks), and that code may hop, and mismatch, and
alert. A `Reentry` says whether the calling code is inside such work already.

It lives in a ContextVar, which follows greenlets and tasks where a thread-local does not. A thread or task that starts
inside the work may inherit the context and outlive it, so what is inherited leads to a mark that the work clears as it
ends. A signal handler may raise in any line, between the work and its ``finally`` too: only who works holds the mark,
and a mark that is gone counts as cleared.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from contextvars import Token


class Mark:
    """One run of the work; cleared as it ends."""

    __slots__ = ("__weakref__", "active", "token")

    def __init__(self) -> None:
        self.active = True
        self.token: Token[ref[Mark] | None] | None = None


class Reentry:
    """Around the work: `mark = enter()`, and `leave(mark)` in a `finally`. One object serves all threads."""

    __slots__ = ("_mark",)

    def __init__(self, name: str) -> None:
        self._mark: ContextVar[ref[Mark] | None] = ContextVar(f"otelctx.{name}", default=None)

    def active(self) -> bool:
        """Whether the calling code runs inside the work. Never raises."""
        held = self._mark.get()
        mark = None if held is None else held()
        return mark is not None and mark.active

    def enter(self) -> Mark:
        """Begin the work in this context; returns what `leave` takes, and what nobody else may keep."""
        mark = Mark()
        mark.token = self._mark.set(ref(mark))
        return mark

    def leave(self, mark: Mark) -> None:
        """End the work, in the context of `enter`; also for those who inherited that context and outlive it."""
        mark.active = False
        if mark.token is not None:
            self._mark.reset(mark.token)
