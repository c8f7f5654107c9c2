"""Owners: whose a process, a thread, a future, a scheduled job or any other handle is.

When background work completes, its result is routed by a session key that something looks up *then*: in a registry that
another turn may have overwritten, in the environment, in whatever context the completion runs. An owner is what was
true when the work was spawned, kept where nothing of that reaches.

    record_owner(job)                               # by hand; processes, threads and futures are recorded as they start
    owner_of(job).session                           # "slack:C1"
    session = resolve_owner(job, registry[job.id])  # "slack:C1" all the same, and an alert if the registry was wrong

A handle is known by what it is, never by what it says: a record hangs on the object itself, as a weak reference of a
type of its own, and is found through the object. So a handle may be unhashable, or equal to another one; it is not kept
alive; its record goes when it does; and one that later lives at the same address has none. Nothing here takes a lock or
runs code of the handle's type, so all of it may be called from finalizers, signal handlers and forked children.

Plain values (a job's id) cannot tell when they are over. They are kept in a table of the `VALUES` that were used last.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from weakref import getweakrefs, ref

from otelctx import alerts, faults, flow, ownership, place
from otelctx.claim import SHED, Claim, ClaimState
from otelctx.keys import is_uuid
from otelctx.mismatch import Mismatch
from otelctx.redaction import shown
from otelctx.reentry import Reentry

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from otelctx.flow import Flow

C = TypeVar("C", bound="str | None")

VALUES: Final = 100_000
"""How many plain values are remembered; past that, the one that was longest not recorded or looked up goes."""
LONGEST: Final = 1024
"""The longest plain value: characters of a string, bytes of bytes or of an integer; 16 parts of a tuple."""

_INTERNED: Final = 1024


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a handle is: each key's value (those that had one), and the claim, at the moment of the spawn.

    `claim` is None where there was none (or where it is not known), ``"shed"`` for a context that had shed it.
    Immutable. Raises `TypeError` for keys that are not strings, and for a claim that is none.
    """

    keys: Mapping[str, str]
    claim: ClaimState = None

    def __post_init__(self) -> None:
        if not all(isinstance(part, str) for pair in self.keys.items() for part in pair):
            raise TypeError("otelctx: the keys of an Owner are strings, and so are their values")
        if not (self.claim is None or self.claim == SHED or isinstance(self.claim, Claim)):
            raise TypeError(f"otelctx: the claim of an Owner is a Claim, 'shed' or None, not {self.claim!r}")
        # Of a subclass of str the characters alone: it may carry anything, and live as long as the handle.
        plain = {str.__str__(name): str.__str__(value) for name, value in self.keys.items() if value}
        object.__setattr__(self, "keys", MappingProxyType(plain))

    @property
    def session(self) -> str | None:
        """The session key; None where there was none."""
        return self.keys.get("session")

    def __hash__(self) -> int:
        return hash((frozenset(self.keys.items()), self.claim))

    def __repr__(self) -> str:
        keys = {name: shown(value) for name, value in self.keys.items()}
        return f"Owner(keys={keys!r}, claim={self.claim!r})"


class _Record(ref[object]):
    """A handle's record, which is a weak reference to it. Kept alive by `_alive`, and found with `getweakrefs`."""

    __slots__ = ("owner", "told")

    owner: Owner
    told: str | None
    """The candidate that was last reported: one cause, one alert."""

    # A set of these must not ask the handles for their hash, nor whether they are equal.
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class _Value:
    """A plain value's record."""

    __slots__ = ("owner", "told")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.told: str | None = None


_VALUE_TYPES: Final = (str, int, bytes, tuple)
_Plain: TypeAlias = "str | int | tuple[object, ...]"

NOTE: Final = "_otelctx_owner"
"""The attribute in which a future has its owner."""

_alive: Final[set[_Record]] = set()
_let_go: Final = _alive.discard
_values: Final[OrderedDict[_Plain, _Value]] = OrderedDict()
_NOBODY: Final = Owner({})
_asking: Final = Reentry("owner")


# --- recording -------------------------------------------------------------------------------------------------------


def record_owner(handle: object, owner: Owner | str | None = None) -> None:
    """Remember whose `handle` is.

    Args:
        handle: any object that can be weakly referenced (known by its identity), or a plain value: a string, an
            integer, bytes, a UUID, or a tuple of these. A value that is used again for something else (a process id)
            keeps its first owner, like any handle: give the new one explicitly, or `forget_owner` the old one.
        owner: an `Owner`, or a session key; it takes the place of an earlier one. None: the current context's keys and
            claim, unless the handle has an owner.

    Raises `TypeError` for a handle that is neither, and for an owner that is none of these; `ValueError` for a plain
    value that is too long to be an id (`LONGEST`). Thread-safe.
    """
    if owner is None:
        if flow.registry.pending:
            flow.discover()
        _record(handle, _of(flow.peek()), explicit=False)
    elif isinstance(owner, Owner):
        _record(handle, owner, explicit=True)
    elif isinstance(owner, str):
        _record(handle, _of_session(str.__str__(owner)), explicit=True)
    else:
        raise TypeError(f"otelctx: an owner is a session key or an Owner, not {type(owner).__name__}")


