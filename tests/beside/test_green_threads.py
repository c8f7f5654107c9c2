"""gevent and eventlet: what travels behind each of their hops, and what they see of otelctx besides."""

from __future__ import annotations

from typing import Any

import pytest

from tests.beside.conftest import Run

PROGRAMS = ("gevent_program.py", "eventlet_program.py")
ORDERS = ("before", "after", "no")

OF_NOBODY = {"spawn_raw", "link", "the loop's run_callback", "Pool.apply_async callback"}
"""Raw greenlets, and what the hub calls: documented, they start in an empty context."""

pytestmark = [
    pytest.mark.parametrize("program", PROGRAMS),
    pytest.mark.parametrize("order", ORDERS),
]


@pytest.fixture(scope="session")
def reports() -> dict[tuple[str, ...], Any]:
    return {}


@pytest.fixture
def told(run_program: Run, reports: dict[tuple[str, ...], Any], program: str, order: str, mode: str) -> Any:
    """The program's report, and what it wrote to its error stream."""
    asked = (program, order, mode)
    if asked not in reports:
        reports[asked] = run_program(*asked)
    return reports[asked]


def owed(hop: str, seen: list[Any]) -> list[Any]:
    """What otelctx owes: the spawner's key; in the shape in which the hop tells it."""
    if hop in OF_NOBODY:
        return [None, None, None]
    if hop == "gr_context given":
        return ["who gave it"] * 3
    return [[key] * len(shape) if isinstance(shape, list) else key for key, shape in zip("AB", seen, strict=False)] + [
        [None] * len(seen[2]) if isinstance(seen[2], list) else None
    ]


@pytest.mark.parametrize("mode", ["repair", "enforce"])
def test_work_in_a_green_thread_sees_its_spawners_key(told: Any) -> None:
    report, _ = told
    assert {hop: seen for hop, seen in report["seen"].items() if seen != owed(hop, seen)} == {}
    assert report["alerts"] == []
    assert report["errors"] == {}


@pytest.mark.parametrize("mode", ["observe"])
def test_in_observe_nothing_is_changed_and_each_loss_is_told(
    told: Any, run_program: Run, program: str, order: str
) -> None:
    report, _ = told
    without, _ = run_program(program, order, "off")
    assert report["seen"] == without["seen"]
    assert {(alert[0], alert[2]) for alert in report["alerts"]} == {("lost", None)}
    assert {alert[3] for alert in report["alerts"]} == {"thread", "executor"}
    assert report["errors"] == {}


@pytest.mark.parametrize("mode", ["repair", "observe"])
def test_once_otelctx_is_uninstalled_nothing_travels_any_more(told: Any) -> None:
    report, _ = told
    assert set(report["uninstalled"].values()) == {None}


@pytest.mark.parametrize("mode", ["off", "repair"])
def test_nothing_is_said_that_is_not_said_without_otelctx(told: Any) -> None:
    _, errors = told
    assert errors == ""


@pytest.mark.parametrize("mode", ["repair"])
def test_a_thread_that_runs_on_a_green_thread_is_one_hop_as_it_is_elsewhere(
    told: Any, reports: dict[tuple[str, ...], Any], run_program: Run, program: str
) -> None:
    report, _ = told
    elsewhere = (program, "no", "repair")
    if elsewhere not in reports:
        reports[elsewhere] = run_program(*elsewhere)
    native, _ = reports[elsewhere]
    carried = ("thread carried", "executor carried", "thread empty")
    assert [report["counts"][count] for count in carried] == [native["counts"][count] for count in carried]
