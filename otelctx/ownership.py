"""Who holds the claim here: `current_claim`, `is_claim_holder`, `claim_state`; `shed_claim` and `grant_claim`.

What counts, in this order: what the context carries (a grant, or the tombstone of a shed), the application's own
predicate where it says that it has shed, the process's environment. Nothing is remembered: a verdict for one context is
none for another.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from otelctx import alerts, binding, faults, place
from otelctx.claim import SHED, Claim
from otelctx.keys import UnresolvedError, may_still_have, resolve
from otelctx.mismatch import Mismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otelctx.claim import State
    from otelctx.config import ClaimConfig
    from otelctx.mismatch import Place

MARKER: Final = "OTELCTX_CLAIM"
"""The variable by which a holder tells its children that they are none: ``none``."""

_variables: dict[str, str] = {}
_predicate: str | None = None


def configure(settings: ClaimConfig) -> None:
    """Read the process's claim from the variables that `settings` declare, and ask its predicate."""
    global _variables, _predicate
    _split_at.clear()
    _variables = dict(settings.env)
    _predicate = settings.predicate


def of_process() -> Claim | None:
    """The claim that the process's own environment holds, as it is now; None where it holds none."""
    task = task_variable()
    if task is None or os.environ.get(MARKER) == "none":
        return None
    task_id = os.environ.get(task)
    if not task_id:
        return None
    parts = {part: os.environ.get(name) or None for part, name in _variables.items() if part != "task_id"}
    return Claim(task_id, parts.get("holder"), parts.get("attempt"), parts.get("token"), os.getpid())


def has_variables() -> bool:
    """Whether it is known in which variables an environment holds a claim."""
    return bool(_variables)


def is_declared() -> bool:
    """Whether the process's environment holds a claim that may change hands under us."""
    return bool(_variables) and of_process() is not None


def task_variable() -> str | None:
    """The variable by which an environment holds a claim; None where that is not known."""
    return _variables.get("task_id")


def source() -> str | None:
    """Where `of_process` finds the claim, as a mismatch names it."""
    task = task_variable()
    return None if task is None else f"env:{task}"


def application_says() -> bool | None:
    """What the application's own predicate says of the current context; None where it has none, or cannot say."""
    if _predicate is None or _predicate.partition(":")[0] not in sys.modules:
        return None
    try:
        return bool(resolve(_predicate)())
    except UnresolvedError as exc:
        if not may_still_have(_predicate):
            faults.wrong_setting("claim", f"the predicate {_predicate} is not there: {exc}")
    except Exception as exc:
        faults.internal_error("claim", exc, f"the predicate {_predicate} could not be asked")
    return None


def current_claim() -> Claim | None:
    """The claim that the current context holds, or None.

    One that was granted to it, or the process's own, read from the environment (the variables are declared in
    ``[claim]``), unless it has been shed. Thread-safe; never raises.
    """
    carried = binding.claim()
    if isinstance(carried, Claim):
        return carried
    if carried == SHED:
        _tell_split()
        return None
    claim = of_process()
    return None if claim is None or application_says() is False else claim


_split_at: dict[Place | None, None] = {}
_SPLIT_AT_MOST: Final = 256


def _tell_split() -> None:
    """Where the claim was shed here: whether the application says that it holds it, and the environment has one.

    Told once for each place that asks. An application whose predicate says False agrees with us; without a claim in the
    environment its answer is about nothing.
    """
    claim = of_process()
    if claim is None or application_says() is not True:
        return
    where = place.departure()
    if where in _split_at:
        return
    if len(_split_at) >= _SPLIT_AT_MOST:
        _split_at.clear()
    _split_at[where] = None
    alerts.deliver(
        Mismatch("claim", "split", None, claim.task_id, f"getter:{_predicate}", "observed", place=where), None, None
    )


def is_claim_holder() -> bool:
    """Whether the current context is the dispatcher's worker: it holds a claim and has not shed it."""
    return current_claim() is not None


def claim_state() -> State:
    """``"held"``, ``"none"`` or ``"shed"``: the last one also where the application itself says that it has shed."""
    if binding.claim() == SHED:
        _tell_split()
        return "shed"
    if current_claim() is not None:
        return "held"
    return "shed" if of_process() is not None else "none"


def attach_shed() -> binding.Token:
    """Shed the claim in the current context until `otelctx.detach`; see `shed_claim`."""
    return binding.attach_state(binding.with_claim(SHED))


@contextmanager
def shed_claim() -> Iterator[None]:
    """Be nobody's worker for the length of a ``with`` block, and in all work that it hands on.

    A shed beats the process's environment, which is left as it is, and ends only with the block or by `grant_claim`.
    """
    token = attach_shed()
    try:
        yield
    finally:
        binding.detach(token)


@contextmanager
def grant_claim(claim: Claim) -> Iterator[None]:
    """Hold `claim` for the length of a ``with`` block, and in all work that it hands on; also inside a shed context.

    Raises `TypeError` for anything but a `Claim`.
    """
    if not isinstance(claim, Claim):
        raise TypeError(f"otelctx: grant_claim() takes a Claim, not {type(claim).__name__}")
    token = binding.attach_state(binding.with_claim(claim))
    try:
        yield
    finally:
        binding.detach(token)
