"""Binding keys in a context, and reading them: `bind`, `attach` and `detach`, `get`.

A binding is otelctx's own: an application's variables are not written, and where the application sets one after the
binding, what it set counts.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING, Any

from otelctx import flow, runtime
from otelctx.keys import MISSING

if TYPE_CHECKING:
    from types import TracebackType

    from otelctx.claim import ClaimState
    from otelctx.keys import Registry


class Token:
    """What `attach` changed; for `detach`. Holds no thread and no context."""

    __slots__ = ("after", "before", "otel_after", "otel_before")

    def __init__(self, before: flow.State | None, after: flow.State, otel_before: Any, otel_after: Any) -> None:
        self.before = before
        self.after = after
        self.otel_before = otel_before
        self.otel_after = otel_after


def attach_state(state: flow.State) -> Token:
    """Make `state` the current context's, and bring its OpenTelemetry Context in step."""
    before = flow.STATE.get()
    if before is not None and before.ended:
        state = flow.State(state.bound, state.claim, ended=before.ended)
    flow.STATE.set(state)
    otel_before = otel_after = None
    if runtime.is_adopted():
        otel_before = runtime.variable.get()
        otel_after = flow.peek().in_step(otel_before)
        if otel_after is not otel_before:
            runtime.variable.set(otel_after)
    return Token(before, state, otel_before, otel_after)


def attach(**keys: str) -> Token:
    """Bind keys in the current context until `detach`.

    Arguments: a value for each key, by name; ``session`` is always there, others are declared in the configuration.
    The value is a string of any characters, at most 1,024 bytes long once it is percent-encoded for baggage.

    Returns a token for `detach`. Raises `TypeError` for a value that is no string (or no key at all), `ValueError` for
    one that is too long, `LookupError` for a key that nobody declared. Thread-safe: a context belongs to one thread at
    a time.
    """
    declared = _checked(keys)
    if runtime.load():
        from otelctx import snapshot

        snapshot.refresh()
    before = flow.STATE.get()
    bound = dict(before.bound) if before is not None else {}
    for name, value in keys.items():
        key = declared.keys[declared.names[name]]
        key.bound()
        raws = {var: var.get(MISSING) for var in (source.var for source in key.settable) if var is not None}
        # A subclass of str may carry anything, and live as long as the binding: keep the characters.
        bound[name] = flow.Binding(str.__str__(value), raws)
    token = attach_state(flow.State(bound, None if before is None else before.claim))
    _bound_under_current_span()
    return token


def _checked(keys: dict[str, str]) -> Registry:
    """The registry that declares all of `keys`; raises as `attach` does."""
    if not keys:
        raise TypeError("otelctx.bind() needs at least one key, for example session=…")
    declared = flow.registry
    for name, value in keys.items():
        if name not in declared.names:
            raise LookupError(
                f"otelctx: the key {name!r} is not declared (declared: {', '.join(declared.names)}); "
                f"declare it as [keys.{name}] in the configuration"
            )
        if not isinstance(value, str):
            raise TypeError(f"otelctx: the value of key {name!r} must be a str, not {type(value).__name__}")
        if len(value) * 12 > runtime.MAX_VALUE_BYTES and runtime.encoded_size(value) > runtime.MAX_VALUE_BYTES:
            raise ValueError(
                f"otelctx: the value of key {name!r} is {runtime.encoded_size(value)} bytes long once encoded; "
                f"at most {runtime.MAX_VALUE_BYTES} fit into baggage"
            )
    return declared


def _bound_under_current_span() -> None:
    # Whoever binds while a span is current does it knowingly: that span's flow is one that this context went through.
    if runtime.is_adopted():
        span = runtime.span_of(runtime.variable.get())
        began = getattr(span, "_otelctx_flow", None)
        now = flow.here()
        if isinstance(began, flow.Flow) and began.registry is now.registry and not now.knows(began):
            now.registry.flow.set(now.after(began))


def detach(token: Token | None) -> None:
    """Undo an `attach` (or a shed, or a grant): the outer values count again.

    Never raises, whatever the token: None, used before, made in another thread or context. It restores only where the
    binding is still this context's, and a token that is detached before an inner one takes effect when that one is.
    """
    if not isinstance(token, Token):
        return
    current = flow.STATE.get()
    if current is None:
        return
    if current.origin is not token.after:
        flow.STATE.set(current.having_ended((token, *(one for one in current.ended if one is not token))))
        return
    before, ended = token.before, current.ended
    while before is not None and (over := next((one for one in ended if one.after is before.origin), None)) is not None:
        before, ended = over.before, tuple(one for one in ended if one is not over)
    flow.STATE.set(None if before is None else before.having_ended(ended))
    otel = runtime.variable.get()
    if before is token.before and otel is token.otel_after:
        if otel is not token.otel_before:
            runtime.variable.set(token.otel_before)
    elif runtime.is_adopted():
        # Inside a span that began since, or after a detach out of order: entries of what has ended may be there.
        runtime.variable.set(flow.peek().in_step(otel))


class bind:  # noqa: N801 - used as a function, like contextlib.suppress
    """Bind keys for the length of a ``with`` block: ``with bind(session="slack:C1"):``.

    Arguments and errors are those of `attach`, raised when ``bind`` is called. Blocks nest; leaving one, by an
    exception too, restores the outer value. One object may be entered many times, also concurrently in several
    contexts. The value travels with work that is handed to executors, threads and callbacks, and is in the
    OpenTelemetry baggage under the key's own name.
    """

    __slots__ = ("_keys", "_tokens")

    def __init__(self, **keys: str) -> None:
        _checked(keys)  # raise here, where the mistake is, not at the first entry
        self._keys = keys
        self._tokens: list[tuple[int, Token]] = []

    def __enter__(self) -> None:
        self._tokens.append((_thread.get_ident(), attach(**self._keys)))

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        current, thread = flow.STATE.get(), _thread.get_ident()
        entered = list(self._tokens)
        entry = next(
            (entry for entry in reversed(entered) if current is not None and entry[1].after is current.origin), None
        )
        if entry is None:  # out of order, or closed in a context that never entered it: never another thread's
            entry = next((entry for entry in reversed(entered) if entry[0] == thread), None)
        if entry is not None:
            self._tokens.remove(entry)
            detach(entry[1])


def get(key: str, default: str | None = None) -> str | None:
    """The value of `key` in the current context, or `default` where it has none (or is not declared).

    The latest writer counts: a binding of otelctx, or the application's own ContextVar where it has been set since.
    """
    position = flow.registry.names.get(key)
    if position is None:
        return default
    if flow.registry.pending:
        flow.discover()
    value = flow.peek().values[position]
    return default if value is None else value


def claim() -> ClaimState:
    """What the current context itself says of the claim."""
    state = flow.STATE.get()
    return None if state is None else state.claim


def with_claim(claim: ClaimState) -> flow.State:
    """The current context's state, with `claim` in it."""
    state = flow.STATE.get()
    return flow.State({} if state is None else state.bound, claim)
