"""A Huey consumer: ``python huey_consumer.py thread|process|greenlet``."""

from __future__ import annotations

import os
import sys

if sys.argv[1] == "greenlet":
    from gevent import monkey

    monkey.patch_all()

from huey_app import huey

if __name__ == "__main__":
    if os.environ.get("TICK"):  # a minute is too long for a test
        from huey.consumer import Scheduler

        Scheduler.periodic_task_seconds = 1
    consumer = huey.create_consumer(
        workers=1, worker_type=sys.argv[1], max_delay=0.1, periodic=bool(os.environ.get("TICK"))
    )
    consumer.run()
