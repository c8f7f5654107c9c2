"""Callables that bring a context of their own: the author has decided, and otelctx compares and leaves them alone."""

from __future__ import annotations

from contextvars import Context
from functools import partial
from types import BuiltinMethodType


def context_of(fn: object) -> Context | None:
    """The `contextvars.Context` in which `fn` will run by its author's wish, or None.

    ``context.run``, or a partial of it, which is what ``asyncio.to_thread`` submits, and every hand-written repair.
    """
    while isinstance(fn, partial):
        fn = fn.func
    if isinstance(fn, BuiltinMethodType) and isinstance(fn.__self__, Context):
        return fn.__self__
    return None
