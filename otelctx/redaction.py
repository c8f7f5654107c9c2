"""What of a key's value may be seen in telemetry: the value itself, a keyed digest of it, or nothing."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from otelctx import signing
from otelctx.interruption import pass_on

Values: TypeAlias = Literal["plain", "hash", "omit"]

PREFIX: Final = "hash:"
"""What a digest starts with, so that nobody takes it for a value."""

_values: Values = "plain"


def configure(values: Values) -> None:
    """Set what `redact` lets through."""
    global _values
    _values = values


def values() -> Values:
    """Return the rule in force."""
    return _values


def redact(value: str | None) -> str | None:
    """Return what of `value` may be exported, by the setting `telemetry.values`.

    `plain` is the value (a lone surrogate, which no exporter can encode, is written as its escape); `hash` is `hash:`
    and the value's keyed digest (`signing.digest`), so that equal values can be seen to be equal and nobody without the
    secret can try values out; `omit`, and whatever fails, is None. None stays None. Never raises; thread-safe.
    """
    if value is None or _values == "omit":
        return None
    try:
        return encodable(value) if _values == "plain" else PREFIX + signing.digest(value)
    except Exception as exc:  # whatever went wrong, the value must not be what comes out
        pass_on(exc)
        return None


def shown(value: str | None) -> str | None:
    """`value` for a `repr`: as `redact` has it, and an ellipsis where it is not to be seen. Never raises."""
    return None if value is None else redact(value) or ("…" if value else value)


def encodable(value: str) -> str:
    """`value`; a lone surrogate in it, for which an exporter would drop all that goes with it, as its escape."""
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
