"""A Celery application whose tasks write down what they see; workers, beat and senders import it."""

from __future__ import annotations

import os
from typing import Any

import attributes
import sightings
from celery import Celery, Task, signals
from celery.worker.control import control_command
from celery.worker.state import active_requests
from sightings import APP_KEY, see

if os.environ.get("THEIRS"):  # OpenTelemetry's own instrumentation
    from opentelemetry.instrumentation.celery import CeleryInstrumentor

    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]
sightings.ambient()
if os.environ.get("TELEMETRY"):
    sightings.telemetry()

app = Celery("celery_app", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.update(
    task_protocol=int(os.environ.get("PROTOCOL", "2")),
    task_always_eager=bool(os.environ.get("IN_PLACE")),
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"polling_interval": 0.05},
    worker_max_tasks_per_child=int(os.environ["MAX_TASKS"]) if "MAX_TASKS" in os.environ else None,
    beat_schedule={
        "nightly": {"task": "celery_app.ticked", "schedule": float(os.environ["TICK"]), "args": ["tick"]},
    }
    if "TICK" in os.environ
    else {},
    beat_max_loop_interval=0.2,
)


@signals.worker_ready.connect
def _ready(**_: Any) -> None:
    see("serves")
    see("ready")


@signals.task_received.connect
def _received(**_: Any) -> None:
    see("serves")


@signals.worker_process_init.connect
def _forked(**_: Any) -> None:
    see("child")


@signals.task_prerun.connect
def _prerun(task_id: str, **_: Any) -> None:
    if os.environ.get("SIGNALS"):
        see("prerun")


@signals.task_postrun.connect
def _postrun(task_id: str, **_: Any) -> None:
    if os.environ.get("SIGNALS"):
        see("postrun")


@app.task
def seen(label: str) -> str:
    """Write down what is seen."""
    see(label)
    return label


@app.task
def passed(before: Any, label: str) -> str:
    """A link of a chain, or the body of a chord."""
    see(label)
    return label


@app.task
def taints(label: str, key: str) -> str:
    """Set the application's variable, and never take it back."""
    see(label)
    APP_KEY.set(key)
    return label


@app.task(bind=True, max_retries=5)
def retried(self: Any, label: str, times: int, bound: str = "", countdown: float = 0.05) -> None:
    """Run `times` times more. `bound`: what the application's variable is when it retries."""
    see(label, retries=self.request.retries)
    if bound:
        APP_KEY.set(bound)
    if self.request.retries < times:
        raise self.retry(countdown=countdown)


@app.task(bind=True, autoretry_for=(KeyError,), retry_backoff=False, default_retry_delay=0.05, max_retries=5)
def retries_by_itself(self: Any, label: str, times: int) -> None:
    """Fail `times` times."""
    see(label, retries=self.request.retries)
    if self.request.retries < times:
        raise KeyError(label)


@app.task(bind=True)
def replaced(self: Any, label: str, by: str, bound: str = "") -> Any:
    """Have another task run in its place."""
    see(label)
    if bound:
        APP_KEY.set(bound)
    return self.replace(seen.s(by))


class _Watched(Task):  # type: ignore[misc]
    abstract = True

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        see(f"{args[0]}:on_failure")

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        see(f"{args[0]}:on_success")

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        see(f"{args[0]}:on_retry")

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        see(f"{args[0]}:after_return")


@app.task(base=_Watched)
def fails(label: str) -> None:
    """Fail."""
    see(label)
    raise ValueError(label)


@app.task
def failed(request: Any, exc: Any, traceback: Any, label: str) -> None:
    """An error callback of the newer kind."""
    see(label)


@app.task(base=_Watched)
def succeeds(label: str) -> None:
    """Return."""
    see(label)


@app.task(base=_Watched, time_limit=1)
def hangs(label: str) -> None:
    """Run until the worker's process is killed."""
    import time

    see(label)
    time.sleep(30)


@app.task(base=_Watched)
def waits(label: str) -> None:
    """Run until the worker cancels it."""
    import time

    see(label)
    time.sleep(30)


@control_command()
def cancel(state: Any) -> None:
    """What a worker does with the tasks that it runs when it has lost its broker, where it is told to."""
    for request in list(active_requests):
        request.cancel(state.consumer.pool)


@app.task(acks_late=True, reject_on_worker_lost=True)
def dies_once(label: str, marker: str) -> None:
    """Take its worker's process down the first time, so that the message is delivered again."""
    see(label)
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os._exit(1)


@app.task
def spreads(label: str) -> None:
    """Send another task."""
    see(label)
    seen.delay(f"{label}:sent")


@app.task(bind=True, max_retries=3, ignore_result=True)
def counted(self: Any, key: str, number: int) -> None:
    """Count whose it was; each third is retried, and each sets another key that it never resets."""
    seen_here = sightings.otelctx.get("session"), APP_KEY.get(None)
    app.backend.client.hincrby("counted", "right" if seen_here == (key, key) else f"{key} was {seen_here}")
    APP_KEY.set("tainted")
    if number % 3 == 0 and self.request.retries == 0:
        raise self.retry(countdown=0)
    app.backend.client.hincrby("processes", os.getpid())
    app.backend.client.incr("done")


@app.task(bind=True, max_retries=3)
def ticked(self: Any, label: str) -> None:
    """A periodic task; each run is retried once."""
    see(label, retries=self.request.retries, id=self.request.id)
    if self.request.retries < 1:
        raise self.retry(countdown=0.05)


@app.task
def uninstalls(label: str) -> None:
    """Uninstall otelctx in the process that runs this."""
    see(label)
    attributes.uninstall(
        "celery",
        lambda: [name for name, task in app.tasks.items() if type(task.__trace__).__module__.startswith("otelctx")],
    )


if os.environ.get("INSTALL"):
    attributes.install("celery")
