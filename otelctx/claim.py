"""The claim: is this code the worker that a dispatcher gave a task to?

The state is one of three: *held* (by the process's environment, or by grant), *none*, and *shed*. A shed claim is a
tombstone: it beats the environment, travels through every further hop, and ends only by an explicit grant.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Final, Literal, TypeAlias

from otelctx.redaction import shown

State: TypeAlias = Literal["held", "none", "shed"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a dispatcher granted: a task, to whom, and at which attempt."""

    task_id: str
    holder: str | None = None
    attempt: str | None = None
    token: str | None = None
    pid: int | None = None
    """The process that it was granted to; None where that is not known."""

    def __repr__(self) -> str:
        # A repr ends up in logs; the token is the dispatcher's secret.
        token = "" if self.token is None else ", token=…"
        task, holder, attempt = shown(self.task_id), shown(self.holder), shown(self.attempt)
        return f"Claim(task_id={task!r}, holder={holder!r}, attempt={attempt!r}, pid={self.pid!r}{token})"


class Inherited(Claim):
    """A claim that a process holds by its environment, and that came here with its work: held, and not handed on.

    A child of that work is no holder, as a child of that process is none.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Claim) and astuple(self) == astuple(other)

    __hash__ = Claim.__hash__
    __repr__ = Claim.__repr__


SHED: Final = "shed"
"""The tombstone that takes the place of a `Claim`."""

ClaimState: TypeAlias = "Claim | Literal['shed'] | None"
"""What a context carries: a granted claim, the tombstone, or nothing (the process's environment decides)."""
