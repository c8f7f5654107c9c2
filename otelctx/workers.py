"""What a worker keeps for itself: undeclared variables behave as without otelctx.

Work runs in a copy of a prepared context where its worker's own is empty. What a task sets there in variables that
nobody declared is the worker's, so the worker gets it back, and its later tasks run in that same copy, its *home*: a
``Token`` that was made in one task can be used in the next. Declared variables are no worker's, and stay with the work.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, Token, copy_context
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from otelctx import ambient, faults, flow, mode, runtime
from otelctx.keys import MISSING
from otelctx.place import TRAIL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otelctx.flow import Flow
    from otelctx.snapshot import Set

P = ParamSpec("P")
R = TypeVar("R")

_HERE: Final[ContextVar[None]] = ContextVar("otelctx.here", default=None)
"""A token of it resets only in the context in which it was made, which tells a context from its copies."""

HOME: Final[ContextVar[Home | None]] = ContextVar("otelctx.home", default=None)

UNSET_BY: Final[ContextVar[Mapping[ContextVar[Any], Token[Any]] | None]] = ContextVar("otelctx.unset_by", default=None)
"""The variables that an adoption has set in a context where they were absent, with what makes them absent again."""


class Home:
    """The context that a worker's tasks run in, once one of them has set an undeclared variable."""

    __slots__ = ("busy", "context", "given", "mark")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.busy = False
        self.mark = _HERE.set(None)
        self.given: dict[ContextVar[Any], tuple[object, Token[Any]]] = {}
        """What the worker's real context got from it, and how to take it back."""

    def is_here(self) -> bool:
        """Whether the current context is the worker's own, and not a copy of it: another task's, of the same thread."""
        try:
            _HERE.reset(self.mark)
        except (ValueError, RuntimeError):
            return False
        self.mark = _HERE.set(None)
        return True


declared: frozenset[ContextVar[Any]]
"""The variables that travel, the application's declared ones and otelctx's own: none of them is a worker's."""


def refresh() -> None:
    """Look at the process's present keys and OpenTelemetry context from now on."""
    global declared
    registry = flow.registry
    declared = frozenset(
        (
            *registry.vars,
            flow.STATE,
            registry.flow,
            runtime.variable,
            TRAIL,
            HOME,
            UNSET_BY,
            _HERE,
            ambient.ASKING,
        )
    )


refresh()


def keep(context: Context, otel: Any) -> None:
    """Hand what a task set in undeclared variables, in the copy `context`, back to the worker (the current context).

    Also where it left another OpenTelemetry Context than the `otel` that arrived: somebody holds a token for it.
    """
    try:
        left = context.get(runtime.variable, runtime.empty)
        if left is not otel or not declared.issuperset(context):
            context.run(_let_go, otel)
            home = Home(context)
            HOME.set(home)
            hand_back(home)
    except Exception as exc:
        faults.internal_error("hand back", exc)


def _let_go(otel: Any) -> None:
    """Forget, in the context of a task that becomes its worker's home, what the task carried: it may be a request.

    No task sees what is put in its place: each arrives with variables of its own, or in a home without them.
    """
    flow.STATE.set(None)
    flow.registry.flow.set(flow.registry.root)
    if runtime.variable.get() is otel:
        runtime.variable.set(runtime.empty)
    forget(flow.registry.root)


def forget(now: Flow) -> None:
    """Let go of what is set in a home, the current context, and was absent in `now`: it cannot be unset there."""
    for var, raw in zip(now.registry.vars, now.raws, strict=True):
        if raw is MISSING and var.get(MISSING) is not MISSING:
            var.set(MISSING)


def clear(now: Flow) -> None:
    """Clear what work has left in the current context, a worker's own, in variables that were absent in `now`.

    They cannot be unset. One that has no ``unset`` or ``empty`` value, and no default, stays as it is.
    """
    for source, raw in zip(now.registry.settable, now.raws, strict=True):
        if raw is MISSING and source.var is not None and source.var.get(MISSING) is not MISSING:
            cleared = source.like_absent()
            if cleared is not MISSING:
                source.var.set(cleared)


def hand_back(home: Home) -> None:
    """Give the worker's real context, the current one, what its home has in undeclared variables. Never raises."""
    try:
        context, given = home.context, home.given
        for var, value in context.items():
            if var not in declared and var.get(MISSING) is not value:
                token = var.set(value)
                _, first = given.get(var, (None, token))
                given[var] = (value, first)
        for var in [var for var in given if var not in context]:  # unset again by the task, with its own token
            value, token = given.pop(var)
            if var.get(MISSING) is value:
                var.reset(token)
    except Exception as exc:
        faults.internal_error("hand back", exc)


def take_along(home: Home) -> None:
    """Give a worker's home what its real context, the current one, has in undeclared variables."""
    context = home.context
    for var, value in copy_context().items():
        if var not in declared and context.get(var, MISSING) is not value:
            context.run(var.set, value)


def without_declared(context: Context, cells: tuple[Set, ...] = ()) -> Context:
    """A copy of `context` in which no declared variable is set."""
    # The variables of `cells` as well: the settings may have changed since they departed.
    left_out, rebuilt = declared.union(var for var, _ in cells), Context()
    for var, value in context.items():
        if var not in left_out:
            rebuilt.run(var.set, value)
    return rebuilt


def is_stale(cells: tuple[Set, ...], context: Context) -> bool:
    """Whether a variable that is to be absent is set in `context`, where it cannot be unset."""
    for var, raw in cells:  # noqa: SIM110 - a generator costs as much as the rest of an arrival
        if raw is MISSING and var in context:
            return True
    return False


def is_stale_here(now: Flow) -> bool:
    """Whether a variable that is to be absent in `now` is set in the current context."""
    for get, raw in now.pairs:  # noqa: SIM110
        if raw is MISSING and get(MISSING) is not MISSING:
            return True
    return False


def settle(cells: tuple[Set, ...]) -> Home:
    """Give the worker a home without what was left behind in its own context."""
    home = Home(without_declared(copy_context(), cells))
    HOME.set(home)
    return home


def give_back(rebuilt: Context) -> None:
    """Set in the current context what was set in undeclared variables of the copy `rebuilt`. Never raises."""
    try:
        for var, value in rebuilt.items():
            if var not in declared and var.get(MISSING) is not value:
                var.set(value)
    except Exception as exc:
        faults.internal_error("hand back", exc)


def serving(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `fn`, which serves everybody (a worker's or a scheduler's loop), in a context without key, claim and span.

    In the current context, where nothing of that is in it, and in observe. What it returns or raises is passed on.
    """
    here = copy_context()
    if mode.current() == "observe" or declared.isdisjoint(here):
        return fn(*args, **kwargs)
    rebuilt = without_declared(here)
    try:
        return rebuilt.run(fn, *args, **kwargs)
    finally:
        give_back(rebuilt)


def neutral() -> Context:
    """A copy of the current context in which no key, claim or span is left: for pool workers and service threads."""
    return without_declared(copy_context())
