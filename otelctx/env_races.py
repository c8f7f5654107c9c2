"""The scoped environment's *observe*: which session wrote a variable, and who reads what is not its own.

Nothing is changed. A read is told of where the identity of the context says another value (`foreign`), or none at all
because its key or claim was taken away (`leaked`); of a variable that is no source of a key, where the value is another
session's. A write is told of (`raced`) where another session's value still stands. A name that is not there says
nothing. Each such statement is made once for an identity and pair of values.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from otelctx import alerts, flow, place, scoped_env, spans
from otelctx.bounded import make_room
from otelctx.claim import SHED
from otelctx.env_view import Place
from otelctx.mismatch import Mismatch

if TYPE_CHECKING:
    from otelctx.flow import Flow
    from otelctx.mismatch import Reason

AT_MOST: Final = 1024
"""How many writes, and how many statements, are remembered: the newest."""


class _Written(NamedTuple):
    """The write of a session that stands in the real environment."""

    place: Place
    value: str | None
    base: str | None
    """What was there before any session wrote: who puts it back has tidied up."""


_last: dict[str, _Written] = {}
_own: dict[tuple[Place, str], str] = {}
"""What each session wrote last."""
_told: dict[tuple[Reason, str, Place, str | None, str | None], None] = {}


def was_read(name: str) -> None:
    """State what a read of `name` in the current context shows."""
    observed = scoped_env.real(name)
    now = flow.peek()
    here = scoped_env.place_of(name, now)
    writer = _last.get(name)
    if writer is not None and writer.value != observed:
        writer = None
    if observed is None or here is None or (writer is not None and writer.place == here):
        return
    implied = scoped_env.implied(name, now)
    if isinstance(implied, str):
        if implied != observed:
            _tell("foreign", name, here, implied, observed, now, writer)
    elif implied is None:
        if _is_taken_away(name, now):
            _tell("leaked", name, here, None, observed, now, writer)
    elif writer is not None:
        _tell("foreign", name, here, _own.get((here, name)), observed, now, writer)


def will_be_written(name: str, value: str | None) -> None:
    """State what a write of `name` in the current context shows (None: a deletion), and remember it."""
    now, found = flow.peek(), scoped_env.real(name)
    here = scoped_env.place_of(name, now)
    writer = _last.pop(name, None)
    if writer is not None and writer.value != found:
        writer = None
    if here is None:
        return
    if writer is not None and writer.place != here:
        _tell("raced", name, here, writer.value, value, now, writer)
    base = found if writer is None else writer.base
    if value == base:
        _own.pop((here, name), None)
        return
    _last[name] = _Written(here, value, base)
    if value is not None:
        make_room(_own, AT_MOST)
        _own[here, name] = value


def forget() -> None:
    """Forget who wrote what, and what was told."""
    _last.clear()
    _own.clear()
    _told.clear()


def _is_taken_away(name: str, now: Flow) -> bool:
    keys = [key for _, key, _ in scoped_env.sources_of(name, now.registry)]
    return now.claim == SHED if not keys else any(spans.is_cleared(now, key.name) for key in keys)


def _key_of(name: str, now: Flow, writer: _Written | None) -> str:
    """The key that a statement about `name` is about: its source's, or the first that tells the two sessions apart."""
    if scoped_env.is_claims(name):
        return "claim"
    keys = [key for _, key, _ in scoped_env.sources_of(name, now.registry)]
    if keys:
        return keys[0].name
    theirs = () if writer is None or writer.place is None else writer.place[0]
    differing = (
        key.name for key, one, other in zip(now.registry.keys, now.values, theirs, strict=False) if one != other
    )
    return next(differing, now.registry.keys[0].name)


def _tell(
    reason: Reason,
    name: str,
    here: Place,
    expected: str | None,
    observed: str | None,
    now: Flow,
    writer: _Written | None,
) -> None:
    statement = (reason, name, here, expected, observed)
    if statement in _told or alerts.delivering() or _by_otelctx():
        return
    make_room(_told, AT_MOST)
    _told[statement] = None
    key, where = _key_of(name, now, writer), place.departure()
    alerts.deliver(Mismatch(key, reason, expected, observed, f"env:{name}", "observed", place=where))


def _by_otelctx() -> bool:
    """Whether otelctx itself looks at the variable: it has statements of its own to make."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in _PASSED_ON:
            return isinstance(name, str) and name.partition(".")[0] in ("otelctx", "otelctx_instrumentation")
        frame = frame.f_back
    return False


_PASSED_ON: Final = frozenset(
    {__name__, "otelctx.scoped_env", "otelctx_instrumentation.environ", "os", "_collections_abc", "collections.abc"}
)
