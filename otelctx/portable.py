"""The raw value of a ContextVar as JSON can hold it, for where no object of an application can go.

It is itself where JSON has it: a string, a number, a boolean, None. A list is a marker: ``["bytes", …]`` and
``["uuid", …]`` for what JSON does not have, and for what the source of the variable says by a value of its own:
``["absent"]``, ``["unset"]`` (its sentinel), ``["empty", …]`` (one of its ``empty`` values).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otelctx import faults, place
from otelctx.keys import MISSING, is_uuid

if TYPE_CHECKING:
    from otelctx.keys import ContextVarSource

ABSENT: Final = ["absent"]
"""A variable that is not set."""

_CLEARED: Final = ["empty", None]


def plain(raw: object) -> Any:
    """`raw` as JSON can hold it, a list where it needs a marker; `MISSING` where it is no small immutable."""
    kind = type(raw)
    if raw is None or kind in (str, bool, float):
        return raw
    if kind is int:
        return raw if -(1 << 512) < raw < 1 << 512 else MISSING  # type: ignore[operator]
    if kind is bytes:
        return ["bytes", raw.hex()]  # type: ignore[attr-defined]
    if is_uuid(kind):
        return ["uuid", raw.hex]  # type: ignore[attr-defined]
    return MISSING


def value_of(packed: Any) -> object:
    """What `plain` packed."""
    if not isinstance(packed, list):
        return packed
    kind, text = packed
    if kind == "bytes":
        return bytes.fromhex(text)
    from uuid import UUID

    return UUID(text)


def packed(source: ContextVarSource, raw: object) -> Any:
    """`raw`, which the variable of `source` has. Of anything else than these, what the source reads, if it reads it."""
    if raw is MISSING:
        return ABSENT
    if raw is source.unset:
        return ["unset"]
    reading, as_it_is = source.reading(raw), plain(raw)
    if reading is False:
        return ["empty", None if as_it_is is MISSING else as_it_is]
    if as_it_is is not MISSING:
        return as_it_is
    if reading is not None:
        return reading
    name = place.attribute(type(raw), "__qualname__")
    faults.internal_error("carrier", message=f"{source.label} holds a {name}, which arrives absent")
    return ABSENT


def restored(source: ContextVarSource, packed: Any) -> object:
    """The raw value for `source`, whose markers need not mean here what they did where it departed."""
    if isinstance(packed, list):
        if packed[0] == "absent":
            return MISSING
        if packed[0] == "unset":
            return source.unset
        if packed[0] == "empty":
            raw = value_of(packed[1])
            return raw if source.reading(raw) is False else source.cleared
    return value_of(packed)


def awaited(raw: object) -> Any:
    """`raw`, a string, an integer, a UUID, or None for a source that is cleared, as a `flow.Binding` awaits it."""
    return _CLEARED if raw is None else plain(raw)
