"""Dramatiq, with a worker in threads of this process: actors that leave their variable set, and what comes after."""

from __future__ import annotations

import sys
from typing import Any

import dramatiq
import seen
from dramatiq.brokers.stub import StubBroker
from seen import APP_KEY, in_turn, see, wait_for

import otelctx

broker: Any = StubBroker()
dramatiq.set_broker(broker)


@dramatiq.actor
def one(*before: Any) -> None:
    """Write down what is seen."""
    see("failed" if isinstance(before[-1], dict) else str(before[-1]))


@dramatiq.actor
def leaves(*before: Any) -> str:
    """The same, and leave the variable set."""
    see(str(before[-1]))
    APP_KEY.set("left")
    return f"after {before[-1]}"


@dramatiq.actor(max_retries=0)
def fails(label: str) -> None:
    """The same, and fail."""
    see(label)
    APP_KEY.set("left")
    raise ValueError(label)


@dramatiq.actor
def sends(label: str) -> str:
    """Work for a session of the actor's own, and send something in its turn."""
    see(label)
    APP_KEY.set("A.sub")
    one.send(f"{label}:sent")
    return f"after {label}"


def brought() -> None:
    """What messages bring along: what follows in a pipeline, callbacks."""
    dramatiq.pipeline([leaves.message("first"), leaves.message(), one.message()]).run()
    sends.send_with_options(args=("sends",), on_success=one.actor_name)
    fails.send_with_options(args=("fails",), on_failure=one.actor_name)
    for label in ("after after first", "sends:sent", "after sends", "failed"):
        wait_for(label)


def shared_options() -> None:
    """Two sessions' messages are made with the same options, one while the other is being enqueued."""
    options: dict[str, Any] = {"max_retries": 0}

    def message(label: str) -> Any:
        return dramatiq.Message(queue_name="default", actor_name="one", args=(label,), kwargs={}, options=options)

    class Enqueues(dramatiq.Middleware):
        def before_enqueue(self, broker: Any, message_: Any, delay: Any) -> None:
            if message_.args == ("A",):
                in_turn("B", broker.enqueue, message("B"))

    broker.add_middleware(Enqueues())
    in_turn("A", broker.enqueue, message("A"))
    for label in "AB":
        wait_for(label)
    see("options")
    seen.seen[-1]["options"] = options


if __name__ == "__main__":
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=20)
    worker.start()
    if sys.argv[1] == "brought":
        with otelctx.bind(session="A"):
            token = APP_KEY.set("A")
            brought()
            APP_KEY.reset(token)
    else:
        shared_options()
    seen.report()
