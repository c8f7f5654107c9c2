"""The chat channels: an outbox for each, read by the channel's client as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TypedDict

CHANNELS = ("slack:ops", "telegram:family")


class Event(TypedDict, total=False):
    """What a channel's client is told.

    `type` is ``turn.started``, ``approval`` or ``reply``; ``wake-up``, when a background process has ended; of a task,
    ``task.heartbeat``, ``task.closed`` or, where it was closed already, ``task.refused``; and ``report`` of a run that
    has no task.
    """

    type: str
    turn: str
    approval: str
    command: str
    results: list[str]
    process: str
    status: int
    task: str | None
    by: str


class Channels:
    """The outboxes, by session key.

    Made inside the event loop that serves them; `send` may be called from any thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._outboxes: dict[str, asyncio.Queue[Event]] = {key: asyncio.Queue() for key in CHANNELS}

    def __contains__(self, key: str) -> bool:
        return key in self._outboxes

    def send(self, key: str, event: Event) -> None:
        """Put `event` into the outbox of the channel `key`. Raises `KeyError` where there is no such channel."""
        self._loop.call_soon_threadsafe(self._outboxes[key].put_nowait, event)

    async def stream(self, key: str) -> AsyncIterator[str]:
        """The channel's events, for its one client, as they come. What was sent before it connected waits for it."""
        outbox = self._outboxes[key]
        yield ": connected\n\n"
        while True:
            event = await outbox.get()
            yield f"data: {json.dumps(event)}\n\n"
