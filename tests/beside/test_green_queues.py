"""Adopting queues among greenlets, which share a thread and take turns in the middle of a put or a get."""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import queue
from contextvars import ContextVar
from typing import Any

import greenlet
import pytest

import otelctx

KEY: ContextVar[str] = ContextVar(f"{__name__}:KEY")


class TakingTurns(queue.Queue[Any]):
    """Lets the others run before it puts, and before it gets; as a lock of gevent's does that is not free."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        _others()
        super().put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        _others()
        return super().get(block, timeout)


def _others() -> None:
    greenlet.getcurrent().parent.switch()


@pytest.fixture(autouse=True)
def _on() -> Any:
    otelctx.install({}, keys={"session": {"sources": [{"contextvar": f"{__name__}:KEY"}]}})
    yield
    otelctx.uninstall()


def test_of_greenlets_that_take_turns_in_put_and_get_each_has_its_own_key() -> None:
    items = otelctx.adopting(TakingTurns())
    seen: list[tuple[str, str]] = []

    def putting(who: str) -> None:
        KEY.set(who)
        items.put(who)

    def getting() -> None:
        item = items.get()
        seen.append((item, KEY.get("absent")))

    work = [greenlet.greenlet(lambda who=who: putting(who)) for who in "ABC"]
    work += [greenlet.greenlet(getting) for _ in range(3)]
    for _ in range(2):
        for one in work:
            one.switch()
    assert seen == [("A", "A"), ("B", "B"), ("C", "C")]
