"""A block that ends in another context than it began in: what was set stays behind, and nothing is raised."""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from types import coroutine
from typing import TYPE_CHECKING, Any

import pytest

from otelctx import children, cron
from otelctx.tokens import give_back

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

ONE: ContextVar[str] = ContextVar("ONE", default="nothing")
OTHER: ContextVar[str] = ContextVar("OTHER", default="nothing")


@coroutine
def _for_ever() -> Generator[None]:
    while True:
        yield


@pytest.mark.parametrize("block", [children.spawning, lambda: cron.observed("runner", "job")])
def test_a_coroutine_can_be_closed_in_another_context(block: Callable[[], AbstractContextManager[None]]) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            with block():
                await _for_ever()
        finally:
            ended.append("yes")

    begun: Any = work()
    copy_context().run(begun.send, None)
    Context().run(begun.close)
    assert ended == ["yes"]


def test_each_token_is_given_back_and_what_is_none_is_left_out() -> None:
    def inside() -> None:
        tokens = ONE.set("set"), OTHER.set("set")
        give_back(tokens[0], None, tokens[1])
        assert (ONE.get(), OTHER.get()) == ("nothing", "nothing")

    Context().run(inside)


def test_one_that_is_refused_does_not_keep_the_others() -> None:
    elsewhere = Context().run(ONE.set, "elsewhere")
    token = OTHER.set("set")
    give_back(elsewhere, token)
    assert OTHER.get() == "nothing"
