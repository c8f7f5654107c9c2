"""Enqueues jobs as an application does: ``python rq_send.py SCENARIO``."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta

import rq_jobs as jobs
import turns
from rq import Callback, Queue, Retry
from rq.command import send_stop_job_command
from rq.job import Job
from rq_jobs import connection, queue
from sightings import session, write

import otelctx

sent: dict[str, Job] = {}


def send(task: str, label: str, *others: object) -> None:
    sent[label] = queue.enqueue(getattr(jobs, task), label, *others, retry=Retry(max=3) if task == "retried" else None)


def own() -> None:
    """With metadata of the application's own, and by a function's name."""
    with session("A"):
        queue.enqueue(jobs.seen, "with metadata", meta={"mine": "A"})
    with otelctx.bind(session="bound"):
        queue.enqueue("rq_jobs.seen", "by name")


def asks() -> None:
    """A job that asks for other attempts, and holds a claim."""
    with session("A"), otelctx.grant_claim(otelctx.Claim("t1")):
        queue.enqueue(jobs.asks_again, f"{turns.BEFORE}asks again", 2, "tainted")


def dies() -> None:
    """A job whose process goes down, and that holds a claim."""
    with session("A"), otelctx.grant_claim(otelctx.Claim("t1")):
        queue.enqueue(jobs.dies, "dies", retry=Retry(max=2))


def later() -> None:
    """A retry that is for later."""
    with session("A"):
        queue.enqueue(jobs.retried, "retries later", 1, retry=Retry(max=1, interval=1))


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
        queue.enqueue(jobs.retried, "fails", 99, on_failure=Callback(jobs.failed))
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


def requeue() -> None:
    """A failed job of A's, which an operator puts back."""
    with session("A"):
        job = queue.enqueue(jobs.retried, "requeued", 1)
    deadline = time.monotonic() + 20
    while job.get_status() != "failed" and time.monotonic() < deadline:
        time.sleep(0.05)
    with session("B"):
        Job.fetch(job.id, connection=connection).requeue()


def broken() -> None:
    """Carriers that are none."""
    carriers: dict[str, object] = {**turns.BROKEN, "bytes": b"\xff\xfe"}
    for name, carrier in carriers.items():
        with session("A"):
            job = Job.create(jobs.seen, (name,), connection=connection, origin="default")
        job.save()
        connection.hset(job.key, "otelctx", carrier)  # type: ignore[arg-type]
        connection.lpush(queue.key, job.id)


def outcome() -> None:
    """What has become of the messages that a worker in enforce has refused, and what is left."""

    def unfinished() -> int:
        return sum(job.get_status() not in ("finished", "failed") for job in sent.values())

    waiting = turns.settled(unfinished) + queue.count + queue.started_job_registry.count
    errors = []
    for label in turns.REFUSED:
        result = sent[label].latest_result()
        said = result.exc_string if result is not None and result.exc_string else "nothing"
        errors.append("MismatchError" if "MismatchError" in said else f"{sent[label].get_status()}: {said}")
    write("outcome", errors=errors, waiting=waiting)


if __name__ == "__main__":
    turns.run(sys.argv[1:], send, globals())
