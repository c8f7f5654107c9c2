"""Secrets and what they prove: signatures, keyed digests, and the window in which a signed message counts once.

The one place that reads a secret. It is ``OTELCTX_SECRET`` (several are separated by commas), else what the file
``OTELCTX_SECRET_FILE`` holds (one a line; the file is read anew when it has changed, as a mounted Kubernetes secret
does). **The first signs, all verify**, so that a rotation needs no stop: add the new secret as the second one
everywhere, then put it first everywhere, then take the old one out.

    if signing.has_secret():
        header = signing.sign("task", task_id, body)
    signing.verify(header, "task", task_id, body)

A secret has at least 16 bytes (``openssl rand -hex 32`` makes a good one). A shorter one is refused, with all that are
beside it: then there is no secret, which is reported. Where a file that was good cannot be read any more, or holds
nothing usable, its last good secrets stay in force, which is reported too.

Everything here is thread-safe, and works in a forked child as in its parent.
"""

from __future__ import annotations

import os
import time
from _thread import RLock  # re-entrant: a signal handler may interrupt the thread that holds it
from typing import TYPE_CHECKING, Final, cast

from otelctx import forks
from otelctx.interruption import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SHORTEST: Final = 16
"""Bytes that a secret has at least: fewer could be guessed from one signature, at leisure and unseen."""

_Stamp = tuple[int, int, int, int]

_read: tuple[str, _Stamp, tuple[bytes, ...]] | None = None
"""The last good file: its path, by what its content is known to be the same, and its secrets."""
_own: Final = os.urandom(32)
"""What digests are keyed by where nobody gave a secret."""
_lock = RLock()
forks.renew_in_child(globals(), "_lock", RLock)


class SecretError(ValueError):
    """A secret is configured and cannot be used; the text says why, and holds no part of it."""


def is_configured(environ: Mapping[str, str]) -> bool:
    """Whether `environ` names a secret, usable or not."""
    return any(environ.get(name, "").strip() for name in ("OTELCTX_SECRET", "OTELCTX_SECRET_FILE"))


def has_secret() -> bool:
    """Whether `sign` and `verify` have a usable secret. One that is configured and unusable is reported, once."""
    try:
        return bool(_secrets())
    except SecretError as exc:
        _report(str(exc))
        return False


def sign(purpose: str, *parts: str | bytes) -> str:
    """The signature of `parts` for `purpose`: 43 characters of ``A-Z a-z 0-9 - _``, fit for headers and URLs.

    An HMAC-SHA256 by the first secret. Each part counts with its length, so that no two lists of parts are signed
    alike; a string counts as its UTF-8. A signature for one purpose is none for another.

    Raises `SecretError` where there is no usable secret, TypeError for a part that is neither str nor bytes.
    """
    secrets = _secrets()
    if not secrets:
        raise SecretError(missing(os.environ))
    return _signature(secrets[0], _message(purpose, parts))


def verify(signature: object, purpose: str, *parts: str | bytes) -> bool:
    """Whether `signature` is that of `parts` for `purpose`, by any of the secrets; compared in constant time.

    False for whatever is no signature, for parts that have none, and where there is no usable secret. Never raises.
    """
    try:
        from hmac import compare_digest

        message = _message(purpose, parts)
        return any(compare_digest(_signature(secret, message), cast("str", signature)) for secret in _secrets())
    except Exception as exc:
        pass_on(exc)
        return False


def digest(value: str | bytes) -> str:
    """16 hexadecimal digits, by which equal values are seen to be equal and which say nothing else of them.

    A BLAKE2b, keyed by the first secret; where none is configured, comparable only within this process and the
    children that it forks. Raises `SecretError` where one is configured and cannot be used.
    """
    from hashlib import blake2b

    secrets = _secrets()
    # A secret of any length becomes a key of the length that BLAKE2b takes.
    key = blake2b(secrets[0] if secrets else _own, digest_size=32, person=b"otelctx.key").digest()
    return blake2b(_bytes(value), key=key, digest_size=8, person=b"otelctx.values").hexdigest()


def missing(environ: Mapping[str, str]) -> str:
    """Say why there is no usable secret in `environ`; nothing where there is one."""
    try:
        found = _in_variable(environ) or _in_file(environ.get("OTELCTX_SECRET_FILE", "").strip())
    except SecretError as exc:
        return str(exc)
    return "" if found else "set OTELCTX_SECRET, or OTELCTX_SECRET_FILE to a file that holds one"


