"""Whose turn is this? The session key, its home, and the fallback."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

ENVIRONMENT_VARIABLE = "GATEWAY_SESSION_KEY"

_session_key: ContextVar[str] = ContextVar("gateway_session_key", default="")


@contextmanager
def session(key: str) -> Iterator[None]:
    """Make `key` the session of the turn that runs inside.

    The key is also mirrored into the environment, for scripts and old tools that only know that. The process has one
    environment and many turns: the last writer wins, and nobody clears it.
    """
    token = _session_key.set(key)
    os.environ[ENVIRONMENT_VARIABLE] = key
    try:
        yield
    finally:
        _session_key.reset(token)


def get_session_key() -> str:
    """The session that this code works for: the context's own, else what the environment says, else ``""``."""
    return _session_key.get() or os.environ.get(ENVIRONMENT_VARIABLE, "")
