"""anyio's and trio's hops carry the context by themselves; the threads that they keep are nobody's.

Nothing of either is patched, but for anyio's processes (`test_anyio_processes`). What is tested is that nothing has to
be, on both of anyio's back ends, and that a worker thread that a session has started does not keep that session for the
next one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
import trio
import trio.from_thread
import trio.to_thread
from trio._core._thread_cache import ThreadCache

import otelctx
from otelctx import Mismatch, metrics
from tests.service_threads import NEUTRAL, Seen, look, session


class Install(Protocol):
    def __call__(self, **settings: Any) -> None: ...


Hop: TypeAlias = Callable[[], Awaitable[Seen]]

MODES = ("observe", "repair", "enforce")

backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])


async def coroutine() -> Seen:
    first = look()
    await anyio.sleep(0)
    assert look() == first
    return first


async def by_to_thread() -> Seen:
    return await anyio.to_thread.run_sync(look)


async def by_from_thread_run() -> Seen:
    return await anyio.to_thread.run_sync(anyio.from_thread.run, coroutine)


async def by_from_thread_run_sync() -> Seen:
    return await anyio.to_thread.run_sync(anyio.from_thread.run_sync, look)


async def by_start_soon() -> Seen:
    seen: list[Seen] = []

    async def task() -> None:
        seen.append(await coroutine())

    async with anyio.create_task_group() as group:
        group.start_soon(task)
    return seen[0]


async def by_start() -> Seen:
    async def task(*, task_status: anyio.abc.TaskStatus[Seen]) -> None:
        task_status.started(await coroutine())

    async with anyio.create_task_group() as group:
        seen: Seen = await group.start(task)
    return seen


async def by_a_thread_and_a_portal() -> Seen:
    seen: queue.SimpleQueue[Seen] = queue.SimpleQueue()
    async with anyio.from_thread.BlockingPortal() as portal:
        thread = threading.Thread(target=lambda: seen.put(portal.call(coroutine)))
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
    return seen.get()


HOPS: dict[str, Hop] = {
    name.removeprefix("by_"): hop for name, hop in dict(globals()).items() if name.startswith("by_")
}


@backends
@pytest.mark.parametrize(
    "mode, hop",
    # A thread carries nothing by itself, so it is not among those that observe leaves as they are.
    [(mode, hop) for mode in MODES for hop in HOPS if (mode, hop) != ("observe", "a_thread_and_a_portal")],
)
def test_work_that_an_anyio_hop_takes_along_sees_its_authors_key_claim_and_span(
    install: Install, alerts: list[Mismatch], backend: str, hop: str, mode: str
) -> None:
    install(mode=mode, spans="never")
    faults = metrics.error_counts()

    async def main() -> None:
        for _ in range(2):  # on cold workers, and on those that were kept
            for key in ("A", "B"):
                with session(key) as expected:
                    assert await HOPS[hop]() == expected
            assert await HOPS[hop]() == NEUTRAL

    anyio.run(main, backend=backend)
    assert alerts == []
    assert metrics.error_counts() == faults


@backends
def test_a_portal_that_a_session_starts_runs_what_another_one_hands_to_it_as_that_one(
    install: Install, alerts: list[Mismatch], backend: str
) -> None:
    install(spans="never")
    called: queue.SimpleQueue[Seen] = queue.SimpleQueue()
    with session("A"):
        started = anyio.from_thread.start_blocking_portal(backend)
        portal = started.__enter__()
    try:
        with session("B") as of_b:
            assert portal.call(look) == of_b
            assert portal.call(coroutine) == of_b
            future = portal.start_task_soon(coroutine)
            future.add_done_callback(lambda _: called.put(look()))
            assert future.result(20) == of_b
        assert called.get(timeout=20) == of_b
        assert portal.call(coroutine) == NEUTRAL
    finally:
        started.__exit__(None, None, None)
    assert alerts == []


@pytest.mark.parametrize("mode", MODES)
def test_work_that_a_trio_hop_takes_along_sees_its_authors_key_claim_and_span(
    install: Install, alerts: list[Mismatch], mode: str
) -> None:
    install(mode=mode, spans="never")

    async def hops() -> list[Seen]:
        seen = [
            await trio.to_thread.run_sync(look),
            await trio.to_thread.run_sync(trio.from_thread.run_sync, look),
            await trio.to_thread.run_sync(trio.from_thread.run, coroutine),
        ]

        async def task() -> None:
            seen.append(await coroutine())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(task)
        return seen

    async def main() -> None:
        for key in ("A", "B", "A"):
            with session(key) as expected:
                assert await hops() == [expected] * 4
        assert await hops() == [NEUTRAL] * 4

    trio.run(main)
    assert alerts == []


def test_a_thread_that_trio_keeps_sees_neither_the_session_that_started_it_nor_the_next(install: Install) -> None:
    install(spans="never")
    threads = ThreadCache()  # as trio's own, which may have an idle thread from before

    def in_a_kept_thread() -> Seen:
        seen: queue.SimpleQueue[Seen] = queue.SimpleQueue()
        threads.start_thread_soon(look, lambda outcome: seen.put(outcome.unwrap()))
        return seen.get(timeout=20)

    with session("A"):
        assert in_a_kept_thread() == NEUTRAL  # such a thread takes nothing along by itself
    with session("B"):
        assert in_a_kept_thread() == NEUTRAL
    assert in_a_kept_thread() == NEUTRAL


def test_what_work_in_a_kept_thread_binds_is_not_the_next_ones(install: Install) -> None:
    install(spans="never")

    async def main() -> None:
        with session("A") as of_a:
            leave = lambda: otelctx.attach(session="left behind")  # noqa: E731
            await anyio.to_thread.run_sync(leave)
            assert await anyio.to_thread.run_sync(look) == of_a
        assert await anyio.to_thread.run_sync(look) == NEUTRAL

    anyio.run(main)
    anyio.run(main, backend="trio")
