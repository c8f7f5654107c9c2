"""``anyio.to_process``: work in anyio's worker processes is whose it departed as, and the processes are nobody's."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.to_process
import pytest
from opentelemetry import baggage
from opentelemetry import context as otel_context

import otelctx
from otelctx import metrics
from tests import process_work as work


class Install(Protocol):
    def __call__(self, **settings: Any) -> None: ...


backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])

A, B = work.Seen("A", "A", "A", "A"), work.Seen("B", "B", "B", "B")
NONE = work.Seen(None, None, None, None)


@contextmanager
def session(value: str) -> Iterator[None]:
    """A turn of `value`, as an application has it: in a variable of its own, in a binding, and in baggage."""
    token = otel_context.attach(baggage.set_baggage("who", value))
    variable = work.KEY.set(value)
    try:
        with otelctx.bind(session=value):
            yield
    finally:
        work.KEY.reset(variable)
        otel_context.detach(token)


def runs(backend: str, main: Callable[[], Awaitable[None]]) -> None:
    before = metrics.error_counts()
    Context().run(partial(anyio.run, main, backend=backend))
    assert metrics.error_counts() == before


@backends
@pytest.mark.parametrize("mode", ["repair", "enforce"])
def test_work_in_a_process_that_a_has_started_sees_b_under_b_and_none_under_none(
    install: Install, backend: str, mode: str
) -> None:
    install(keys=work.SESSION, mode=mode)

    async def main() -> None:
        one = anyio.CapacityLimiter(1)
        with session("A"):
            assert await anyio.to_process.run_sync(work.seen) == A
            worker = await anyio.to_process.run_sync(os.getpid)
        with session("B"):
            assert await anyio.to_process.run_sync(work.seen, 1, 2, limiter=one) == B
            assert await anyio.to_process.run_sync(partial(work.seen, 1), cancellable=True) == B
            assert await anyio.to_process.run_sync(work.Thing().method) == B
        assert await anyio.to_process.run_sync(work.seen) == NONE
        assert await anyio.to_process.run_sync(os.getpid) == worker != os.getpid()

    runs(backend, main)


def test_in_observe_nothing_is_carried(install: Install) -> None:
    install(keys=work.SESSION, mode="observe")

    async def main() -> None:
        with session("A"):
            assert await anyio.to_process.run_sync(work.seen) == NONE

    runs("asyncio", main)


def test_a_worker_process_has_neither_the_key_of_whoever_needed_it_first_nor_a_claim_that_was_shed_there(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOARD_TASK", "t1")
    monkeypatch.delenv("APP_SESSION", raising=False)
    sources = [*work.SESSION["session"]["sources"], {"env": "APP_SESSION"}]
    install(keys={"session": {"sources": sources}}, claim={"env": {"task_id": "BOARD_TASK"}})

    async def environment() -> tuple[str | None, str | None]:
        names = ("APP_SESSION", "BOARD_TASK")
        session, task = [await anyio.to_process.run_sync(os.getenv, name) for name in names]
        return session, task

    async def as_the_holder() -> None:
        with session("A"):
            assert await environment() == (None, "t1")
            state, claim = await anyio.to_process.run_sync(work.claim)
            assert (state, claim and claim.task_id) == ("held", "t1")
            with otelctx.shed_claim():
                assert await anyio.to_process.run_sync(work.claim) == ("shed", None)

    async def as_a_job() -> None:
        with session("A"), otelctx.shed_claim():
            assert await environment() == (None, None)
            assert otelctx.claim_state() == "shed"
        state, claim = await anyio.to_process.run_sync(work.claim)
        assert (state, claim and claim.task_id) == ("held", "t1")

    runs("asyncio", as_the_holder)
    runs("asyncio", as_a_job)


def test_what_is_raised_and_what_cannot_be_sent_is_as_without_otelctx(install: Install) -> None:
    async def raised(*args: Any, **kwargs: Any) -> tuple[type[BaseException], str]:
        with pytest.raises(Exception) as found:  # noqa: PT011 - which it is, is compared
            await anyio.to_process.run_sync(*args, **kwargs)
        return found.type, str(found.value)

    found: list[list[tuple[type[BaseException], str]]] = []

    async def main() -> None:
        calls: list[tuple[Any, ...]] = [(int, "no number"), (), (work.add,), (None,)]
        found.append([await raised(*args) for args in calls])
        found[-1].append(await raised(work.add, 1, unknown=True))
        with pytest.raises(Exception, match=r"pickle|local object"):
            await anyio.to_process.run_sync(lambda: None)

    runs("asyncio", main)
    install(keys=work.SESSION)
    runs("asyncio", main)
    assert found[0] == found[1]
    assert found[0][0][0] is ValueError
