"""Who calls, and what the called is to see: turns of sessions, each with what it must look like from inside."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from opentelemetry import baggage, trace

import otelctx
from otelctx import Claim

SESSION: ContextVar[Any] = ContextVar("SESSION")
TENANT: ContextVar[Any] = ContextVar("TENANT")
UNDECLARED: ContextVar[Any] = ContextVar("UNDECLARED")

KEYS: Final = {
    "session": {"sources": [{"contextvar": f"{__name__}:SESSION", "empty": [""]}]},
    "tenant": {"sources": [{"contextvar": f"{__name__}:TENANT", "empty": [""]}]},
}

SESSIONS: Final = 200

_tracer = trace.get_tracer(__name__)


class Seen(NamedTuple):
    """What a piece of code sees of its identity."""

    session: str | None
    tenant: str | None
    claim: str
    own_session: object
    own_tenant: object
    baggage: object
    trace_id: int


def seen() -> Seen:
    """What the calling code sees, by every way there is."""
    return Seen(
        otelctx.get("session"),
        otelctx.get("tenant"),
        otelctx.claim_state(),
        SESSION.get(None),
        TENANT.get(None),
        baggage.get_baggage("otelctx.session"),
        trace.get_current_span().get_span_context().trace_id,
    )


NOBODY: Final = Seen(None, None, "none", None, None, None, 0)


@dataclass
class Turn:
    """One turn of somebody: what its code sees, and so what all work must see that it hands on."""

    sees: Seen


@contextmanager
def turn(dice: random.Random) -> Iterator[Turn]:
    """Be somebody for the block: a session bound by otelctx, in the application's own variables, or both; or nobody.

    With or without a span, which is sampled or not, and with the claim granted, shed, or neither.
    """
    who = f"session:{dice.randrange(SESSIONS)}"
    # Of the session, as in life: a tenant of its own for each turn would be another identity each time.
    firm = f"tenant:{who[-1]}"
    how = dice.choice(("nobody", "bound", "own", "both", "rebound", "attached"))
    expected: dict[str, Any] = {}
    with ExitStack() as undo:
        if dice.random() < 0.2:
            undo.enter_context(_tracer.start_as_current_span("turn"))
        if how in ("own", "both", "rebound"):
            own = f"{who}:before" if how == "rebound" else who
            undo.callback(SESSION.reset, SESSION.set(own))
            undo.callback(TENANT.reset, TENANT.set(firm))
            expected |= {"own_session": own, "own_tenant": firm, "session": own, "tenant": firm, "baggage": None}
        if how in ("bound", "both", "rebound"):
            undo.enter_context(otelctx.bind(session=who, tenant=firm))
            expected |= {"session": who, "tenant": firm, "baggage": who}
        if how == "attached":
            undo.callback(otelctx.detach, otelctx.attach(session=f"{who}:outer"))
            undo.callback(otelctx.detach, otelctx.attach(session=who))
            expected |= {"session": who, "baggage": who}
        if how == "rebound" and dice.random() < 0.5:
            # The latest writer counts: the application's own variable, where it is set after the binding.
            undo.callback(SESSION.reset, SESSION.set(f"{who}:sub"))
            expected |= {"own_session": f"{who}:sub", "session": f"{who}:sub"}
        claim = dice.random()
        if claim < 0.1:
            undo.enter_context(otelctx.grant_claim(Claim(f"task:{dice.randrange(SESSIONS)}")))
            expected["claim"] = "held"
        elif claim < 0.2:
            undo.enter_context(otelctx.shed_claim())
            expected["claim"] = "shed"
        trace_id = trace.get_current_span().get_span_context().trace_id
        sees = NOBODY._replace(trace_id=trace_id, **expected)
        # Baggage is brought in step where the work arrives, and where something is bound; not where a variable is set.
        here = seen()
        if here._replace(baggage=None) != sees._replace(baggage=None):
            raise AssertionError(f"a turn of {how} sees {here}, not {sees}")
        yield Turn(sees._replace(baggage=sees.session))
