"""An RQ worker: ``python rq_worker.py fork|simple|spawn``, with a scheduler; or ``cron``, which enqueues jobs."""

from __future__ import annotations

import sys

import rq_jobs
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
    import rq.worker

    kinds = {"fork": "Worker", "simple": "SimpleWorker", "spawn": "SpawnWorker"}
    worker = getattr(rq.worker, kinds[KIND])(["default"], connection=connection)
    see("ready")
    worker.work(with_scheduler=True)


if __name__ == "__main__":
    cron() if KIND == "cron" else work()
