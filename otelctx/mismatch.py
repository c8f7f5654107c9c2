"""What a mismatch is: a key that did not arrive as it departed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from otelctx.redaction import redact, shown, values

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

    `expected` and `observed` are the values as they are (None: no value), for callbacks in this process. What outlives
    them there shows what `telemetry.values` allows: the `repr`, and a pickle, which may end in anybody's store.
    `source` names where the observed value came from. `trail` has the last hops, oldest first. `held_back` says how
    many alerts like this one were counted and not repeated since the last one. `detail` says why, where the reason
    leaves that open.
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

    def __repr__(self) -> str:
        parts = {name: getattr(self, name) for name in self.__slots__}
        parts |= {"expected": shown(self.expected), "observed": shown(self.observed)}
        return f"Mismatch({', '.join(f'{name}={part!r}' for name, part in parts.items())})"

    def __copy__(self) -> Mismatch:
        return self

    def __deepcopy__(self, memo: object) -> Mismatch:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (tuple(self.__getstate__()),)

    def __getstate__(self) -> list[Any]:
        # Asked for by what stores an exception as something else than a pickle: APScheduler 4's serializers.
        told = self
        if values() != "plain":
            told = replace(self, expected=redact(self.expected), observed=redact(self.observed))
        return [getattr(told, name) for name in self.__slots__]


def _unpickled(parts: tuple[Any, ...]) -> Mismatch:
    return Mismatch(*parts)


class MismatchError(RuntimeError):
    """Raised in `enforce` before the work runs; `mismatch` says what differs.

    The text has no values, since exceptions end up in places that `telemetry.values` does not govern.
    """

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(mismatch)  # the argument itself, so that the error survives pickling between processes
        self.mismatch = mismatch

    def __str__(self) -> str:
        if isinstance(self.mismatch, str):  # made again of its text alone, as Celery's results are
            return self.mismatch
        return f"the key {self.mismatch.key} is {self.mismatch.reason}"
