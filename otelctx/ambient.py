"""Reading the places that only say whose work this is: getters and environment variables.

A getter is code of the application, called at a moment that its author did not foresee: it may raise, and it may wait
for a lock that the departing thread holds. So it is asked on a thread of its own, in a copy of the current context,
and the work goes on without an answer when there is none in time.
"""

from __future__ import annotations

import _thread
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Final

from otelctx import faults
from otelctx.keys import EnvSource, GetterSource, Key, Source, UnresolvedError, may_still_have

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import Token

    from otelctx.keys import Reading

PATIENCE: Final = 0.5
"""Seconds that a getter may take. One that takes longer is not asked again."""

_given_up: set[str] = set()

ASKING: Final[ContextVar[bool]] = ContextVar("otelctx.asking", default=False)
"""Whether the current context is a getter's, which is being asked: what it hops to must not ask it again."""


def is_asking() -> bool:
    """Whether a getter is being asked in the current context."""
    return ASKING.get()


def quietly(wanted: bool) -> Token[bool] | None:
    """Ask nobody in the current context, if that is `wanted`; returns what undoes it."""
    return ASKING.set(True) if wanted else None


def read(source: GetterSource | EnvSource) -> Reading:
    """What `source` says in the current context; None where it cannot be asked. Never raises."""
    if isinstance(source, EnvSource):
        return source.read()
    if source.label in _given_up or ASKING.get():
        return None
    try:
        function = source.function()
        return None if function is None else source.reading(_ask(source, function))
    except UnresolvedError as exc:
        if not may_still_have(source.path):
            faults.wrong_setting("getter", f"{source.label} is not there: {exc}")
    except Exception as exc:
        faults.internal_error("getter", exc, f"{source.label} could not be asked")
    return None


def _ask(source: Source, function: Callable[[], object]) -> object:
    answered = _thread.allocate_lock()
    answered.acquire()
    answer: list[object] = []
    raised: list[BaseException] = []
    context = copy_context()
    context.run(ASKING.set, True)

    def ask() -> None:
        try:
            answer.append(context.run(function))
        except BaseException as exc:  # what ends a thread ends this one, and not the work
            raised.append(exc)
        finally:
            answered.release()

    # Not a `threading.Thread`: nothing of it is patched, named or joined, and none of ours may hop.
    _thread.start_new_thread(ask, ())
    if not answered.acquire(timeout=PATIENCE):
        _given_up.add(source.label)
        raise TimeoutError(f"no answer within {PATIENCE} s; it is not asked again")
    if raised:
        if not isinstance(raised[0], Exception):
            raise RuntimeError("it would have ended the thread") from raised[0]
        raise raised[0]
    return answer[0]


def value(key: Key) -> tuple[str, str] | None:
    """What the key's getters and environment variables say, strongest first, and which of them it comes from.

    A getter that only hands on what a weaker source holds is not where the value came from: the last one that says the
    same is named.
    """
    found: tuple[str, str] | None = None
    for source in key.ambient:
        reading = read(source)
        if reading and (found is None or reading == found[0]):
            found = (reading, source.label)
    return found


def readings(key: Key) -> Iterator[tuple[Source, Reading]]:
    """Each getter's and environment variable's own answer."""
    for source in key.ambient:
        yield source, read(source)


def forget() -> None:
    """Ask every getter again."""
    _given_up.clear()
