"""Callables that bring a context of their own: the author has decided, and otelctx compares and leaves them alone."""

from __future__ import annotations

from contextvars import Context
from functools import partial
from types import BuiltinMethodType


def context_of(fn: object) -> Context | None:
    """The `contextvars.Context` in which `fn` will run by its author's wish, or None.

    ``context.run``, or a partial of it, which is what ``asyncio.to_thread`` submits, and every hand-written repair.
    """
    # By its type: `isinstance` asks an object for its `__class__`, and proxies raise what they like.
    while issubclass(type(fn), partial):
        fn = fn.func  # type: ignore[attr-defined]
    if type(fn) is BuiltinMethodType and type(fn.__self__) is Context:
        return fn.__self__
    return None
