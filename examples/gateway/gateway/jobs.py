"""Cron jobs, which run in whatever process is there when they are due."""

from dataclasses import dataclass

from opentelemetry import trace

from .tasks import Heartbeat, Reports

_tracer = trace.get_tracer(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """A cron job: an agent's run that nobody asked for today."""

    name: str


def run_job(job: Job, reports: Reports, heartbeat: Heartbeat) -> None:
    """Run `job` here and now."""
    with _tracer.start_as_current_span("agent", attributes={"gateway.run": job.name}):
        heartbeat.beat()
        # The fault. A job's run ends as every run does, and this process may be a worker: its task is not the job's.
        reports.finish(job.name)
