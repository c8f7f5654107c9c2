"""What of a key's value may be seen in telemetry: the value itself, a keyed digest of it, or nothing."""

from __future__ import annotations

import os
from typing import Final, Literal, TypeAlias

Values: TypeAlias = Literal["plain", "hash", "omit"]

PREFIX: Final = "hash:"
"""What a digest starts with, so that nobody takes it for a value."""

_values: Values = "plain"
_digest_key: bytes | None = None


def configure(values: Values) -> None:
    """Set what `redact` lets through, and read the secret anew when it is next needed. Not for use while alerts run."""
    global _values, _digest_key
    _values, _digest_key = values, None


def values() -> Values:
    """Return the rule in force."""
    return _values


def redact(value: str | None) -> str | None:
    """Return what of `value` may be exported, by the setting `telemetry.values`.

    `plain` is the value (a lone surrogate, which no exporter can encode, is written as its escape); `hash` is `hash:`
    and 16 hexadecimal digits, a BLAKE2b keyed by the secret, so that equal values can be seen to be equal and nobody
    without the secret can try values out; `omit`, and whatever fails, is None. None stays None.

    The secret is `OTELCTX_SECRET`, else the first line of the file `OTELCTX_SECRET_FILE`; without either, digests are
    comparable within this process and the children that it forks. Never raises; thread-safe.
    """
    if value is None or _values == "omit":
        return None
    try:
        return _plain(value) if _values == "plain" else PREFIX + _digest(value)
    except Exception:  # whatever went wrong, the value must not be what comes out
        return None


def _plain(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")


def _digest(value: str) -> str:
    from hashlib import blake2b

    global _digest_key
    key = _digest_key
    if key is None:
        # A secret of any length becomes a key of the length that BLAKE2b takes.
        key = blake2b(_secret() or os.urandom(32), digest_size=32, person=b"otelctx.key").digest()
        key = _digest_key = _digest_key or key
    data = value.encode("utf-8", "surrogatepass")
    return blake2b(data, key=key, digest_size=8, person=b"otelctx.values").hexdigest()


def _secret() -> bytes:
    secret = os.environ.get("OTELCTX_SECRET", "")
    path = os.environ.get("OTELCTX_SECRET_FILE", "")
    if secret or not path:
        return secret.encode("utf-8", "surrogateescape")
    with open(path, "rb") as file:  # noqa: PTH123 - the core does without pathlib
        return file.readline().strip()
