"""A turn: the user's message, the model's answer, the tools that it asks for, the reply."""

import asyncio
import itertools
import logging
from concurrent.futures import ThreadPoolExecutor

from opentelemetry import context, trace

from .channels import Channels
from .session import session
from .tools import ToolCall, Tools

_logger = logging.getLogger(__name__)
_tracer = trace.get_tracer(__name__)


class Agent:
    """Runs the turns of all sessions in one event loop, and their tools in one pool of threads.

    The model is whoever drives the gateway: a turn waits until `complete` brings its answer.
    """

    def __init__(self, channels: Channels, tools: Tools) -> None:
        self._channels = channels
        self._tools = tools
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="tools")
        self._numbers = itertools.count(1)
        self._answers: dict[str, asyncio.Future[list[ToolCall]]] = {}
        self._turns: set[asyncio.Task[None]] = set()

    def start(self, session_key: str, message: str) -> str:
        """Start a turn for `message` and return the turn's name."""
        turn = f"turn-{next(self._numbers)}"
        self._answers[turn] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._run(turn, session_key, message), name=turn)
        self._turns.add(task)
        task.add_done_callback(self._turns.discard)
        return turn

    def complete(self, turn: str, calls: list[ToolCall]) -> bool:
        """Bring the model's answer to a turn. False where the turn does not wait for one."""
        answer = self._answers.get(turn)
        if answer is None or answer.done():
            return False
        answer.set_result(calls)
        return True

    async def close(self) -> None:
        """End the turns that are under way, then the pool."""
        turns = list(self._turns)
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
        self._pool.shutdown()

    async def _run(self, turn: str, session_key: str, message: str) -> None:
        attributes = {"gateway.channel": session_key, "gateway.turn": turn, "gateway.message": message}
        with session(session_key), _tracer.start_as_current_span("turn", attributes=attributes):
            try:
                self._channels.send(session_key, {"type": "turn.started", "turn": turn})
                calls = await self._answers[turn]
                # The fault. A pool's worker has a context of its own, and the session key stays behind with this one;
                # `contextvars.copy_context().run` is what is missing. The span's context is handed over by hand, so
                # the trace looks right all the same.
                tools = [self._pool.submit(self._tools.run, call, context.get_current()) for call in calls]
                results = list(await asyncio.gather(*map(asyncio.wrap_future, tools)))
            except Exception:
                _logger.exception("%s of %s failed", turn, session_key)
                results = ["failed"]
            finally:
                del self._answers[turn]
            self._channels.send(session_key, {"type": "reply", "turn": turn, "results": results})
