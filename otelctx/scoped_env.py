"""A context-local view of the environment variables that hold identity (``[scoped_env]``, off by default).

Applications mirror identity in ``os.environ``, which belongs to all sessions of the process at once. For *declared*
names (``scoped_env.names`` and the claim's variables), in a context that *has an identity* (a key that is bound, or a
shed claim), there are two modes:

* **observe**: a read whose value is not this context's, and two sessions that write one name, are alerts
  (`otelctx.env_races`); nothing is changed.
* **scope**: a write stays in the context, which reads it back, and so does the work that it starts. What was not
  written is what the context's identity says: a key's own value for an environment source of it, nothing where the key
  was minted or shed, nothing for the variables of a shed claim. All else is the real environment's.

A view belongs to (context, identity): what was written as session A is not there under B. An undo goes where the write
went (`otelctx.env_view`). A context without an identity reads and writes the real environment as ever, which is never
written from here: `read`, `write` and `clear` only say what is to be done, and the original methods of ``os.environ``
do it.

Out of reach: ``os.putenv``, ``os.unsetenv`` and whatever calls C's ``getenv``; ``os.exec*`` where nobody has forked.
Thread-safe: a context belongs to one thread at a time, and a view is never changed once it is set.
"""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from otelctx import env_view, flow, forks, spans
from otelctx.claim import SHED, Claim
from otelctx.env_view import REAL, VIEW, Decision, Draft, Place, Real, View, Write
from otelctx.keys import ContextVarSource, EnvSource

if TYPE_CHECKING:
    from otelctx.config import Config
    from otelctx.flow import Flow
    from otelctx.keys import Key, Registry

Outcome: TypeAlias = Literal["real", "kept", "absent"]
"""What is to be done about a write: it is for the real environment, it is done, or the name is not there to delete."""


class _CaseBlind(frozenset[str]):
    """Names, on a system where the environment does not tell ``path`` from ``PATH``."""

    def __contains__(self, name: object) -> bool:
        return frozenset.__contains__(self, name.upper() if isinstance(name, str) else name)


_Names: type[frozenset[str]] = _CaseBlind if os.name == "nt" else frozenset

names: frozenset[str] = frozenset()
"""The declared names; empty where the scoped environment is off. Replaced as a whole, never changed."""

mode: Literal["off", "observe", "scope"] = "off"
"""The mode in force; otelctx's own ``observe`` makes a ``scope`` an ``observe``, since it changes nothing."""

_claims: frozenset[str] = frozenset()
_behaviour_only: frozenset[str] = frozenset()
_parts: dict[str, str] = {}
_prefix: str | None = None
_hides = False
_predicate: str | None = None
_environ: Any = os.environ
_lock = _thread.RLock()  # re-entrant: a signal handler may interrupt the thread that holds it, and read a variable
forks.renew_in_child(globals(), "_lock", _thread.RLock)

_sources: tuple[Registry, dict[str, list[tuple[int, Key, EnvSource]]]] | None = None


def configure(settings: Config | None) -> None:
    """Take the mode and the declared names from `settings`; None: off.

    What contexts have written to names that were declared, and are so still, counts on: such a name is at no moment the
    real environment's.
    """
    global mode, names, _claims, _behaviour_only, _parts, _prefix, _hides, _predicate, _environ, _sources
    with _lock:
        env_races.forget()
        # Somebody has put a mapping of his own in its place: that one is not patched.
        if settings is None or settings.scoped_env.mode == "off" or type(os.environ) is not os._Environ:
            mode, names, _claims, _prefix, _sources = "off", frozenset(), frozenset(), None, None
            env_view.declare(())
            return
        _environ = os.environ
        claim, hide = settings.claim, settings.scoped_env.hide_claim
        prefix = None if claim.env_prefix is None else _normal(claim.env_prefix)
        given = _Names(map(_normal, settings.scoped_env.names))
        prefixed = {name for name in (*given, *names, *_real_names()) if prefix is not None and name.startswith(prefix)}
        behaviour_only = _Names(map(_normal, claim.behaviour_only))
        parts = {_normal(name): part for part, name in claim.env.items()}
        claims = _Names({*parts, *prefixed} - behaviour_only)
        declared = _Names({*given, *claims})
        env_view.declare(declared)
        # Each is replaced as a whole: whoever looks at them meanwhile finds a name that stays in the old and the new.
        _prefix, _behaviour_only, _parts, _claims, names, _sources = (
            prefix,
            behaviour_only,
            parts,
            claims,
            declared,
            None,
        )
        _hides, _predicate = bool(hide), claim.predicate if hide == "auto" else None
        mode = "observe" if settings.mode == "observe" else settings.scoped_env.mode


def carried(settings: Config) -> tuple[ContextVarSource, ...]:
    """What the registry carries for the scoped environment, besides the keys' own variables: the context's view."""
    if settings.scoped_env.mode != "scope" or settings.mode == "observe":
        return ()
    source = ContextVarSource("otelctx.env_view:VIEW", unset="otelctx.env_view:VIEW")
    source.var, source.unset = VIEW, None
    return (source,)


