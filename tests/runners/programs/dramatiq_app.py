"""Actors of an application that uses Dramatiq, on Redis: they write down what they see. Workers and senders have it."""

from __future__ import annotations

import inspect
import os
from typing import Any

import attributes
import dramatiq
import sightings
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage, Middleware
from sightings import APP_KEY, see

sightings.ambient()
if os.environ.get("TELEMETRY"):
    sightings.telemetry()

broker: Any = StubBroker() if os.environ.get("STUB") else RedisBroker(url=os.environ["BROKER"])


class Watching(Middleware):
    """What the threads of a worker see before they have a message, and behind it."""

    def after_worker_boot(self, broker: Any, worker: Any) -> None:
        see("ready")

    def before_delay_message(self, broker: Any, message: Any) -> None:
        see("serves")

    def before_worker_thread_shutdown(self, broker: Any, thread: Any) -> None:
        see("serves")

    def before_process_message(self, broker: Any, message: Any) -> None:
        if message.args and message.args[0] == "skipped":
            see("skipped")
            raise dramatiq.middleware.SkipMessage

    def after_skip_message(self, broker: Any, message: Any) -> None:
        see("after it was skipped")


broker.add_middleware(Watching())
broker.add_middleware(CurrentMessage())
HAS_ASYNC_ACTORS = hasattr(dramatiq.middleware, "AsyncIO")
if HAS_ASYNC_ACTORS:
    broker.add_middleware(dramatiq.middleware.AsyncIO())
dramatiq.set_broker(broker)

QUICK = {"min_backoff": 20, "max_backoff": 20}


def option(name: str) -> Any:
    message = CurrentMessage.get_current_message()  # None in a call that is no message
    return None if message is None else message.options.get(name)


def retries() -> int:
    return int(option("retries") or 0)


@dramatiq.actor(max_retries=0)
def seen(label: str) -> None:
    """Write down what is seen."""
    see(label, mine=option("mine"))


@dramatiq.actor
def followed(label: str) -> str:
    """The first of a pipeline, whose result is the next one's label."""
    see(label)
    return f"{label}:followed"


@dramatiq.actor
def taints(label: str, key: str) -> None:
    """Set the application's variable, and never take it back."""
    see(label)
    APP_KEY.set(key)


@dramatiq.actor(max_retries=5, **QUICK)
def retried(label: str, times: int, bound: str = "") -> None:
    """Fail `times` times; `bound`: what the application's variable is by then."""
    see(label, retries=retries())
    if bound:
        APP_KEY.set(bound)
    if retries() < times:
        raise ValueError(label)


@dramatiq.actor
def spreads(label: str) -> None:
    """Send another message."""
    see(label)
    seen.send(f"{label}:sent")


@dramatiq.actor(max_retries=0)
def fails(label: str) -> None:
    """Fail."""
    see(label)
    raise KeyError(label)


@dramatiq.actor
def on_failure(message: Any, exception: Any) -> None:
    """What is called when one has failed."""
    see(f"{message['args'][0]}:on_failure")


@dramatiq.actor
def on_success(message: Any, result: Any) -> None:
    """What is called when one has succeeded."""
    see(f"{message['args'][0]}:on_success")


if HAS_ASYNC_ACTORS:

    @dramatiq.actor(max_retries=5, **QUICK)
    async def waits(label: str, times: int = 0, bound: str = "") -> None:
        """An async actor, which does the same as `retried` and lets others run in between."""
        import asyncio

        await asyncio.sleep(0.01)
        see(label, retries=retries())
        if bound:
            APP_KEY.set(bound)
        await asyncio.sleep(0.01)
        if retries() < times:
            raise ValueError(label)

    assert not inspect.iscoroutinefunction(waits.fn)


@dramatiq.actor
def uninstalls(label: str) -> None:
    """Uninstall otelctx in the process that runs this."""
    see(label)
    attributes.uninstall("dramatiq")


if os.environ.get("INSTALL"):
    attributes.install("dramatiq")
