"""What an application sends in the turns of its sessions, whatever its task queue is.

A scenario yields the name of a task and its arguments *within* the turn that sends it: whoever iterates sends it there
and then, before going on. A task's first argument is the label of its sightings.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from sightings import see, session

import otelctx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Message = tuple[str, tuple[object, ...]]

BEFORE = os.environ.get("LABELS", "")
"""What the labels of this process's messages begin with."""

BROKEN = {
    "text": "nonsense",
    "truncated": '1..{"n":"0',
    "oversized": "1.." + "x" * 20_000,
    "types": '1..{"n":"0","t":"yesterday","keys":{"session":["B"]}}',
    "signature": '1.AAAA.{"n":"0","t":1,"keys":{"session":{"v":"B"}}}',  # one that is looked at only with a secret
}
"""Carriers that are none, as whoever can write to the broker may make them."""


def of(scenario: str) -> Iterator[Message]:
    """The messages of one of the scenarios here."""
    for task, (label, *others) in SCENARIOS[scenario]():
        yield task, (f"{BEFORE}{label}", *others)


def run(scenarios: list[str], send: Callable[..., object], others: dict[str, Any]) -> None:
    """Run each of `scenarios`: `send` the messages of those that are here; the rest are functions among `others`."""
    for scenario in scenarios:
        if scenario in SCENARIOS:
            for task, arguments in of(scenario):
                send(task, *arguments)
        else:
            others[scenario]()


def one() -> Iterator[Message]:
    """Under A, under B and under nothing."""
    for key in "AB":
        with session(key):
            yield "seen", (key,)
    yield "seen", ("nobody",)
    with otelctx.bind(session="bound"):
        yield "seen", ("bound",)


def taint() -> Iterator[Message]:
    """A task that sets the key and never resets it, before one of nobody."""
    for number in range(3):
        with session("A"):
            yield "taints", (f"A{number}", "tainted")
        yield "taints", (f"nobody{number}", "tainted")


def retry() -> Iterator[Message]:
    """Under A, with B served in between; a task that binds another key before it fails."""
    with session("A"):
        yield "retried", ("retries", 2)
        yield "retried", ("binds and retries", 2, "tainted")
    with session("B"):
        yield "seen", ("between",)
    yield "retried", ("nobody retries", 2)


def spread() -> Iterator[Message]:
    """A task that sends another one."""
    with session("A"):
        yield "spreads", ("spreads",)


def claimed() -> Iterator[Message]:
    """By a dispatcher's worker, which holds a claim; and where it has been shed."""
    with session("A"), otelctx.grant_claim(otelctx.Claim("t1")):
        yield "retried", ("claimed", 1)
    with session("A"), otelctx.shed_claim():
        yield "seen", ("shed",)


def traced() -> Iterator[Message]:
    """Within a span."""
    from opentelemetry import trace

    with session("A"), trace.get_tracer("tests").start_as_current_span("turn"):
        yield "retried", ("traced", 1)


def table() -> Iterator[Message]:
    """The rows of the table: after B's task, which leaves the key."""
    with session("B"):
        yield "taints", ("B", "B")
    with session("A"):
        yield "seen", ("under A",)
    yield "seen", ("under nothing",)
    with session("A"):
        yield "retried", ("retry", 1)


def in_place() -> Iterator[Message]:
    """A task that runs at once, in its sender."""
    with session("A"):
        yield "seen", ("in place",)
        see("after")


def refused() -> Iterator[Message]:
    """In enforce, for a worker whose environment says B: of A's, which it refuses, and of B's behind them."""
    for number in range(2):
        with session("A"):
            yield "seen", (f"refused {number}",)
            yield "retried", (f"refused and retried {number}", 0)
        with session("B"):
            yield "seen", (f"after {number}",)


def uninstall() -> Iterator[Message]:
    """A task that uninstalls otelctx where it runs."""
    with session("A"):
        yield "uninstalls", ("uninstalls",)


REFUSED = [f"{label} {number}" for number in range(2) for label in ("refused", "refused and retried")]


def settled(waiting: Callable[[], int]) -> int:
    """How many messages there still are, once there is none, or after a while."""
    deadline = time.monotonic() + 20
    while (number := waiting()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return number


def in_turn() -> Iterator[Message]:
    """Those of `one` and `taint`, each once the one before it has been seen: in one order, on every queue."""
    for scenario in (one, taint):
        for task, arguments in scenario():
            yield task, arguments
            wait_for(f"{BEFORE}{arguments[0]}")


def wait_for(label: str) -> None:
    """Wait until there is a sighting with this label."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with open(os.environ["SIGHTINGS"]) as file:
            if any(json.loads(line).get("label") == label for line in file):
                return
        time.sleep(0.01)
    raise TimeoutError(label)


_FUNCTIONS = (one, taint, retry, spread, claimed, traced, table, in_place, refused, uninstall, in_turn)
SCENARIOS = {scenario.__name__: scenario for scenario in _FUNCTIONS}
