"""The dispatcher: gives each task to a worker, a process of its own, and keeps the board of what has become of it."""

import asyncio
import itertools
import json
import logging
import os
import secrets
import sys
from dataclasses import dataclass

from .channels import Channels

# A worker that was told to stop writes its telemetry first.
_GRACE_SECONDS = 10

_logger = logging.getLogger(__name__)


async def spawn(task: str, text: str) -> asyncio.subprocess.Process:
    """Start a worker for `task`. By these variables it knows that it is one, and which task is its own."""
    environment = {**os.environ, "GATEWAY_TASK": task, "GATEWAY_TASK_TOKEN": secrets.token_hex(8)}
    command = (sys.executable, "-m", "gateway.worker", text)
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment)


@dataclass(slots=True)
class _Task:
    session_key: str
    worker: asyncio.subprocess.Process
    is_open: bool = True


class Dispatcher:
    """The board: which tasks there are, and who has closed them. Used in the event loop."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._numbers = itertools.count(1)
        self._tasks: dict[str, _Task] = {}
        self._followers: set[asyncio.Task[None]] = set()

    async def dispatch(self, session_key: str, text: str) -> str:
        """Give a task of `session_key` to a new worker, and return the task's name."""
        name = f"task-{next(self._numbers)}"
        task = self._tasks[name] = _Task(session_key, await spawn(name, text))
        follower = asyncio.create_task(self._follow(task), name=name)
        _logger.info("%s goes to the worker [%d]", name, task.worker.pid)
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)
        return name

    def tell(self, name: str, line: str) -> bool:
        """Say `line` to the worker of a task. False where there is none (any more)."""
        task = self._tasks.get(name)
        if task is None or task.worker.returncode is not None or task.worker.stdin is None:
            return False
        task.worker.stdin.write(f"{line}\n".encode())
        return True

    async def close(self) -> None:
        """Stop the workers: the end of its input ends a worker."""
        for task in self._tasks.values():
            if task.worker.stdin is not None:
                task.worker.stdin.close()
        if self._followers:
            await asyncio.wait(self._followers, timeout=_GRACE_SECONDS)
        for task in self._tasks.values():
            if task.worker.returncode is None:
                task.worker.kill()

    async def _follow(self, task: _Task) -> None:
        assert task.worker.stdout is not None
        async for line in task.worker.stdout:
            self._on_report(task.session_key, json.loads(line))
        _logger.info("a worker has ended with status %s", await task.worker.wait())

    def _on_report(self, session_key: str, report: dict[str, str | None]) -> None:
        by, name = str(report["by"]), report["task"]
        if report["type"] == "heartbeat":
            self._channels.send(session_key, {"type": "task.heartbeat", "task": name})
            return
        if name is None:
            self._channels.send(session_key, {"type": "report", "by": by})
            return
        closed = self._tasks[name].is_open
        self._tasks[name].is_open = False
        if not closed:
            _logger.warning("%s wants to close %s, which is closed already", by, name)
        self._channels.send(session_key, {"type": "task.closed" if closed else "task.refused", "task": name, "by": by})
