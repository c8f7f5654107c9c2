"""Enqueues jobs as an application does: ``python rq_send.py SCENARIO``."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta

import rq_jobs as jobs
from rq import Callback, Queue, Retry
from rq.command import send_stop_job_command
from rq.job import Job
from rq_jobs import connection, queue
from sightings import see, session

import otelctx


def one() -> None:
    """Under A, under B and under nothing."""
    for key in "AB":
        with session(key):
            queue.enqueue(jobs.seen, key, meta={"mine": key})
    queue.enqueue(jobs.seen, "nobody")
    with otelctx.bind(session="bound"):
        queue.enqueue("rq_jobs.seen", "by name")


def taint() -> None:
    """A job that sets the key and never resets it, before one of nobody."""
    for number in range(3):
        with session("A"):
            queue.enqueue(jobs.taints, f"A{number}", "tainted")
        queue.enqueue(jobs.taints, f"nobody{number}", "tainted")


def retry() -> None:
    """Under A, with B served in between; a job that binds another key before it fails."""
    with session("A"):
        queue.enqueue(jobs.fails, "retries", 2, retry=Retry(max=3))
        queue.enqueue(jobs.fails, "binds and retries", 2, "tainted", retry=Retry(max=3))
        queue.enqueue(jobs.fails, "retries later", 1, retry=Retry(max=1, interval=1))
    with session("B"):
        queue.enqueue(jobs.seen, "between")
    queue.enqueue(jobs.fails, "nobody retries", 2, retry=Retry(max=3))


def everything() -> None:
    """Everything that enqueues otherwise, or later."""
    with session("A"):
        queue.enqueue_in(timedelta(seconds=0.5), jobs.seen, "enqueue_in")
        queue.enqueue_at(datetime.now(UTC) + timedelta(seconds=0.5), jobs.seen, "enqueue_at")
        queue.enqueue_many(
            [
                Queue.prepare_data(jobs.seen, ("many 1",)),
                Queue.prepare_data(jobs.seen, ("many 2",)),
            ]
        )
        first = queue.enqueue(jobs.seen, "first")
        queue.enqueue(jobs.seen, "dependent", depends_on=first)
        queue.enqueue(jobs.seen, "succeeds", on_success=Callback(jobs.succeeded))
        queue.enqueue(jobs.fails, "fails", on_failure=Callback(jobs.failed))
        queue.enqueue(jobs.spreads, "spreads")
        created = Job.create(jobs.seen, ("created and enqueued by B",), connection=connection)
        created.save()
    with session("B"):
        queue.enqueue_job(created)


def stop() -> None:
    """A job that is stopped, whose callback runs in the worker."""
    with session("A"):
        job = queue.enqueue(jobs.hangs, "hangs", on_stopped=Callback(jobs.stopped))
    deadline = time.monotonic() + 20
    while job.get_status() != "started" and time.monotonic() < deadline:
        time.sleep(0.05)
    send_stop_job_command(connection, job.id)


def immediate() -> None:
    """A queue that is not asynchronous: its jobs are the caller's own work."""
    with session("A"):
        Queue("now", connection=connection, is_async=False).enqueue(jobs.seen, "immediate")
        see("after")


def requeue() -> None:
    """A failed job of A's, which an operator puts back."""
    with session("A"):
        job = queue.enqueue(jobs.fails, "requeued", 1)
    deadline = time.monotonic() + 20
    while job.get_status() != "failed" and time.monotonic() < deadline:
        time.sleep(0.05)
    with session("B"):
        Job.fetch(job.id, connection=connection).requeue()


def traced() -> None:
    """Within a span."""
    from opentelemetry import trace

    with session("A"), trace.get_tracer("tests").start_as_current_span("turn"):
        queue.enqueue(jobs.fails, "traced", 1, retry=Retry(max=1))


def broken() -> None:
    """Carriers that are none."""
    carriers: dict[str, object] = {
        "text": "nonsense",
        "truncated": '1..{"n":"0',
        "oversized": "1.." + "x" * 20_000,
        "bytes": b"\xff\xfe",
        "signature": '1.AAAA.{"n":"0","t":1,"keys":{"session":{"v":"B"}}}',
        "types": '1..{"n":"0","t":"yesterday","keys":{"session":["B"]}}',
    }
    for name, carrier in carriers.items():
        with session("A"):
            job = Job.create(jobs.seen, (name,), connection=connection, origin="default")
        job.save()
        connection.hset(job.key, "otelctx", carrier)  # type: ignore[arg-type]
        connection.lpush(queue.key, job.id)


def table() -> None:
    """The rows of the table: after B's job, which leaves the key."""
    with session("B"):
        queue.enqueue(jobs.taints, "B", "B")
    with session("A"):
        queue.enqueue(jobs.seen, "under A")
    queue.enqueue(jobs.seen, "under nothing")
    with session("A"):
        queue.enqueue(jobs.fails, "retry", 1, retry=Retry(max=1))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
