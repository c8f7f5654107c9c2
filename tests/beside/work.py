"""The hops that work is sent through: each gives what `look` gives where the work runs.

The pools of a `Hops` are its own: their threads are started by whoever needs them first.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any


class _Overriding(threading.Thread):
    def __init__(self, callback: Callable[..., None]) -> None:
        super().__init__()
        self.callback = callback

    def run(self) -> None:
        self.callback()


class Hops:
    def __init__(self, look: Callable[..., Any]) -> None:
        self._look = look
        self._executor = ThreadPoolExecutor(1)
        self._pool = ThreadPool(1)
        self.by_name: dict[str, Callable[[], Any]] = {
            "submit": lambda: self._executor.submit(look).result(10),
            "map": lambda: next(self._executor.map(look, [1])),
            "ThreadPool": lambda: self._pool.apply(look),
            "Thread": lambda: self._told(lambda callback: threading.Thread(target=callback).start()),
            "Thread subclass": lambda: self._told(lambda callback: _Overriding(callback).start()),
            "Timer": lambda: self._told(lambda callback: threading.Timer(0.001, callback).start()),
            "done-callback": lambda: self._told(self._by_done_callback),
            "create_task": lambda: asyncio.run(self._task()),
            "TaskGroup": lambda: asyncio.run(self._in_group()),
            "to_thread": lambda: asyncio.run(asyncio.to_thread(look)),
            "run_in_executor": lambda: asyncio.run(self._in_executor()),
            "a thread that calls the loop": lambda: asyncio.run(self._called_from_a_thread()),
        }

    def close(self) -> None:
        self._executor.shutdown()
        self._pool.close()
        self._pool.join()

    def _told(self, schedule: Callable[[Callable[..., None]], object]) -> Any:
        seen: list[Any] = []
        done = threading.Event()

        def callback(*_: object) -> None:
            seen.append(self._look())
            done.set()

        schedule(callback)
        assert done.wait(10)
        return seen[0]

    def _by_done_callback(self, callback: Callable[..., None]) -> None:
        release = threading.Event()
        self._executor.submit(release.wait, 10).add_done_callback(callback)
        release.set()

    async def _child(self) -> Any:
        await asyncio.sleep(0)
        return self._look()

    async def _in_group(self) -> Any:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._child())
        return task.result()

    async def _task(self) -> Any:
        return await asyncio.create_task(self._child())

    async def _in_executor(self) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._look)

    async def _called_from_a_thread(self) -> Any:
        loop = asyncio.get_running_loop()
        seen: asyncio.Future[Any] = loop.create_future()
        threading.Thread(target=loop.call_soon_threadsafe, args=(lambda: seen.set_result(self._look()),)).start()
        return await seen
