"""RQ, with a worker in this process: callbacks of jobs that leave their variable set, or whose worker is gone."""

from __future__ import annotations

import os
import sys
from typing import Any

import redis
import rq
import seen
from rq import Callback, Queue, SimpleWorker
from rq.registry import StartedJobRegistry
from seen import APP_KEY, in_turn, see

import otelctx

connection = redis.Redis.from_url(os.environ["BROKER"])
queue = Queue(connection=connection)


def leaves(label: str) -> None:
    """Write down what is seen, and leave the variable set."""
    see(label)
    APP_KEY.set("left")


def fails(label: str) -> None:
    """The same, and fail."""
    leaves(label)
    raise ValueError(label)


def succeeded(job: Any, connection: Any, result: Any) -> None:
    """A callback for a job that has succeeded."""
    see("succeeded")


def failed(job: Any, connection: Any, *error: Any) -> None:
    """A callback for one that has failed."""
    see("failed")


def called_back() -> None:
    """A worker runs jobs that have callbacks."""
    queue.enqueue(leaves, "leaves", on_success=Callback(succeeded))
    queue.enqueue(fails, "fails", on_failure=Callback(failed))
    SimpleWorker([queue], connection=connection).work(burst=True, logging_level="CRITICAL")


def abandoned() -> None:
    """A job was started by a worker that is gone: whoever cleans up calls its callback."""
    job = queue.enqueue(leaves, "never", on_failure=Callback(failed))
    registry = StartedJobRegistry(queue=queue)
    connection.zadd(registry.key, {f"{job.id}:1" if rq.VERSION >= "2" else job.id: 1})
    job.set_status("started")
    in_turn("B", registry.cleanup)


SCENARIOS = {"called back": called_back, "abandoned": abandoned}

if __name__ == "__main__":
    import rq_attacks  # RQ takes no functions of the main module

    if len(sys.argv) > 2:
        otelctx.install()  # when all of RQ is there
    with otelctx.bind(session="A"):
        token = APP_KEY.set("A")
        rq_attacks.SCENARIOS[sys.argv[1]]()
        APP_KEY.reset(token)
    seen.report()
