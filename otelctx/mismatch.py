"""What a mismatch is: a key that did not arrive as it departed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Reason: TypeAlias = Literal["lost", "foreign", "leaked", "split", "forged", "raced", "undeclared"]
Action: TypeAlias = Literal["observed", "repaired", "raised", "rerouted", "dropped"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hop departed: the function's qualified name, its file and the line."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One key that is not what the parent's was, and what was done about it.

    `expected` and `observed` are the values as they are (None: no value); what is exported of them is decided by
    `telemetry.values`. `source` names where the observed value came from. `trail` has the last hops, oldest first.
    `held_back` says how many alerts like this one were counted and not repeated since the last one. `detail` says why,
    where the reason alone leaves that open.
    """

    key: str
    reason: Reason
    expected: str | None
    observed: str | None
    source: str | None
    action: Action
    hop_kind: str | None = None
    trail: tuple[str, ...] = ()
    place: Place | None = None
    held_back: int = 0
    detail: str | None = None


class MismatchError(RuntimeError):
    """Raised in `enforce` before the work runs; `mismatch` says what differs.

    The text has no values, since exceptions end up in places that `telemetry.values` does not govern.
    """

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(mismatch)  # the argument itself, so that the error survives pickling between processes
        self.mismatch = mismatch

    def __str__(self) -> str:
        return f"the key {self.mismatch.key} is {self.mismatch.reason}"
