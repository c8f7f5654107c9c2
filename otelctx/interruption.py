"""An exception that is no fault of ours, and not ours to contain: a signal handler of the application raised it.

Time limits are raised so, in whatever line the main thread is at (those of RQ and Celery, of test runners, and
`signal.alarm` by hand), and as an `Exception` more often than not. So whatever contains an `Exception` lets these pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

_VARARGS: Final = 0x04
"""The flag of a code object that takes ``*args``; `inspect`, which names it, is not imported for it."""


def pass_on(exc: BaseException) -> None:
    """Raise `exc` again if a signal handler raised it; thread-safe.

    A handler is told by what it is given: the frame that it interrupted, which is the one below it in the traceback
    (a function of `sys.settrace` is given it as well, and may interrupt just so).
    What `signal.getsignal` says does not tell: a handler may have put the former one back before it raises.
    """
    traceback = exc.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        interrupted, traceback = traceback.tb_frame, traceback.tb_next
        if _was_given(traceback.tb_frame, interrupted):
            raise exc


def _was_given(frame: FrameType, argument: object) -> bool:
    code, held = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    given = [held.get(name) for name in code.co_varnames[:count]]
    if code.co_flags & _VARARGS:
        given += held.get(code.co_varnames[count], ())
    return any(value is argument for value in given)
