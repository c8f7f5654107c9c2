"""discord.py's task loops, ``discord.ext.tasks`` of 2.x.

What is patched and why there: ``Loop._loop`` is the coroutine that waits and calls the loop's function, ``Loop.coro``.
While it runs, the function is one each of whose calls is a cron run; a call from anywhere else than the loop's own task
is a plain one, since calling a task's function is no hop. ``Loop.start`` makes that task, which lives on after whoever
started it: it starts without a key and a span, so the hooks before and after the loop have none either.

What escapes: nothing is known to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otelctx import cron, faults, place, runs, workers
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import SpanContext

    from otelctx.departure import Departure

RUNNER: Final = "discord"

_caused: WeakKeyDictionary[Any, SpanContext | None] = WeakKeyDictionary()


def _start(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def start(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not active.on:
            return original(self, *args, **kwargs)
        try:
            _caused[self] = cron.cause()
        except Exception as exc:
            faults.internal_error("discord", exc)
        return workers.serving(original, self, *args, **kwargs)

    return start


def _loop(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = each = self.coro
        if active.on:
            try:
                each = self.coro = _each_iteration(self, plain, active)
            except Exception as exc:
                faults.internal_error("discord", exc)
        try:
            return await original(self, *args, **kwargs)
        finally:
            if self.coro is each:
                self.coro = plain

    return loop


def _each_iteration(loop: Any, fn: Callable[..., Any], active: Active) -> Callable[..., Any]:
    import asyncio

    # This runs in it. (`Loop.get_task` is that of the last start.)
    own = asyncio.current_task()

    def departed() -> Departure | None:
        if not active.on or asyncio.current_task() is not own:
            return None
        return cron.departure(RUNNER, place.name_of(fn), fn, cause=_caused.get(loop))

    return runs.each_call(fn, departed, is_asynchronous=True)


PATCHES = (
    Patch("discord.ext.tasks", "Loop.start", _start),
    Patch("discord.ext.tasks", "Loop._loop", _loop),
)
