"""Other instrumentations in one process with otelctx, installed before it and after it, and without it."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest

from tests.beside.conftest import Run

OTHERS = ("sentry", "ddtrace_auto", "logfire", "opentelemetry")

KEPT = {"create_task", "TaskGroup", "to_thread"}
"""Hops that carry the application's variable by themselves."""


@pytest.fixture(scope="session")
def reports() -> dict[tuple[str, str], Any]:
    return {}


@pytest.fixture
def told(run_program: Run, reports: dict[tuple[str, str], Any], other: str) -> Any:
    """The reports without otelctx and in both orders, each with what was written to the error stream."""
    if other == "ddtrace_auto" and importlib.util.find_spec("ddtrace") is None:
        pytest.skip("ddtrace has no wheel for this Python")
    for order in ("off", "before", "after"):
        if (other, order) not in reports:
            # ddtrace by default unloads modules where gevent is installed, as it is here.
            variables = {"DD_UNLOAD_MODULES_FROM_SITECUSTOMIZE": "false", "DD_TRACE_STARTUP_LOGS": "false"}
            variables |= {"DD_TRACE_ENABLED": "true", "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false"}
            reports[other, order] = run_program("beside_program.py", other, order, **variables)
    return {order: reports[other, order] for order in ("off", "before", "after")}


pytestmark = [pytest.mark.parametrize("other", OTHERS), pytest.mark.parametrize("order", ["before", "after"])]


def ours(seen: dict[str, Any]) -> dict[str, list[Any]]:
    return {hop: [key for key, _ in each] for hop, each in seen.items()}


def theirs(seen: dict[str, Any]) -> dict[str, list[Any]]:
    return {hop: [trace for _, trace in each] for hop, each in seen.items()}


def test_work_sees_its_sessions_key_and_nothing_is_told(told: Any, order: str) -> None:
    report, _ = told[order]
    assert ours(report["seen"]) == {hop: ["A", "B", None] for hop in report["seen"]}
    assert report["alerts"] == []
    assert report["errors"] == {}


def test_the_others_trace_is_where_it_is_without_otelctx(told: Any, order: str, other: str) -> None:
    without, with_us = theirs(told["off"][0]["seen"]), theirs(told[order][0]["seen"])
    if other in ("logfire", "opentelemetry"):
        # OpenTelemetry's own Context is carried: what was lost or another session's without otelctx is the author's.
        assert with_us == {hop: ["A", "B", "none"] for hop in without}
    else:
        assert with_us == without


def test_uninstalling_otelctx_leaves_the_others_trace_as_it_is_without_it(told: Any, order: str) -> None:
    without, afterwards = told["off"][0]["seen"], told[order][0]["afterwards"]
    assert ours(afterwards) == {hop: ["A", "B", None] if hop in KEPT else [None] * 3 for hop in afterwards}
    once_started = {"ThreadPool", "done-callback"}  # what those threads keep is from when they were started
    assert {hop: seen[0] for hop, seen in theirs(afterwards).items() if hop not in once_started} == {
        hop: seen[0] for hop, seen in theirs(without).items() if hop not in once_started
    }


def test_nothing_is_said_that_is_not_said_without_otelctx(told: Any, order: str) -> None:
    def said(errors: str) -> set[str]:
        return {re.sub(r"\d+", "N", line) for line in errors.splitlines()}  # how many traces found no agent

    assert said(told[order][1]) - said(told["off"][1]) == set()
