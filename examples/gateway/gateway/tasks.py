"""A worker's own task: which it is, that it is being worked on, and its end."""

import json
import os
import queue
import threading
from contextlib import suppress
from typing import Literal

from opentelemetry import trace

_tracer = trace.get_tracer(__name__)


def my_task() -> str | None:
    """The task that the dispatcher gave to this worker; None in a process that is no worker."""
    return os.environ.get("GATEWAY_TASK")


class Reports:
    """What a worker tells its dispatcher, a JSON line each. Used from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, kind: Literal["heartbeat", "finished"], by: str, task: str | None) -> None:
        """Tell that `by` has finished, or is at work; and what it takes for its task."""
        line = json.dumps({"type": kind, "by": by, "task": task})
        with suppress(BrokenPipeError):  # the dispatcher is gone, and so is our standard input: we end
            os.write(self._descriptor, f"{line}\n".encode())

    def finish(self, run: str) -> None:
        """What every run of an agent does at its end: report, and close its task where it has one."""
        task = my_task()
        attributes = {"gateway.run": run, "gateway.closes": task or "nothing"}
        with _tracer.start_as_current_span("finish", attributes=attributes):
            self.send("finished", run, task)


class Heartbeat:
    """Tells the dispatcher that the worker is at work on its task, from a thread of its own."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._wanted: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def beat(self) -> None:
        """Have it beat, as at every step of whatever runs in this process, and wait for that."""
        sent = threading.Event()
        self._wanted.put(sent)
        sent.wait()

    def _run(self) -> None:
        while True:
            sent = self._wanted.get()
            self._reports.send("heartbeat", "heartbeat", my_task())
            sent.set()
