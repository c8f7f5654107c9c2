"""Pieces of work: each knows what it is to see, looks when it arrives, and then misbehaves in some way."""

from __future__ import annotations

import _thread
import decimal
import random
from collections import Counter
from collections.abc import Callable

from opentelemetry import baggage, context, trace

import otelctx
from tests.soak.identity import SESSION, SESSIONS, TENANT, UNDECLARED, Seen, seen

_tracer = trace.get_tracer(__name__)


class Boom(Exception):  # noqa: N818 - it is nobody's error
    """What work raises that is to fail."""


class Ledger:
    """What departed, what arrived, and what was wrong. Thread-safe."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self.hops = 0
        self.kinds: Counter[str] = Counter()
        self.faults: list[str] = []
        self.number_of_faults = 0

    def arrived(self, kind: str) -> None:
        with self._lock:
            self.hops += 1
            self.kinds[kind] += 1

    def wrong(self, what: str) -> None:
        with self._lock:
            self.number_of_faults += 1
            if len(self.faults) < 20:
                self.faults.append(what)


class Work:
    """One piece of work, which is called once; `times` says how often it was."""

    __slots__ = ("_behave", "_dice", "_expects", "_kind", "_leaves", "_ledger", "result", "times")

    def __init__(
        self,
        ledger: Ledger,
        kind: str,
        dice: random.Random,
        expects: Seen | Callable[[Seen], bool],
        behave: Callable[[random.Random], None] | None = None,
        *,
        may_leave: bool = True,
    ) -> None:
        """`may_leave`: whether it may leave something in the context in which it runs."""
        self._ledger = ledger
        self._kind = kind
        self._dice = random.Random(dice.random())
        self._expects = expects
        self._behave = behave
        self._leaves = may_leave
        self.times = 0
        self.result = dice.random()

    def expect(self, expects: Callable[[Seen], bool]) -> None:
        """Let it see whatever is right by `expects`."""
        self._expects = expects

    def __call__(self, *_: object) -> float:
        here = seen()
        self.times += 1
        self._ledger.arrived(self._kind)
        expects = self._expects
        is_right = expects(here) if callable(expects) else here == expects
        if not is_right:
            self._ledger.wrong(f"{self._kind}: sees {here}, not {expects}")
        if self._behave is not None:
            self._behave(self._dice)
        if self._leaves:
            leave_something(self._dice)
        if self._dice.random() < 0.1:
            raise Boom(self._kind)
        return self.result

    def function(self) -> Callable[..., float]:
        """The work as a plain function, which is what nearly everybody submits."""
        return lambda *args: self(*args)


def leave_something(dice: random.Random) -> None:
    """Leave something in the current context that its next user must not find, or is to find."""
    choice = dice.randrange(24)
    other = f"left:{dice.randrange(SESSIONS)}"
    if choice == 0:
        SESSION.set(other)
    elif choice == 1:
        TENANT.set(other)
    elif choice == 2:
        otelctx.attach(session=other)
    elif choice == 3:
        otelctx.attach_shed()
    elif choice == 4:
        context.attach(baggage.set_baggage("theirs", other))
    elif choice == 5:
        context.attach(trace.set_span_in_context(_tracer.start_span("left open")))
    elif choice == 6:
        UNDECLARED.set(other)
    elif choice == 7:
        decimal.getcontext().prec = dice.randrange(5, 50)
    elif choice == 8:
        token = otelctx.attach(session=other)
        otelctx.detach(token)
        otelctx.detach(token)
    elif choice == 9:
        with otelctx.bind(session=other), _tracer.start_as_current_span("inner"):
            SESSION.set("")
