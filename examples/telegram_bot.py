"""A bot with python-telegram-bot's JobQueue: reminders are whose chat has asked for them, the digest is nobody's.

    pip install 'python-telegram-bot[job-queue]'
    OTELCTX_ENABLED=true python examples/telegram_bot.py

It runs offline: two chats' messages are played to it, and what it would send is printed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from telegram.ext import Application, CallbackContext  # type: ignore[import-not-found,unused-ignore]

import otelctx


async def remind(context: CallbackContext[Any, Any, Any, Any]) -> None:
    """A one-shot job: it goes on as the chat that has asked for it."""
    print(f"reminder for chat {context.job.data}: session {otelctx.get('session')}", flush=True)


async def digest(context: CallbackContext[Any, Any, Any, Any]) -> None:
    """A repeating job: whoever has set it up, each run is a session of its own."""
    print(f"digest: session {otelctx.get('session')}", flush=True)


async def on_message(application: Any, chat: int, text: str) -> None:
    """What a handler does for a message of `chat`."""
    with otelctx.bind(session=f"telegram:{chat}"):
        if text == "/start":
            application.job_queue.run_repeating(digest, interval=0.2, first=0.1)
        else:
            application.job_queue.run_once(remind, when=0.3, data=chat)


async def main() -> None:
    """Play a conversation."""
    application = Application.builder().token("1:offline").build()
    await application.job_queue.start()
    await on_message(application, 1, "/start")
    await on_message(application, 1, "/remind")
    await on_message(application, 2, "/remind")
    await asyncio.sleep(0.6)
    await application.job_queue.stop()


if __name__ == "__main__":
    asyncio.run(main())