def _normal(name: str) -> str:
    return name.upper() if os.name == "nt" else name


def expand() -> None:
    """Declare each variable that the real environment has, and whose name has the claim's prefix."""
    if _prefix is not None:
        for name in _real_names():
            declares(name)


def _real_names() -> list[str]:
    return [_environ.decodekey(key) for key in list(_environ._data)]


def declares(name: str) -> bool:
    """Whether `name` is declared, or is so from now on because of the claim's prefix."""
    global names, _claims
    if name in names:
        return True
    if _prefix is None or not name.startswith(_prefix) or name in _behaviour_only:
        return False
    with _lock:
        if _prefix is None or not name.startswith(_prefix) or name in names:
            return name in names  # there is another installation
        env_view.declare_too(name)
        _claims = _Names({*_claims, name})
        names = _Names({*names, name})
    return True


def real(name: str) -> str | None:
    """What the real environment says."""
    value = _environ._data.get(_environ.encodekey(name))
    return None if value is None else str(_environ.decodevalue(value))


def data() -> object:
    """The mapping that is the process's environment, by which ``os.environ`` and ``os.environb`` are told."""
    return _environ._data


class _RealEnvironment(Mapping[str, str]):
    def __getitem__(self, name: str) -> str:
        value = real(name)
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(_real_names())

    def __len__(self) -> int:
        return len(_environ._data)


_real_environment: Final = _RealEnvironment()


def process() -> Mapping[str, str]:
    """The process's real environment, to look at: whatever the current context sees in ``os.environ``."""
    return os.environ if mode == "off" else _real_environment


def place_of(name: str, now: Flow) -> Place:
    """Where the flow `now` writes `name`: its identity, or the real environment where it has none."""
    if now.claim != SHED and not any(now.values):
        return None
    # A claim that is shed or granted within a session is no other session: only its own variables are another's.
    return (now.values, now.claim) if name in _claims else (now.values,)


def implied(name: str, now: Flow) -> Decision:
    """What an identity, which `now` has, says of `name` by itself."""
    if name in _claims:
        # A host that isolates itself sees its environment whole; one of a version that has no such module does not.
        if not _hides or (_predicate is not None and _predicate.partition(":")[0] in sys.modules):
            return REAL
        if now.claim == SHED:
            return None
        part = _parts.get(name)
        if isinstance(now.claim, Claim) and part is not None:
            value: str | None = getattr(now.claim, part)
            return value
        return REAL
    decision: Decision = REAL
    for position, key, source in sources_of(name, now.registry):
        bound = now.values[position]
        if bound is not None:
            decision = None if is_minted(key, now, bound) else bound
        elif spans.is_cleared(now, key.name) or _is_nobodys(key, source):
            decision = None
    return decision


def is_minted(key: Key, now: Flow, value: str) -> bool:
    """Whether the `value` of `key` is a fresh one, with which the application's places are not filled."""
    binding = None if now.state is None else now.state.bound.get(key.name)
    return binding is not None and binding.minted and binding.value == value


def _is_nobodys(key: Key, source: EnvSource) -> bool:
    # As in a child of this context: a value counts for the whole process only if sessions cannot have left it there.
    value = real(source.path)
    return not value or not source.reading(value) or (key.ever_bound and value != source.initial)


def is_claims(name: str) -> bool:
    """Whether the declared variable `name` is the claim's."""
    return name in _claims


def sources_of(name: str, registry: Registry) -> list[tuple[int, Key, EnvSource]]:
    """The keys of which `name` is an environment source, with their positions in `registry`."""
    global _sources
    if _sources is None or _sources[0] is not registry:
        by_name: dict[str, list[tuple[int, Key, EnvSource]]] = {}
        for position, key in enumerate(registry.keys):
            for source in key.ambient:
                if isinstance(source, EnvSource):
                    by_name.setdefault(_normal(source.path), []).append((position, key, source))
        _sources = registry, by_name
        return by_name.get(name, [])
    return _sources[1].get(name, [])


def read(name: str) -> Decision:
    """What the current context sees in the declared variable `name`.

    `REAL` where the real environment says it: always in observe, where this may raise an alert.
    """
    if mode == "observe":
        env_races.was_read(name)
        return REAL
    now = flow.peek()
    place = place_of(name, now)
    if place is None:
        return REAL
    decision = env_view.decision(place, name)
    return implied(name, now) if decision is REAL else decision


def written(view: object, now: Flow) -> dict[str, str | None]:
    """What `view` decides where the flow `now` writes: for work that goes where no view can go."""
    if not isinstance(view, View):
        return {}
    places = {name: view.decided.get(place_of(name, now), {}) for name in names}
    return {name: decided[name] for name, decided in places.items() if name in decided and env_view.counts(name, view)}


