"""What the instrumentations of threads, executors and processes record about whom they spawn something for.

Nothing is patched here: those that patch a spawn call `spawned` with its handle.

* a future: when ``submit`` has returned it;
* a thread: before it starts, since it may ask for its own owner; `not_spawned` where the start then fails;
* a process (``Popen``, ``multiprocessing.Process``, asyncio's): when it has been started.

What a service thread does is nobody's, and is not recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otelctx import faults, flow, owners
from otelctx.owners import NOTE

if TYPE_CHECKING:
    from otelctx.owners import Owner
    from otelctx.snapshot import Snapshot


def spawned(handle: object, captured: Snapshot | None = None) -> bool:
    """Record whose `handle` is: the identity that arrives there, or the current context's without `captured`.

    Returns whether that is a new record. Never raises; thread-safe.
    """
    try:
        return owners.record_spawn(handle, flow.peek() if captured is None else captured.flow)
    except Exception as exc:
        faults.internal_error("owners", exc, f"the owner of a {type(handle).__name__} is not recorded")
        return False


def note(future: Any, owner: Owner) -> None:
    """Let a future have its `owner` with it. Never raises."""
    try:
        setattr(future, NOTE, owner)
    except Exception as exc:
        cannot_note(future, exc)


def cannot_note(future: object, exc: Exception) -> None:
    """Report that a future (somebody's stand-in for one) does not take a note of its owner. Never raises."""
    faults.internal_error("owners", exc, f"the owner of a {type(future).__name__} is not recorded")


def not_spawned(handle: object) -> None:
    """Take back what `spawned` has recorded (it returned True): the handle was not started, and somebody else may.

    Never raises; thread-safe.
    """
    try:
        owners.forget_owner(handle)
    except Exception as exc:
        faults.internal_error("owners", exc, f"the owner of a {type(handle).__name__} is not forgotten")
