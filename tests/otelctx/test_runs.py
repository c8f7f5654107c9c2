"""Coroutines that run one after the other in one task: each in a context of its own, and as asyncio runs any other."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

import otelctx
from otelctx import cron, runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Install

KEY: ContextVar[str] = ContextVar(f"{__name__}:KEY")
OTHER: ContextVar[str] = ContextVar("other")


@pytest.fixture(autouse=True)
def _on(install: Install) -> None:
    # Without an empty value: nothing but a context of its own can take it away again.
    install(keys={"session": {"sources": [{"contextvar": f"{__name__}:KEY"}]}})


def job(fn: Callable[..., Any]) -> Callable[..., Any]:
    return runs.each_call(fn, lambda: cron.departure("r", "job"), is_asynchronous=True)


def test_what_one_run_sets_is_gone_for_the_next_in_the_same_task() -> None:
    async def leave() -> tuple[str | None, str]:
        seen = otelctx.get("session"), KEY.get("absent")
        await asyncio.sleep(0)
        KEY.set("left")
        otelctx.attach(session="left")
        return seen

    async def main() -> list[Any]:
        each = job(leave)
        return [await each(), await each(), (otelctx.get("session"), KEY.get("absent"))]

    (first, one), (second, other), after = asyncio.run(main())
    assert first != second
    assert first is not None
    assert first.startswith("cron:r:job:")
    assert (one, other, after) == ("absent", "absent", (None, "absent"))


def test_an_undeclared_variable_that_a_run_sets_is_the_callers_as_without_otelctx() -> None:
    async def work() -> str:
        seen = OTHER.get("absent")
        OTHER.set("set")
        return seen

    async def main() -> tuple[str, str, str]:
        each = job(work)
        return await each(), OTHER.get("absent"), await each()

    assert asyncio.run(main()) == ("absent", "set", "set")


def test_tasks_timeouts_and_cancellation_work_in_a_run() -> None:
    async def work() -> list[object]:
        task = asyncio.current_task()
        key = otelctx.get("session")

        async def child() -> str | None:
            return otelctx.get("session")

        seen: list[object] = [task is not None, await asyncio.create_task(child()) == key]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        seen.append(otelctx.get("session") == key)
        return seen

    async def main() -> None:
        assert await job(work)() == [True, True, True]
        ended = asyncio.Event()

        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.set()

        task = asyncio.create_task(job(wait)())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())


def test_what_a_run_raises_and_what_closes_it_passes_through() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await job(fail)()

    asyncio.run(main())
    closed: list[str | None] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(otelctx.get("session"))

    running = job(wait)()
    running.send(None)
    running.close()
    (key,) = closed
    assert key is not None
    assert key.startswith("cron:r:job:")
