"""Faults of ours: counted, logged once, and never anybody else's.

A fault may show at the worst moment (inside an import hook, while `logging` itself is half imported, as the interpreter
ends), so whatever cannot be said now is kept and said at the next occasion.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from otelctx import metrics, redaction, scope
from otelctx.interruption import pass_on
from otelctx.reentry import Reentry

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator

REMEMBERED: Final = 256
"""How many different faults are remembered as logged; past that, the oldest may be logged again."""

_SETTING: Final = "a setting is wrong and left out"

_Fault = tuple[str, str, str]
"""The component, the type of the exception (or `_SETTING`: the operator's mistake, not ours) and the message."""

_logged: OrderedDict[_Fault, None] = OrderedDict()
_kept: deque[tuple[_Fault, BaseException | None]] = deque(maxlen=64)
_logging_it = Reentry("internal_error")


def internal_error(component: str, exc: BaseException | None = None, message: str = "") -> None:
    """Report a fault of otelctx: counted each time, logged once for each component, type of exception and message.

    The record is a WARNING of logger `otelctx` with the exception's traceback; where `telemetry.values` is not
    `plain`, with its type alone, since an exception's text may hold a key. What cannot be logged yet is kept (64 at
    most).

    Args:
        component: the part of otelctx, a few words that are the same each time (an attribute of the metric).
        exc: what was raised, if anything was.
        message: what could not be done.

    Raises nothing but what a signal handler of the application raised while otelctx was at work: that is no fault, and
    goes on to whom it is meant for (`otelctx.interruption`). Thread-safe.
    """
    if exc is not None:
        pass_on(exc)
    _tell((component, type(exc).__qualname__ if exc is not None else "", message), exc)


def wrong_setting(component: str, message: str) -> None:
    """Report a setting that is wrong or leads nowhere, as `internal_error` reports a fault: counted, and logged once.

    Args:
        component: the part of otelctx that does without it.
        message: which setting, and what is wrong with it.
    """
    _tell((component, _SETTING, message), None)


def _tell(fault: _Fault, exc: BaseException | None) -> None:
    try:
        metrics.error_counted(fault[0])
        if fault in _logged:
            return
        _logged[fault] = None
        while len(_logged) > REMEMBERED:
            _logged.popitem(last=False)
        _kept.append((fault, exc))
        log_kept()
    except Exception as failure:  # nothing is left to tell it to
        pass_on(failure)


def log_kept() -> None:
    """Log the faults that could not be logged when they happened, if it is possible now. Never raises; thread-safe."""
    if not _kept or _logging_it.active():
        return
    mark = _logging_it.enter()
    try:
        logger = _logger()
        if logger is not None:
            for _ in range(len(_kept)):  # not until it is empty: a handler may make a new fault of each
                _log(logger, *_kept.popleft())
    except Exception as fault:  # a log handler that raises: the rest waits for the next occasion
        pass_on(fault)
    finally:
        _logging_it.leave(mark)


@contextmanager
def unlogged() -> Iterator[None]:
    """Within the block faults are kept for the next occasion: the caller holds a lock that logging may want."""
    mark = _logging_it.enter()
    try:
        yield
    finally:
        _logging_it.leave(mark)


def _log(logger: logging.Logger, fault: _Fault, exc: BaseException | None) -> None:
    component, kind, message = fault
    if kind == _SETTING:
        logger.warning("otelctx: %s: %s", kind, message)
        return
    text = f"otelctx: internal error in {component}; the application's work goes on"
    detail = ": ".join(part for part in (message, kind) if part)
    if exc is None or redaction.values() != "plain":
        logger.warning("%s (%s)", text, detail)
    else:
        logger.warning("%s (%s)", text, detail, exc_info=exc)


def _logger() -> logging.Logger | None:
    module: Any = sys.modules.get("logging")  # not imported anew: another thread may be at it, and wait for this one
    if module is None:
        import logging as module
    get = getattr(module, "getLogger", None)  # None while the module is half imported
    logger: logging.Logger | None = None if get is None else get(scope.NAME)
    return logger


def forget() -> None:
    """Forget the faults that were logged, so that they would be logged again, and those that wait."""
    _logged.clear()
    _kept.clear()
