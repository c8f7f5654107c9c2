"""What sets itself again from its own run: a timer or an event that does so is a scheduler, and its runs are cron's."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from operator import is_
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    _Call: TypeAlias = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]

_RUNNING: Final[ContextVar[list[_Call] | None]] = ContextVar("otelctx.running", default=None)
"""What the current context runs on behalf of a timer or an event; in a list that is empty once it has run."""


@contextmanager
def running(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, `is_again` knows this call."""
    current: list[_Call] = [(function, args, kwargs)]
    token = _RUNNING.set(current)
    try:
        yield
    finally:
        _RUNNING.reset(token)
        current.clear()  # a context that was copied in the run outlives it
        del function, args, kwargs


def is_again(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the current context is a run of this very call: the same function with the same arguments."""
    run = _RUNNING.get()
    if not run:
        return False
    one, given, named = run[0]
    if isinstance(one, MethodType) and isinstance(function, MethodType):
        if one.__func__ is not function.__func__ or one.__self__ is not function.__self__:
            return False
    elif one is not function:
        return False
    if not (isinstance(given, tuple | list) and isinstance(args, tuple | list)):
        return False  # to look at what may be an iterator is to use it up
    arguments, again = (*given, *named.values()), (*args, *kwargs.values())
    return len(arguments) == len(again) and all(map(is_, arguments, again)) and [*named] == [*kwargs]
