"""The OpenTelemetry context, where the process uses OpenTelemetry.

Nothing here imports OpenTelemetry by itself: a process that has not imported it has no OpenTelemetry context to carry.
`adopt` is called when ``opentelemetry.context`` has been imported, `load` where the application asks for baggage.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, cast

from otelctx.interruption import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.context.context import Context
    from opentelemetry.trace import Span

MAX_VALUE_BYTES: Final = 1024
"""The longest value, percent-encoded, that a baggage entry of ours may have."""
MAX_MEMBERS: Final = 64
"""W3C Baggage: how many entries every hop must pass on; with more, ours stay out."""
MAX_BYTES: Final = 8192
"""W3C Baggage: how long a header every hop must pass on; where it would get longer, ours stay out."""

_unused: ContextVar[Any] = ContextVar("otelctx.no_opentelemetry", default=None)

variable: ContextVar[Any] = _unused
"""The ContextVar that holds the current OpenTelemetry Context; a stand-in that nothing sets until there is one."""
empty: Any = None
"""The OpenTelemetry Context of a context in which nobody has attached one."""


def is_adopted() -> bool:
    """Whether the process's OpenTelemetry context has been found."""
    return variable is not _unused


def adopt() -> bool:
    """Find the process's OpenTelemetry context; True when that is news.

    Only the ContextVar runtime (the default, and the only one that OpenTelemetry ships) can be carried: another one,
    chosen by ``OTEL_PYTHON_CONTEXT``, keeps its contexts somewhere that otelctx cannot know.
    """
    global variable, empty
    module = sys.modules.get("opentelemetry.context")
    runtime = getattr(module, "_RUNTIME_CONTEXT", None)
    found = getattr(runtime, "_current_context", None)
    if not isinstance(found, ContextVar) or found is variable:
        return False
    from contextvars import Context as EmptyContext

    # Set in this order: whoever sees the variable must find its empty value.
    empty = EmptyContext().run(found.get)
    variable = found
    return True


def load() -> bool:
    """Import OpenTelemetry's context API and adopt it; True when that is news. Called only from application calls."""
    if is_adopted():
        return False
    try:
        import opentelemetry.context  # noqa: F401 - `adopt` finds it in sys.modules
    except ImportError:  # pragma: no cover - a dependency; here for a broken environment only
        return False
    return adopt()


class _Names:
    """OpenTelemetry's own keys in its Context, looked up once: an import statement costs as much as a hop."""

    def __init__(self) -> None:
        from opentelemetry.baggage import _BAGGAGE_KEY
        from opentelemetry.context import set_value
        from opentelemetry.trace import INVALID_SPAN, Span
        from opentelemetry.trace.propagation import _SPAN_KEY

        self.baggage = _BAGGAGE_KEY
        self.span = _SPAN_KEY
        self.span_type = Span
        self.no_span = INVALID_SPAN
        self.set_value = set_value


_found: _Names | None = None


def _names() -> _Names:
    global _found
    if _found is None:
        _found = _Names()
    return _found


def span_of(context: Context | None) -> Span | None:
    """The span that is current in the OpenTelemetry Context `context`, or None."""
    if not context:
        return None
    names = _found or _names()
    span: Any = context.get(names.span)
    # `isinstance` asks an abstract class, which takes as long as a hop's whole departure.
    if span is None or span is names.no_span:
        return None
    is_span = names.span_type in type(span).__mro__ or isinstance(span, names.span_type)
    return cast("Span", span) if is_span else None


def with_span(context: Context | None, span: Span) -> Context:
    """`context` with `span` as the current one."""
    from opentelemetry import trace

    return trace.set_span_in_context(span, context if context is not None else cast("Context", {}))


def without_span(context: Context | None) -> Context:
    """`context` without its span."""
    from opentelemetry import trace

    return trace.set_span_in_context(trace.INVALID_SPAN, context if context is not None else cast("Context", {}))


def alone(context: Context | None) -> Context:
    """`context` without its span and its baggage."""
    left = without_span(context)
    return with_baggage(left, None) if baggage_of(left) else left


def encoded_size(value: str) -> int:
    """Length in bytes of `value` as a baggage value, percent-encoded."""
    from urllib.parse import quote_plus

    return len(quote_plus(value, errors="replace"))


def baggage_of(context: Context) -> dict[str, object] | None:
    """The baggage in the OpenTelemetry Context `context`, as the object that it is; None where it has none."""
    if not context:
        return None
    held = context.get((_found or _names()).baggage)
    return held if isinstance(held, dict) else None


def with_baggage(context: Context, held: dict[str, object] | None) -> Context:
    """`context` with `held` for its baggage."""
    names = _found or _names()
    return names.set_value(names.baggage, held or {}, context)


def with_entry(context: Context | None, name: str, value: object) -> Context:
    """`context` with an entry of its own under `name`."""
    return (_found or _names()).set_value(name, value, context)


def unfit(value: str) -> str | None:
    """Why `value` cannot be a baggage entry, or None where it can."""
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return "its value is not text that UTF-8 can hold"
    if len(value) * 12 > MAX_VALUE_BYTES and encoded_size(value) > MAX_VALUE_BYTES:
        return f"its value is longer than {MAX_VALUE_BYTES} bytes once encoded"
    return None


def crowded(held: Mapping[str, object], name: str, value: str) -> str | None:
    """Why there is no room for an entry beside those of `held`, or None where there is."""
    if len(held) >= MAX_MEMBERS:
        return f"there are {len(held)} other entries, and {MAX_MEMBERS} is the limit"
    parts = [name, value]
    for pair in held.items():
        parts.extend(part if type(part) is str else _text_of(part) for part in pair)
    # A character is at most twelve bytes, and each entry has an equals sign and a comma.
    if (
        sum(map(len, parts)) * 12 + len(parts) > MAX_BYTES
        and sum(map(encoded_size, parts)) + len(parts) - 1 > MAX_BYTES
    ):
        return f"with the other entries it would be longer than {MAX_BYTES} bytes"
    return None


def _text_of(part: object) -> str:
    try:
        return str(part)
    except Exception as exc:  # somebody's object, which no propagator will be able to write either
        pass_on(exc)
        return ""


def merged(
    held: dict[str, object] | None, entries: Iterable[tuple[str, str | None]], refuse: Callable[[str, str], None]
) -> dict[str, object] | None:
    """The baggage `held` with `entries`: a value sets one, None removes it; `held` itself where nothing changes.

    A value that baggage cannot hold, or one for which other people's entries leave no room, is left out and told to
    `refuse` (name, why).
    """
    before = held or {}
    wanted = [(name, value) for name, value in entries if before.get(name) != value]
    if not wanted:
        return held
    changed = dict(before)
    for name, value in wanted:
        changed.pop(name, None)
        if value is None:
            continue
        why = unfit(value) or crowded(changed, name, value)
        if why is None:
            changed[name] = value
        else:
            refuse(name, why)
    return held if changed == before else changed
