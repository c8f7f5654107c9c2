"""Where a hop departed: the application's own line, the hops before it, and names for callables."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otelctx.interruption import pass_on
from otelctx.mismatch import Place

if TYPE_CHECKING:
    from types import FrameType

TRAIL_LENGTH: Final = 8
"""How many hops a trail has."""

TRAIL: Final[ContextVar[tuple[str, ...]]] = ContextVar("otelctx.trail", default=())
"""The last hops of the current context that were recorded, oldest first: ``kind callable @ file:line``."""

_DEPTH: Final = 40

_stdlib: Final = os.path.join(os.path.dirname(os.__file__), "")
_packages: Final = tuple(os.path.join(_stdlib, name, "") for name in ("site-packages", "dist-packages"))
_ours: Final = (
    os.path.join(os.path.dirname(__file__), ""),
    os.path.join(os.path.dirname(os.path.dirname(__file__)), "instrumentation", "otelctx_instrumentation", ""),
    os.path.join(os.path.dirname(os.path.dirname(__file__)), "otelctx_instrumentation", ""),
)

_instrumentation: Final = os.path.join("", "opentelemetry", "instrumentation", "")
"""Wrappers of OpenTelemetry's instrumentations stand between an application and what they wrap."""

_green: Final = tuple(os.path.join("-packages", name, "") for name in ("gevent", "eventlet"))
"""Their pools and executors spawn from frames of their own."""

_is_plumbing: dict[str, bool] = {}
_FILES: Final = 4096
"""How many files' answers are remembered."""


def _plumbing(file: str) -> bool:
    answer = _is_plumbing.get(file)
    if answer is None:
        if len(_is_plumbing) >= _FILES:  # code that is made as it runs has a file name each time
            _is_plumbing.clear()
        answer = (
            file.startswith(("<frozen", *_ours))
            or _instrumentation in file
            or any(package in file for package in _green)
            or (file.startswith(_stdlib) and not file.startswith(_packages))
        )
        _is_plumbing[file] = answer
    return answer


def departure() -> Place | None:
    """Where the application departs: its innermost frame.

    Frames of the standard library and of otelctx are skipped: `map` and `run_in_executor` submit from frames of their
    own. None where there is none of the application's among the innermost 40.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return None
        code = frame.f_code
        if not _plumbing(code.co_filename):
            return Place(code.co_qualname, code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def attribute(fn: object, name: str) -> Any:
    """What `fn` has under `name`; None where it has nothing, or raises: proxies and mocks raise what they like."""
    try:
        return getattr(fn, name, None)
    except Exception as exc:
        pass_on(exc)
        return None


def _named(fn: object) -> object:
    """The object that gives `fn` its name: a partial's function, what a nameless wrapper wraps, or a type."""
    for _ in range(_DEPTH):
        if issubclass(type(fn), partial):
            fn = fn.func  # type: ignore[attr-defined]
        elif not isinstance(attribute(fn, "__qualname__"), str):
            wrapped = attribute(fn, "__wrapped__")
            fn = type(fn) if wrapped is None else wrapped
        else:
            break
    return fn


def name_of(fn: object) -> str:
    """A readable name of a callable: its qualified name, that of a partial's function, or its type's."""
    return str(attribute(_named(fn), "__qualname__") or "callable")


def full_name_of(fn: object) -> str:
    """`name_of` with the module before it, as ``code.function.name`` wants it."""
    module = attribute(_named(fn), "__module__")
    return f"{module}.{name_of(fn)}" if isinstance(module, str) and module else name_of(fn)
