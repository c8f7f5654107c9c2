"""The alert in the log: one record of logger `otelctx`, and exactly one at each OpenTelemetry log backend.

There are two ways from here to a backend: OpenTelemetry's Logs API, and the standard library's record through a
`LoggingHandler` (the SDK's, or that of `opentelemetry-instrumentation-logging`) on some logger, behind some queue,
with some provider. Only the first can always give the record its `event_name`, and only the second knows of providers
that are not the global one. So the record goes to the global provider by the API, and then through `logging`; it
carries a mark, by which a `LoggingHandler` passes over it when its provider has it, and else sends it by the API as
well.

The mark is the record's `otel.event.name`, a string to everyone else. A record that is pickled is an ordinary one
where it arrives, with that name, so that nobody needs otelctx to read it.
"""

from __future__ import annotations

import sys
import time
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from otelctx import scope

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping

    from opentelemetry._logs import LoggerProvider, LogRecord
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext

    from otelctx.mismatch import Place

    Handle = Callable[[logging.Handler, logging.LogRecord], Any]

EVENT: Final = "otelctx.mismatch"

_MARK: Final = "otel.event.name"  # OpenTelemetry's own name for it: its newer handler takes the event name from there
_HANDLERS: Final = ("opentelemetry.sdk._logs", "opentelemetry.instrumentation.logging.handler")

# By class: our `handle`, and the one that the class itself had, if it had one.
_patched: dict[type[logging.Handler], tuple[Handle, Handle | None]] = {}
_active = False


class _Mark(str):
    """The event's name, and on the way through `logging`: what is sent, and who has it (`id`s of providers)."""

    attributes: Mapping[str, Any]
    span_context: SpanContext | None
    sent: set[int]

    def __deepcopy__(self, memo: object) -> _Mark:
        return self  # a copy of the record is the same alert

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def emit(
    level: int,
    message: str,
    attributes: Mapping[str, Any],
    place: Place | None,
    context: Context | None,
    logger_provider: LoggerProvider | None = None,
) -> None:
    """Write one alert to the log.

    The standard library's record has the attributes with underscores for the dots, which every style of its formatters
    can name (`%(otelctx_key)s`), and the place of the departure as its place.

    Args:
        level: a level of `logging`.
        message: the text, complete.
        attributes: the alert's attributes, none of them None.
        place: where the hop departed, if that is known.
        context: has the span that the record belongs to; None: the current one.
        logger_provider: stands for the global one.

    Raises what a log handler raises. Thread-safe.
    """
    import logging

    mark = _Mark(EVENT)
    mark.attributes, mark.span_context, mark.sent = attributes, None, set()
    logger = logging.getLogger(scope.NAME)
    file, line, function = (place.file, place.line, place.function) if place else (__file__, 0, None)
    extra = {**{name.replace(".", "_"): value for name, value in attributes.items()}, _MARK: mark}
    record = logger.makeRecord(scope.NAME, level, file, line, message, (), None, function, extra)
    try:
        _patch_handlers()
        mark.span_context = _span_context(context)
        provider = logger_provider or _global_provider()
        if provider is not None:
            _send(provider, record, mark)
    finally:
        if logger.isEnabledFor(level):
            logger.handle(record)


def restore_handlers() -> None:
    """Take our hand off OpenTelemetry's handlers; where someone has wrapped us since, ours goes inert."""
    global _active
    _active = False
    for handler_class, (ours, own) in list(_patched.items()):
        if handler_class.__dict__.get("handle") is ours:
            del _patched[handler_class]
            if own is None:
                del handler_class.handle
            else:
                handler_class.handle = own  # type: ignore[method-assign,assignment]


def _patch_handlers() -> None:
    """Let each of OpenTelemetry's handler classes that is imported by now see the mark."""
    global _active
    _active = True
    for name in _HANDLERS:
        handler_class: type[logging.Handler] | None = getattr(sys.modules.get(name), "LoggingHandler", None)
        if handler_class is not None and handler_class not in _patched:
            own = handler_class.__dict__.get("handle")
            ours = _wrap(handler_class, own)
            if _patched.setdefault(handler_class, (ours, own))[0] is ours:  # else another thread was first
                handler_class.handle = ours  # type: ignore[method-assign,assignment]


def _wrap(handler_class: type[logging.Handler], own: Handle | None) -> Handle:
    # `handle` and not `emit`: it comes first, also in a subclass that has an `emit` of its own. The classes known today
    # inherit it, so that to undo is to delete.
    above: Any = super

    @wraps(handler_class.handle)
    def handle(self: logging.Handler, record: logging.LogRecord) -> Any:
        mark = record.__dict__.get(_MARK)
        if not _active or not isinstance(mark, _Mark):
            return own(self, record) if own is not None else above(handler_class, self).handle(record)
        if self.filter(record):
            provider = getattr(self, "_logger_provider", None) or _global_provider()
            if provider is not None:
                _send(provider, record, mark)
        return False

    return handle


def _send(provider: LoggerProvider, record: logging.LogRecord, mark: _Mark) -> None:
    if type(provider).__name__ == "ProxyLoggerProvider":  # stands for the global one, which may have been set since
        global_provider = _global_provider()
        if global_provider is None:
            return
        provider = global_provider
    if id(provider) in mark.sent:
        return
    provider.get_logger(scope.NAME, scope.VERSION).emit(_translate(record, mark))
    mark.sent.add(id(provider))


def _translate(record: logging.LogRecord, mark: _Mark) -> LogRecord:
    import logging

    from opentelemetry import trace
    from opentelemetry._logs import LogRecord, SeverityNumber

    error = record.levelno >= logging.ERROR
    span = trace.NonRecordingSpan(mark.span_context) if mark.span_context else trace.INVALID_SPAN
    return LogRecord(
        timestamp=int(record.created * 1e9),
        observed_timestamp=time.time_ns(),
        context=trace.set_span_in_context(span),
        severity_number=SeverityNumber.ERROR if error else SeverityNumber.WARN,
        severity_text="ERROR" if error else "WARN",
        body=record.getMessage(),
        attributes=dict(mark.attributes),
        event_name=EVENT,
    )


def _global_provider() -> LoggerProvider | None:
    """Find the provider that is set. Nobody sets one without importing the API, so nothing is imported here."""
    api: Any = sys.modules.get("opentelemetry._logs")
    get = getattr(api, "get_logger_provider", None)  # None while the module is half imported
    provider: LoggerProvider | None = None if get is None else get()
    return None if type(provider).__name__ == "ProxyLoggerProvider" else provider


def _span_context(context: Context | None) -> SpanContext | None:
    api: Any = sys.modules.get("opentelemetry.trace")
    get = getattr(api, "get_current_span", None)
    span_context: SpanContext | None = None if get is None else get(context).get_span_context()
    return span_context if span_context is not None and span_context.is_valid else None