class ReplayWindow:
    """Which messages were seen, so that none counts twice: each has a timestamp and a nonce (or its signature).

    A message counts within `seconds` of its timestamp, on either side, since clocks differ. At most `at_most` are
    remembered. When there are more in one window, the oldest is forgotten, and from then on nothing counts that is as
    old as that one or older: under load, and after the clock went back, the window gets shorter, never leaky.

    Ask only for what is verified: strangers must not fill it. One process has one memory: whoever may choose the
    process that gets a message may repeat it once in each. A forked child knows what its parent had seen.
    """

    __slots__ = ("_at_most", "_clock", "_forgotten", "_oldest", "_seconds", "_seen")

    def __init__(self, seconds: float, at_most: int, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since the epoch, as the timestamps are."""
        self._seconds = seconds
        self._at_most = at_most
        self._clock = clock
        self._seen: set[tuple[float, bytes]] = set()
        self._oldest: list[tuple[float, bytes]] = []  # a heap of what is in `_seen`
        self._forgotten = (float("-inf"), b"")  # the latest that was: neither it nor what is older counts again

    def __len__(self) -> int:
        return len(self._seen)

    def is_fresh(self, timestamp: float, nonce: str | bytes) -> bool:
        """Whether the message counts: recent, and not asked for before. Asking is what makes it seen. Never raises.

        Arguments: `timestamp` in seconds since the epoch, `nonce` a short text that no other message of that time has.
        """
        from heapq import heappop, heappush

        try:
            now = self._clock()
            if not abs(now - timestamp) <= self._seconds:  # so written, a NaN is not fresh
                return False
            entry = (float(timestamp), _bytes(nonce))
            with _lock:
                if entry <= self._forgotten or entry in self._seen:
                    return False
                self._seen.add(entry)
                heappush(self._oldest, entry)
                while self._oldest[0][0] < now - self._seconds or len(self._seen) > self._at_most:
                    forgotten = heappop(self._oldest)
                    self._seen.discard(forgotten)
                    self._forgotten = max(self._forgotten, forgotten)
                return entry in self._seen  # else it is older than all that a full memory holds
        except Exception as exc:
            pass_on(exc)
            return False


def _secrets() -> tuple[bytes, ...]:
    """The process's secrets, the one that signs first; none where none is configured. Raises `SecretError`."""
    return _in_variable(os.environ) or _of_file(os.environ.get("OTELCTX_SECRET_FILE", "").strip())


def _in_variable(environ: Mapping[str, str]) -> tuple[bytes, ...]:
    given = environ.get("OTELCTX_SECRET", "")
    if not given.strip():
        return ()
    return _usable("OTELCTX_SECRET", given.encode("utf-8", "surrogateescape").split(b","), "part between commas")


def _of_file(path: str) -> tuple[bytes, ...]:
    """What the file at `path` holds; what it held last, where it holds nothing usable now."""
    global _read
    if not path:
        return ()
    known = _read if _read is not None and _read[0] == path else None
    try:
        found = os.stat(path)  # noqa: PTH116 - the core does without pathlib
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)
        if known is not None and known[1] == stamp:
            return known[2]
        secrets = _in_file(path)
    except (OSError, ValueError) as exc:
        failure = exc if isinstance(exc, SecretError) else _unreadable(path, exc)
        if known is None:
            raise failure from None
        _report(f"{failure}; the secrets that were read before stay in force")
        return known[2]
    _read = (path, stamp, secrets)
    return secrets


def _in_file(path: str) -> tuple[bytes, ...]:
    if not path:
        return ()
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - the core does without pathlib
            content = file.read()
    except (OSError, ValueError) as exc:  # a ValueError: the path has a NUL in it
        raise _unreadable(path, exc) from None
    if not content.strip():
        raise SecretError(f"OTELCTX_SECRET_FILE: {_printable(path)} is empty")
    return _usable(f"OTELCTX_SECRET_FILE: {_printable(path)}", content.splitlines(), "line")


def _unreadable(path: str, exc: Exception) -> SecretError:
    why = getattr(exc, "strerror", None) or exc
    return SecretError(f"OTELCTX_SECRET_FILE: {_printable(path)} cannot be read: {why}")


def _printable(path: str) -> str:
    return path if path.isprintable() else repr(path)


def _usable(place: str, parts: list[bytes], called: str) -> tuple[bytes, ...]:
    secrets = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not secrets or any(len(secret) < SHORTEST for secret in secrets):
        what = f"a {called}" if len(secrets) > 1 else "the secret"
        raise SecretError(f"{place}: {what} is shorter than {SHORTEST} bytes; `openssl rand -hex 32` makes a good one")
    return secrets


def _bytes(part: str | bytes) -> bytes:
    if isinstance(part, str):
        return part.encode("utf-8", "surrogatepass")
    if isinstance(part, bytes):
        return part
    raise TypeError(f"what is signed is str or bytes, not {type(part).__name__}")


def _message(purpose: str, parts: tuple[str | bytes, ...]) -> bytes:
    return b"".join(len(each).to_bytes(8, "big") + each for each in map(_bytes, ("otelctx", purpose, *parts)))


def _signature(secret: bytes, message: bytes) -> str:
    from base64 import urlsafe_b64encode
    from hmac import digest as hmac

    return urlsafe_b64encode(hmac(secret, message, "sha256")).rstrip(b"=").decode("ascii")


def _report(message: str) -> None:
    from otelctx.faults import wrong_setting  # which redacts, and so comes here

    wrong_setting("secret", message)