def record_spawn(handle: object, now: Flow) -> bool:
    """Record the owner of a handle that was spawned as `now`; whether that is new.

    For instrumentations: on the way of every future. What nobody spawned (no key, no claim) gets no record, so that one
    can be made by hand. Raises `TypeError` for a handle that cannot be weakly referenced, plain values among them.
    """
    owner = _of(now)
    return owner is not _NOBODY and _record_object(handle, owner, explicit=False)


def of(now: Flow) -> Owner | None:
    """The owner of what is spawned as `now`; None where that is nobody."""
    owner = _of(now)
    return None if owner is _NOBODY else owner


def forget_owner(handle: object) -> None:
    """Forget whose `handle` is, if that is known: a plain value may be used again. Never raises; thread-safe."""
    if _is_value(handle):
        key = _plain(handle)
        if key is not None:
            _values.pop(key, None)
        return
    getattr(handle, "__dict__", {}).pop(NOTE, None)
    for record in _records(handle):
        _alive.discard(record)


def _records(handle: object) -> list[_Record]:
    """The records that hang on `handle`, the youngest first; not one that another thread is just making."""
    return [record for record in getweakrefs(handle) if type(record) is _Record and hasattr(record, "owner")]


def _record(handle: object, owner: Owner, *, explicit: bool) -> None:
    if _is_value(handle):
        _record_value(handle, owner, explicit)
    else:
        _record_object(handle, owner, explicit)


def _record_object(handle: object, owner: Owner, explicit: bool) -> bool:
    if not explicit and (_records(handle) or _noted(handle) is not None):
        return False
    record = _new_record(handle, owner)
    if explicit:
        # After the new one is there, so that no reader finds none.
        for older in _records(handle):
            if older is not record:
                _alive.discard(older)
    return True


def _new_record(handle: object, owner: Owner) -> _Record:
    try:
        record = _Record(handle, _let_go)
    except TypeError:
        raise TypeError(
            f"otelctx: the owner of a {type(handle).__name__} cannot be recorded: it is no plain value, and cannot be "
            "weakly referenced; record its id, or an object that stands for it"
        ) from None
    record.told = None
    record.owner = owner  # last: from here on it is found
    _alive.add(record)
    return record


def _record_value(value: object, owner: Owner, explicit: bool) -> None:
    key = _plain(value)
    if key is None and isinstance(value, tuple):
        raise TypeError(
            "otelctx: the owner of a tuple can be recorded where it has a few plain values in it, and no more"
        )
    if key is None:
        raise ValueError(f"otelctx: a {type(value).__name__} that is longer than {LONGEST} is no id")
    fresh = _Value(owner)
    record = _values.setdefault(key, fresh)
    if record is not fresh and explicit:
        _values[key] = fresh
    _touch(key)
    while len(_values) > VALUES:
        try:
            _values.popitem(last=False)
        except KeyError:  # another thread was faster
            break


def _touch(key: _Plain) -> None:
    try:
        _values.move_to_end(key)
    except KeyError:  # it has gone in between
        pass


# --- finding ---------------------------------------------------------------------------------------------------------


def owner_of(handle: object) -> Owner | None:
    """Whose `handle` is; None where that was never recorded. Never raises; thread-safe."""
    record = _find(handle)
    return None if record is None else record.owner


def resolve_owner(handle: object, candidate: C) -> str | C:
    """Which session key to use for what `handle` has completed, where the application would use `candidate`.

    Where the recorded owner has a session and it is not the candidate, the owner's is returned, in every mode, and an
    alert is raised: ``foreign`` (``lost`` where the candidate is empty), action ``rerouted``, once per handle and
    candidate. In every other case (no record, an owner without a session, agreement) the candidate is returned as it
    is. Never raises; thread-safe.
    """
    try:
        record = _find(handle)
        session = None if record is None else record.owner.session
        if record is None or session is None or not (candidate is None or isinstance(candidate, str)):
            return candidate
        if candidate is not None and str.__eq__(session, candidate):
            return candidate
        _tell(record, session, candidate or None)
    except Exception as exc:
        faults.internal_error("owners", exc, "an owner could not be resolved")
        return candidate
    return session


