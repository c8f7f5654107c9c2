"""otelctx and others turned on and off in any order: nobody's context is lost, and at last all is as it was.

What is so without otelctx is told by the same steps without it. Sentry and Logfire are turned off by closing what they
have opened; their wrappers stay, with or without otelctx.
"""

from __future__ import annotations

import importlib.util
from itertools import permutations
from typing import Any, TypeAlias

import pytest

from tests.beside.conftest import Run
from tests.beside.test_side_by_side import KEPT

OTHERS = ("otel_threading", "otel_asyncio", "sentry", "logfire", "ddtrace")

CARRIED = {"otel_threading", "otel_asyncio", "logfire"}
"""Those whose trace is in OpenTelemetry's Context, which otelctx carries."""


def with_one(other: str) -> list[str]:
    """Every order of turning otelctx and the other on and off, and two in which otelctx comes back."""
    steps = ("+otelctx", "-otelctx", f"+{other}", f"-{other}")
    every = [
        " ".join(order)
        for order in permutations(steps)
        if order.index("+otelctx") < order.index("-otelctx") and order.index(f"+{other}") < order.index(f"-{other}")
    ]
    return [
        *every,
        f"+otelctx +{other} -otelctx +otelctx -{other} -otelctx",
        f"+otelctx +{other} -otelctx -{other} +otelctx -otelctx",
    ]


WITH_SEVERAL = [
    "+otelctx +sentry +otel_threading +ddtrace -otelctx -ddtrace -otel_threading -sentry",
    "+otel_threading +otel_asyncio +sentry +otelctx -sentry -otel_asyncio -otel_threading -otelctx",
    "+sentry +otelctx +ddtrace +otel_threading -otel_threading -otelctx -ddtrace -sentry",
    "+logfire +otelctx +otel_asyncio +ddtrace -logfire -otelctx -ddtrace -otel_asyncio",
    "+otel_threading +otelctx +sentry -otel_threading +logfire -otelctx +otelctx -sentry -logfire -otelctx",
]

ORDERS = {other: with_one(other) for other in OTHERS} | {"several": WITH_SEVERAL}

SUBMIT = "concurrent.futures.thread:ThreadPoolExecutor.submit"

BY_DDTRACE = {
    # It gives the function that it finds another code, and looks for that at the outermost one: here at ours.
    "+ddtrace +otelctx -ddtrace -otelctx",
    "+otelctx +ddtrace -otelctx +otelctx -ddtrace -otelctx",
    # Ours gets its own code back after otelctx has gone. When it comes and goes again, all is as it was.
    "+otelctx +ddtrace -otelctx -ddtrace",
}
"""Where ddtrace does not leave `submit` as it leaves it without otelctx."""


@pytest.fixture(scope="session")
def reports() -> dict[str, Any]:
    return {}


@pytest.fixture
def told(run_program: Run, reports: dict[str, Any], order: str) -> Told:
    """What is told of the order, of the same without otelctx, and the steps."""
    if "ddtrace" in order and importlib.util.find_spec("ddtrace") is None:
        pytest.skip("ddtrace has no wheel for this Python")
    without = " ".join(step for step in order.split() if "otelctx" not in step)
    needed = [each for each in (order, without) if each not in reports]
    if needed:
        variables = {"DD_TRACE_STARTUP_LOGS": "false", "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false"}
        reports |= run_program("uninstall_program.py", *needed, **variables)[0]
    return reports[order], reports[without], order.split()


pytestmark = pytest.mark.parametrize("order", [order for orders in ORDERS.values() for order in orders])

Told: TypeAlias = tuple[dict[str, Any], dict[str, Any], list[str]]


def test_after_each_step_nobodys_context_is_lost(told: Told) -> None:
    report, without, steps = told
    is_on, others_steps = False, 0
    for step, seen in zip(steps, report["seen"], strict=True):
        if step[1:] == "otelctx":
            is_on = step[0] == "+"
        else:
            others_steps += 1
        for other, by_hop in seen.items():
            if other == "otelctx":
                for hop, keys in by_hop.items():
                    assert keys == (["A", "B", None] if is_on or hop in KEPT else [None] * 3), (step, hop)
            elif is_on and other in CARRIED:
                assert by_hop == {hop: ["A", "B", "none"] for hop in by_hop}, step
            else:
                assert by_hop == without["seen"][others_steps - 1][other], step


def test_nothing_is_told_and_nothing_fails(told: Told) -> None:
    report, _, _ = told
    assert report["alerts"] == []
    assert report["errors"] == {}


def test_at_last_everything_is_what_it_is_without_otelctx(told: Told, order: str) -> None:
    report, without, _ = told
    assert set(report["changed"]) - set(without["changed"]) == ({SUBMIT} if order in BY_DDTRACE else set())
    assert set(without["changed"]) <= set(report["changed"])


def test_what_is_left_of_otelctx_is_under_what_stays_and_does_nothing(told: Told, order: str) -> None:
    report, without, _ = told
    allowed = {*without["changed"], *([SUBMIT] if order in BY_DDTRACE else [])}
    if "threading:Thread.start" in allowed:
        allowed.add("threading:Timer.start")  # OpenTelemetry's puts there for good what a timer had inherited
    assert set(report["ours"]) <= allowed
    assert all(count == 1 for count in report["ours"].values())
    assert not report["counted"]
