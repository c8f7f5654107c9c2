"""A worker: works on the one task that its dispatcher gave it. ``python -m gateway.worker TEXT``.

The clock and the model are whoever drives the gateway: a line of standard input says what happens next. Cron jobs that
are due meanwhile run here as well.
"""

import logging
import os
import sys

from opentelemetry import trace

from . import telemetry
from .jobs import Job, run_job
from .tasks import Heartbeat, Reports

_tracer = trace.get_tracer(__name__)


def main(text: str) -> None:
    """Work on the task until it is done, or until standard input ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    reports = Reports(os.dup(sys.stdout.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print is no report
    shutdown_telemetry = telemetry.configure("worker-")
    heartbeat = Heartbeat(reports)
    with _tracer.start_as_current_span("worker", attributes={"gateway.message": text}):
        heartbeat.beat()
        for line in sys.stdin:
            what, _, name = line.strip().partition(" ")
            if what == "job":
                run_job(Job(name), reports, heartbeat)
                heartbeat.beat()
            elif what == "done":
                reports.finish("worker")
                break
    shutdown_telemetry()


if __name__ == "__main__":
    main(sys.argv[1])
