"""Events and timers that set themselves again: what an application has given them is left as it is."""

from __future__ import annotations

import copy
import pickle
import sched
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

import otelctx
from tests.conftest import set_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Install

KEY: ContextVar[str] = ContextVar(f"{__name__}:KEY")


@pytest.fixture(autouse=True)
def _on(install: Install) -> None:
    install(keys={"session": {"sources": [{"contextvar": f"{__name__}:KEY"}]}})


def _by_event(fn: Callable[..., None], args: Any) -> None:
    scheduler.enter(0, 1, fn, args)


def _by_timer(fn: Callable[..., None], args: Any) -> None:
    threading.Timer(0, fn, args).start()


scheduler = sched.scheduler()


@pytest.mark.parametrize("enter", [_by_event, _by_timer])
@pytest.mark.parametrize("given", [iter, tuple, list, lambda number: (each for each in number)])
def test_arguments_that_can_be_read_only_once_reach_what_sets_itself_again(
    enter: Callable[..., None], given: Callable[[list[int]], Any]
) -> None:
    seen: list[tuple[int, ...]] = []
    over = threading.Event()

    def again(*numbers: int) -> None:
        seen.append(numbers)
        if len(seen) < 3:
            enter(again, given([len(seen)]))
        else:
            over.set()

    enter(again, given([0]))
    scheduler.run()
    assert over.wait(20)
    assert seen == [(0,), (1,), (2,)]


def test_what_sets_itself_again_with_the_same_arguments_is_recurring_and_else_it_is_not() -> None:
    seen: list[str | None] = []
    same = (object(),)

    def again(*args: object) -> None:
        seen.append(otelctx.get("session"))
        if len(seen) < 3:
            scheduler.enter(0, 1, again, same if len(seen) < 2 else (object(),))

    with set_to(KEY, "A"):
        scheduler.enter(0, 1, again, same)
    scheduler.run()
    assert seen[0] == "A"
    assert str(seen[1]).startswith("cron:sched:")
    assert seen[2] == seen[1]


def test_an_event_can_be_pickled_and_copied_and_then_has_the_applications_function() -> None:
    event = scheduler.enter(100, 1, print, ("hello",))
    for other in (pickle.loads(pickle.dumps(event)), copy.deepcopy(event)):
        assert other.action is print
        assert other == event
    assert b"otelctx" not in pickle.dumps(event)
    assert copy.copy(event.action) is print
    scheduler.cancel(event)
    assert scheduler.empty()
