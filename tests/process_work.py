"""What the tests of processes and interpreters run in them: importable there, and quick to import."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import otelctx

KEY: ContextVar[Any] = ContextVar(f"{__name__}:KEY")
"""An application's variable for its session key."""

UNDECLARED: ContextVar[Any] = ContextVar(f"{__name__}:UNDECLARED", default=None)

SESSION = {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}]}}


def seen(*_: object) -> tuple[Any, str | None, object]:
    """The application's variable, the key, and its baggage entry."""
    from opentelemetry import baggage

    return KEY.get(None), otelctx.get("session"), baggage.get_baggage("otelctx.session")


def put_seen(queue: Any) -> None:
    queue.put(seen())
