"""Keys that the border let in, and where they count: in every context in which theirs is the OpenTelemetry Context.

An extracted OpenTelemetry Context is not attached yet, and may never be. So what it brings is kept in it, bound when it
is attached, in the same way in which `bind` would, and unbound when it is detached. **It counts only where the
application says nothing itself**: a key that is bound, set or cleared here stays what it is, and what the application
sets later counts from then on. What arrived is somebody else's word.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otelctx import binding, flow, runtime, spans

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otelctx.flow import Flow
    from otelctx.keys import Key

_ENTRY: Final = "otelctx.admitted"
"""Its key in an OpenTelemetry Context."""


class Admitted:
    """What one message brought: values by key, and the signatures that vouch for them (an empty one: trusted)."""

    __slots__ = ("signatures", "values")

    def __init__(self, values: Mapping[str, str], signatures: frozenset[str]) -> None:
        self.values = values
        self.signatures = signatures


class _Counting:
    """What counts in a context, and how to undo it. Never changed once it is set: other contexts share it."""

    __slots__ = ("admitted", "token")

    def __init__(self, admitted: Admitted, token: binding.Token) -> None:
        self.admitted = admitted
        self.token = token


_COUNTING: Final[ContextVar[_Counting | None]] = ContextVar("otelctx.counting", default=None)


def admitted(context: Any, values: Mapping[str, str], signatures: frozenset[str]) -> Any:
    """The OpenTelemetry Context `context`, which brings `values`."""
    return runtime.with_entry(context, _ENTRY, Admitted(values, signatures))


def of(context: Any) -> Admitted | None:
    """What came with the OpenTelemetry Context `context`."""
    found = context.get(_ENTRY) if context else None
    return found if isinstance(found, Admitted) else None


def value_of(key: Key, now: Flow, context: Any) -> str | None:
    """What `key` is in the flow `now`; where that says nothing, what came with the OpenTelemetry Context `context`."""
    value = now.values[now.registry.names[key.name]]
    came = of(context)
    if value is not None or came is None or key.name not in came.values or spans.is_cleared(now, key.name):
        return value
    return came.values[key.name]


def settle() -> None:
    """Let count what came with the current OpenTelemetry Context, and nothing else that came.

    For whoever has just attached one, or detached it.
    """
    came, counting = of(runtime.variable.get()), _COUNTING.get()
    if came is (None if counting is None else counting.admitted):
        return
    if counting is not None:
        _COUNTING.set(None)
        binding.detach(counting.token)
    if came is None:
        return
    if flow.registry.pending:
        flow.discover()
    now = flow.peek()
    values = {
        name: value
        for name, value in came.values.items()
        if name in now.registry.names
        and now.values[now.registry.names[name]] is None
        and not spans.is_cleared(now, name)
    }
    if values:
        _COUNTING.set(_Counting(came, binding.attach(**values)))
