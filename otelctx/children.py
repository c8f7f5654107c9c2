"""What a child process's environment says: this context's keys, and whether the child holds the claim.

Only the environment that the child is given is changed; the process's own is never written. An environment that the
caller passed by itself is changed only in a declared variable that still equals the process's value: whatever differs
was set there on purpose.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from otelctx import alerts, binding, border, faults, flow, mode, ownership, policy, scoped_env, spans
from otelctx import place as places
from otelctx.claim import Claim, Inherited
from otelctx.keys import EnvSource
from otelctx.mismatch import Mismatch
from otelctx.ownership import MARKER
from otelctx.tokens import give_back

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otelctx.config import Config
    from otelctx.mismatch import Reason

_SPAWNING: Final[ContextVar[bool]] = ContextVar("otelctx.spawning", default=False)

_prefix: str | None = None
_behaviour_only: frozenset[str] = frozenset()
_parts: dict[str, str] = {}
_scoped: frozenset[str] = frozenset()
_carrier = False


def configure(settings: Config) -> None:
    """Take the claim's variables, and whether children get a carrier, from `settings`."""
    global _prefix, _behaviour_only, _parts, _scoped, _carrier
    _prefix = settings.claim.env_prefix
    _behaviour_only = frozenset(settings.claim.behaviour_only)
    _parts = dict(settings.claim.env)
    _scoped = frozenset(settings.scoped_env.names)
    _carrier = settings.subprocess.carrier


@contextmanager
def spawning() -> Iterator[None]:
    """Within the block, children are started by the dispatcher: they keep the claim that they are given."""
    token = _SPAWNING.set(True)
    try:
        yield
    finally:
        give_back(token)


def environment(
    given: Mapping[str, str] | None, process: Mapping[str, str], *, may_tell: bool = True
) -> dict[str, str] | None:
    """The environment for a child that was to get `given` (None: the process's own, `process`); None to leave it so.

    Never raises; thread-safe. `may_tell`: whether alerts may be delivered, which needs locks of others.
    """
    try:
        if given is not None and any(isinstance(name, bytes) for name in given):
            given = {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()}
        changes = _changes(process if given is None else given, process, may_tell=may_tell)
        if not changes:
            return None
        if mode.current() == "observe":
            if may_tell:
                _report(changes, process if given is None else given)
            return None
        child = dict(process if given is None else given)
        for name, value in changes.items():
            if value is None:
                child.pop(name, None)
            else:
                child[name] = value
        return child
    except Exception as exc:
        faults.internal_error("subprocess", exc)
        return None


def _report(changes: Mapping[str, str | None], child: Mapping[str, str]) -> None:
    """In observe: what the child sees that it would not see in repair."""
    keys = {s.path: key.name for key in flow.registry.keys for s in key.ambient if isinstance(s, EnvSource)}
    withheld = _withheld()
    for name, expected in changes.items():
        observed = child.get(name)
        if observed is None or (name not in keys and not _is_claims(name)):
            continue
        if expected is None and name in keys and name not in withheld and not spans.is_cleared(flow.peek(), keys[name]):
            continue  # nothing was to be handed on, so nothing was mistaken for it
        reason: Reason = "leaked" if expected is None else "foreign"
        place = places.departure()
        mismatch = Mismatch(
            keys.get(name, "claim"), reason, expected, observed, f"env:{name}", "observed", "subprocess", place=place
        )
        alerts.deliver(mismatch, None, None)


def _changes(child: Mapping[str, str], process: Mapping[str, str], *, may_tell: bool) -> dict[str, str | None]:
    view = _view(child, process)
    changes = {
        name: value
        for name, value in {**_keys(), **_claim(child, process), **view}.items()
        if child.get(name) != value and (child is process or child.get(name) == process.get(name))
    }
    for name in _withheld():
        changes.pop(name, None)
        if name in child and (child is process or child[name] in (process.get(name), view.get(name))):
            changes[name] = None
    if may_tell and _SPAWNING.get():
        _report_undeclared(child, process)
    if _carrier:
        changes.update(_carried(child))
    return changes


def _view(child: Mapping[str, str], process: Mapping[str, str]) -> dict[str, str | None]:
    """What the scoped environment shows to this context in place of the process's values."""
    view = scoped_env.overlay()
    if _SPAWNING.get() and child is not process:  # the claim in it is the one that the dispatcher gives
        return {name: value for name, value in view.items() if not _is_claims(name)}
    return view


def _keys() -> dict[str, str | None]:
    """What each declared environment source says in a child of the current context."""
    now = flow.peek()
    wanted: dict[str, str | None] = {}
    for key, value in zip(now.registry.keys, now.values, strict=True):
        binding = None if now.state is None else now.state.bound.get(key.name)
        for source in key.ambient:
            if not isinstance(source, EnvSource):
                continue
            is_minted = binding is not None and binding.minted and binding.value == value
            if value is not None and not is_minted:
                wanted[source.path] = value if _fits(value) else None
            elif value is not None or spans.is_cleared(now, key.name) or key.process_identity() is None:
                wanted[source.path] = None
    return wanted


def _withheld() -> list[str]:
    """The variables of keys that an operator's policy sheds at children, or mints: a fresh key has no place there."""
    return [
        source.path
        for key in flow.registry.keys
        if policy.for_key(key, policy.SUBPROCESS) != "inherit"
        for source in key.ambient
        if isinstance(source, EnvSource)
    ]


def _fits(value: str) -> bool:
    """Whether an environment can hold `value`: a key may have characters that it cannot."""
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _is_claims(name: str) -> bool:
    if name in _behaviour_only:
        return False
    return name in _parts.values() or (_prefix is not None and name.startswith(_prefix))


def _claim(child: Mapping[str, str], process: Mapping[str, str]) -> dict[str, str | None]:
    if not _parts and _prefix is None:
        return {}
    granted = binding.claim()
    if _SPAWNING.get():
        return {MARKER: None}
    if isinstance(granted, Claim) and not isinstance(granted, Inherited):
        others = {name: None for name in (*child, *process) if _is_claims(name)}  # of the task that it is not
        parts = {name: getattr(granted, part) for part, name in _parts.items()}
        return {**others, **parts, MARKER: None}
    state = ownership.claim_state()
    task = _parts.get("task_id")
    if state == "shed" and task is not None and task not in child and task not in process:
        return {}  # there is no claim: what else has its prefix is an operator's setting
    if state == "shed":
        return {name: None for name in (*child, *process) if _is_claims(name)}
    return {MARKER: "none"} if state == "held" else {}


def _report_undeclared(child: Mapping[str, str], process: Mapping[str, str]) -> None:
    if _prefix is None:
        return
    declared = {*_parts.values(), *_behaviour_only, *_environment_sources(), *_scoped}  # as `drift.declared` has it
    for name, value in child.items():
        if name.startswith(_prefix) and name not in declared and process.get(name) != value:
            # The name is the news; the value may be anything, and nobody said how to treat it.
            undeclared = Mismatch("claim", "undeclared", None, name, f"env:{name}", "observed", "subprocess")
            alerts.deliver(undeclared, None, None)


def _environment_sources() -> set[str]:
    return {source.path for key in flow.registry.keys for source in key.ambient if isinstance(source, EnvSource)}


def _carried(child: Mapping[str, str]) -> dict[str, str | None]:
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    with border.own_carrier():
        propagate.inject(carrier)
    return {name.upper().replace("-", "_"): value for name, value in carrier.items()}