def view_of(decisions: Mapping[str, str | None], now: Flow) -> View | None:
    """A view with the `decisions` of `written`, where the flow `now` writes; None where there are none."""
    decided: dict[Place, dict[str, str | None]] = {}
    for name, value in decisions.items():
        place = place_of(name, now)
        if place is not None and declares(name):
            decided.setdefault(place, {})[name] = value
    return View(env_view.epoch, decided, {}, {}, None) if decided else None


def overlay() -> dict[str, str | None]:
    """Each declared name in which the current context sees something else than is real: its value, or None."""
    if mode != "scope":
        return {}
    seen = ((name, read(name)) for name in names)
    return {name: value for name, value in seen if not isinstance(value, Real) and value != real(name)}


def looked() -> dict[str, str | None]:
    """`overlay`, for a look at the whole environment: what was seen may be put back one day, from elsewhere."""
    seen = overlay()
    if seen:
        now, draft = flow.peek(), Draft()
        found = {name: (place_of(name, now), value) for name, value in seen.items()}
        if draft.looked != found:
            draft.looked = found
            _keep(draft)
    return seen


def _keep(draft: Draft) -> None:
    draft.keep()
    flow.here()  # the view is part of what the flow was derived from: derive it once, not at each look


def _seen(name: str, place: Place, now: Flow, draft: Draft) -> str | None:
    decision: Decision = REAL
    if place is not None:
        decision = draft.decision(place, name)
        if decision is REAL:
            decision = implied(name, now)
    return real(name) if isinstance(decision, Real) else decision


def write(name: str, value: str | None) -> Outcome:
    """Write the declared variable `name`, or delete it where `value` is None, as the current context."""
    if mode != "scope":
        env_races.will_be_written(name, value)
        return "real"
    now, draft = flow.peek(), Draft()
    here = place_of(name, now)
    outcome = _write(name, value, here, now, draft)
    if outcome != "absent":
        _keep(draft)
    return outcome


def _write(name: str, value: str | None, here: Place, now: Flow, draft: Draft) -> Outcome:
    seen, actual = _seen(name, here, now, draft), real(name)
    undone = draft.undone_by(here, name, value, seen=seen, real=actual)
    if undone is not None:
        left = _seen(name, here, now, draft)
        if undone.place is None:
            left = value if left == actual else left  # the real environment's, which is about to change
        if left != value and (value is None or (undone.place == here and undone.before == value)):
            draft.decide(here, name, value)  # what was there before has changed, or is implied here
        return "real" if undone.place is None else "kept"
    if value is None:
        newest = draft.top(name)
        if newest is not None and newest.place not in (None, here) and (seen is None or here is None):
            draft.take_back(name)
            return "kept"
        if seen is None:
            return "absent"
    if here is None:
        draft.push(name, Write(None, actual, REAL, value))
        return "real"
    draft.push(name, Write(here, seen, draft.decision(here, name), value))
    draft.decide(here, name, value)
    return "kept"


def clear() -> set[str]:
    """Clear the declared variables as the current context sees them; returns those to delete from the real environment.

    ``mock.patch.dict`` clears at its exit, to put everything back: what a bracket that was entered at another place is
    going to put back there is not deleted here.
    """
    if mode != "scope":
        for name in names:
            if real(name) is not None:
                write(name, None)
        return set(names)
    now, draft = flow.peek(), Draft()
    doomed = set()
    for name in names:
        here = place_of(name, now)
        if here is None:
            _recall(name, draft)
        if _clear(name, here, now, draft):
            doomed.add(name)
    draft.looked = {}
    _keep(draft)
    return doomed


def _recall(name: str, draft: Draft) -> None:
    """Where the context has looked at the whole environment as somebody, what it saw may be put back now."""
    place, value = draft.looked.get(name, (None, None))
    newest = draft.top(name)
    if place is not None and (newest is None or newest.place is None):
        draft.push(name, Write(place, value, draft.decision(place, name), value))


def _clear(name: str, here: Place, now: Flow, draft: Draft) -> bool:
    actual = real(name)
    if here is None:
        newest = draft.top(name)
        if newest is not None and newest.place is not None:
            while newest is not None and newest.place is not None and newest.before is None:
                draft.take_back(name)
                newest = draft.top(name)
            return False
        if actual is not None:
            draft.push(name, Write(None, actual, REAL, None, cleared=True))
        return actual is not None
    undone = draft.undone_by(here, name, None, seen=_seen(name, here, now, draft), real=actual)
    if undone is not None and undone.place is None:
        if isinstance(implied(name, now), str):
            draft.decide(here, name, None)
        return True
    seen, found = _seen(name, here, now, draft), draft.decision(here, name)
    newest = draft.top(name)
    is_gone = newest is not None and newest.place == here and newest.after is None
    if seen is not None or (undone is None and actual is not None and not is_gone):
        draft.push(name, Write(here, seen, found, None, cleared=True, real=REAL if actual is None else actual))
    if seen is not None:
        draft.decide(here, name, None)
    return False


# Last, and as a module: it imports this one.
from otelctx import env_races  # noqa: E402
