"""Hop kinds, and what keys and the claim do there.

An operator overrides the table per key and kind: ``[keys.session] policy = { cron = "inherit" }``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otelctx.keys import Key

Policy: TypeAlias = Literal["inherit", "shed", "mint"]

Kind: TypeAlias = int
"""A hop kind: an index into `NAMES` (the hot path looks its counter up by it)."""

THREAD: Final = 0
EXECUTOR: Final = 1
CALLBACK: Final = 2
QUEUE: Final = 3
PROCESS: Final = 4
SUBPROCESS: Final = 5
CRON: Final = 6
DEFERRED: Final = 7
TASK: Final = 8
RETRY: Final = 9
SERVICE: Final = 10

NAMES: Final = (
    "thread",
    "executor",
    "callback",
    "queue",
    "process",
    "subprocess",
    "cron",
    "deferred",
    "task",
    "retry",
    "service",
)

SETTABLE: Final = tuple(name for name in NAMES if name != NAMES[SERVICE])
"""The kinds that an operator may give a policy: what serves everybody is nobody's, whatever anybody says."""

EXPLICIT: Final = len(NAMES)
"""A snapshot that the application itself captured and replays: no hop of any kind, and nothing to compare."""

WORKERS: Final = (EXECUTOR, PROCESS)
"""Kinds that arrive in a worker's own context, which is nobody else's."""

KEYS: Final[dict[Kind, Policy]] = {CRON: "mint", SERVICE: "shed"}
"""What a key does at a kind of hop; ``inherit`` where the kind is not named."""

CLAIM: Final[dict[Kind, Policy]] = {CRON: "shed", DEFERRED: "shed", TASK: "shed"}
"""What the claim does; ``inherit`` where the kind is not named."""


def for_key(key: Key, kind: Kind) -> Policy:
    """The policy of `key` at a hop of `kind`."""
    override = key.policy.get(NAMES[kind])
    if override is not None:
        return override  # type: ignore[return-value]  # the configuration admits these three words only
    return KEYS.get(kind, "inherit")


def changes_ordinary_hops(keys: Iterable[Key]) -> bool:
    """Whether a policy of one of `keys` makes a hop that otherwise inherits mint or shed."""
    return any(for_key(key, kind) != "inherit" for key in keys for kind in (THREAD, EXECUTOR, CALLBACK, QUEUE, PROCESS))


def fresh(kind: Kind) -> str:
    """A value for a key that is minted at a hop of `kind`, unlike any other."""
    return f"{NAMES[kind]}:{os.getpid():x}-{os.urandom(6).hex()}"


def for_claim(kind: Kind) -> Policy:
    """The policy of the claim at a hop of `kind`."""
    return CLAIM.get(kind, "inherit")
