"""What a thread sees that a library starts: told by a profile function, which runs in the thread and in its context."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from opentelemetry import baggage, trace

import otelctx


class Seen(NamedTuple):
    """The key, its entry in baggage, the claim's state, and the current span."""

    key: str | None
    entry: object
    claim: str
    span: int


NEUTRAL = Seen(None, None, "none", 0)


def look() -> Seen:
    span = trace.get_current_span().get_span_context().span_id
    return Seen(otelctx.get("session"), baggage.get_baggage("otelctx.session"), otelctx.claim_state(), span)


@contextmanager
def session(key: str) -> Iterator[Seen]:
    """A turn of session `key` with a span and a shed claim: nothing of it is a service thread's."""
    tracer = trace.get_tracer("app")
    with otelctx.bind(session=key), otelctx.shed_claim(), tracer.start_as_current_span("turn"):
        yield look()


@contextmanager
def watched(target: str) -> Iterator[Callable[[], Seen]]:
    """Watch for a new thread that runs `target` (``module:name``); gives a function that tells what it sees."""
    module, _, name = target.partition(":")
    seen: queue.SimpleQueue[Seen] = queue.SimpleQueue()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_qualname == name and frame.f_globals.get("__name__") == module:
            seen.put(look())

    before = threading.getprofile()
    threading.setprofile(profile)
    try:
        yield lambda: seen.get(timeout=20)
    finally:
        threading.setprofile(before)
