"""An RQ worker: ``python rq_worker.py fork|simple|spawn``, with a scheduler; or ``cron``, which enqueues jobs."""

from __future__ import annotations

import sys

import rq_jobs
import sightings
from rq_jobs import connection
from sightings import see

KIND = sys.argv[1]


def cron() -> None:
    """Enqueue a job every second."""
    from rq.cron import CronScheduler

    scheduler = CronScheduler(connection=connection)
    scheduler.register(rq_jobs.seen, "default", args=("tick",), interval=1)
    see("ready")
    scheduler.start()


def work() -> None:
    """Work until a signal comes."""
    kinds = {"fork": "ForkWorker", "simple": "SimpleWorker", "spawn": "SpawnWorker"}
    worker = getattr(rq_jobs, kinds[KIND])(["default"], connection=connection)
    see("ready")
    worker.work(with_scheduler=True)


if __name__ == "__main__":
    sightings.ambient()  # not in the processes that are started for jobs
    cron() if KIND == "cron" else work()