def _tell(record: _Record | _Value, owner: str, candidate: str | None) -> None:
    told, record.told = record.told, candidate or ""
    mismatch = Mismatch(
        "session",
        "foreign" if candidate else "lost",
        owner,
        None if candidate is None else str.__str__(candidate),
        None,
        "rerouted",
        place=place.departure(),
    )
    alerts.deliver(mismatch, _current_span(), count_only=told == record.told)


def _current_span() -> Span | None:
    # Not by `runtime`, which knows OpenTelemetry's context where otelctx is installed or has bound something.
    trace: Any = sys.modules.get("opentelemetry.trace")
    get = getattr(trace, "get_current_span", None)  # None while the module is half imported
    return None if get is None else get()


def _find(handle: object) -> _Record | _Value | None:
    if _is_value(handle):
        key = _plain(handle)
        if key is None:
            return None
        value = _values.get(key)
        if value is not None:
            _touch(key)
        return value
    records = _records(handle)
    return records[-1] if records else _noted(handle)  # of two that raced, the first counts


def _noted(handle: object) -> _Record | None:
    """The record of a handle that has its owner with it: a future, which is spawned where a weak reference is dear."""
    owner = getattr(handle, "__dict__", {}).get(NOTE)
    if type(owner) is not Owner:
        return None
    return _new_record(handle, owner)


def _is_value(handle: object) -> bool:
    # By its type alone: `isinstance` asks an object for its `__class__`, which of a proxy is anybody's code.
    kind = type(handle)
    if issubclass(kind, _VALUE_TYPES):
        return kind is not bool
    return is_uuid(kind)


def _plain(value: object) -> _Plain | None:
    """`value` as a key that holds nothing else; None where it is too long, or is no plain value after all."""
    if isinstance(value, tuple):
        if tuple.__len__(value) > 16:
            return None
        flat = [part for part in tuple.__iter__(value) if _is_value(part) and not issubclass(type(part), tuple)]
        parts = [key for key in map(_plain, flat) if key is not None]
        return (tuple, *parts) if len(parts) == tuple.__len__(value) else None
    if isinstance(value, str):
        text = str.__str__(value)
        return text if len(text) <= LONGEST else None
    if isinstance(value, int):
        number = int.__int__(value)
        return number if number.bit_length() <= LONGEST * 8 else None
    if isinstance(value, bytes):
        # With its type: a string and bytes may have one hash, and Python warns where they are compared.
        return (bytes, bytes(memoryview(value))) if bytes.__len__(value) <= LONGEST else None
    return "uuid", str(value)


# --- the current context's owner -------------------------------------------------------------------------------------

_by_flow: Final[dict[int, Owner]] = {}


def _of(now: Flow) -> Owner:
    """The owner that `now` says; `_NOBODY` where it says nothing."""
    if now.claim is None:
        claim = _claim_of_process()
        if claim is not None:
            return _interned(_keys(now), claim)
    # All flows with one serial have the same values and claim.
    owner = _by_flow.get(now.serial)
    if owner is None:
        owner = _interned(_keys(now), now.claim)
        if len(_by_flow) >= _INTERNED:
            _by_flow.clear()
        _by_flow[now.serial] = owner
    return owner


def _keys(now: Flow) -> tuple[tuple[str, str], ...]:
    return tuple((key.name, value) for key, value in zip(now.registry.keys, now.values, strict=True) if value)


@lru_cache(1)
def _encoded(name: str) -> object:
    encode = getattr(os.environ, "encodekey", None)
    return encode(name) if encode is not None else name


def _claim_of_process() -> ClaimState:
    task = ownership.task_variable()
    if task is None:
        return None
    # Nearly every process is nobody's worker, and `os.environ` takes microseconds to say that a variable is not there:
    # as long as a hop. So the plain environment's own table is asked first (a view of it is not).
    if type(os.environ) is os._Environ and _encoded(task) not in getattr(os.environ, "_data", (_encoded(task),)):
        return None
    held = ownership.of_process()
    # A predicate of the application's that spawns something itself would ask for ever.
    if held is None or _asking.active():
        return held
    token = _asking.enter()
    try:
        return SHED if ownership.application_says() is False else held
    finally:
        _asking.leave(token)


@lru_cache(_INTERNED)
def _interned(keys: tuple[tuple[str, str], ...], claim: ClaimState) -> Owner:
    """One object for all handles of one owner."""
    return Owner(dict(keys), claim) if keys or claim is not None else _NOBODY


@lru_cache(_INTERNED)
def _of_session(session: str) -> Owner:
    return Owner({"session": session})
