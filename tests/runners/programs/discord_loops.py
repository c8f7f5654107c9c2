"""discord.py's task loops, without Discord: started, and called by hand, in the turns of several sessions."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import seen
from discord.ext import tasks
from seen import APP_KEY, see

import otelctx


class Cog:
    """What an application has its loops in."""

    @tasks.loop(seconds=0.01, count=3)
    async def tick(self, label: str) -> None:
        see(label)
        APP_KEY.set(f"left by {label}")

    @tick.before_loop
    async def before(self) -> None:
        see("before the loop")

    @tick.after_loop
    async def after(self) -> None:
        see("after the loop")


@tasks.loop(seconds=0.01, count=3)
async def uninstalls() -> None:
    """Have otelctx go after the first iteration."""
    see("with" if not seen.seen else "without")
    otelctx.uninstall()


async def uninstalled() -> None:
    await uninstalls.start()
    seen.report()


async def main() -> None:
    cog = Cog()
    plain: Any = cog.tick.coro
    running = seen.in_turn("A", cog.tick.start, "loop")
    await seen.in_turn("B", lambda: asyncio.create_task(cog.tick("by hand")))
    await running
    assert cog.tick.coro is plain
    seen.report()


if __name__ == "__main__":
    asyncio.run(uninstalled() if len(sys.argv) > 1 else main())
