"""Background processes: what a turn leaves running, and which session is woken when it has ended."""

import itertools
import logging
import os
import pkgutil
import subprocess
import threading
from collections.abc import Callable
from typing import cast

from opentelemetry import context, trace
from opentelemetry.context import Context

from .channels import Channels

Process = subprocess.Popen[bytes]

_logger = logging.getLogger(__name__)
_tracer = trace.get_tracer(__name__)


class Processes:
    """The background processes, and a registry of whom to wake. Used from any thread."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._whom_to_wake = _resolver()
        self._numbers = itertools.count(1)
        self._running: dict[str, tuple[Process, threading.Thread]] = {}
        self._sessions: dict[str, str] = {}

    def start(self, name: str, session_key: str) -> str:
        """Start a process that is called `name`, wake `session_key` when it has ended, and return its id.

        It is a real process, and stands for a build or a server: it runs until `end` closes its input.
        """
        number = f"process-{next(self._numbers)}"
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        # The fault. The model chooses the names, and every session has a "build": the later record takes the place of
        # the earlier one, whose process is still running.
        self._sessions[name] = session_key
        watcher = threading.Thread(target=self._watch, args=(number, name, process, context.get_current()), name=number)
        self._running[number] = process, watcher
        watcher.start()
        return number

    def end(self, number: str) -> bool:
        """Let a process come to its end. False where there is none."""
        process, _ = self._running.get(number, (None, None))
        if process is None or process.stdin is None:
            return False
        process.stdin.close()
        return True

    def close(self) -> None:
        """End whatever still runs."""
        for number, (_, watcher) in list(self._running.items()):
            self.end(number)
            watcher.join()

    def _watch(self, number: str, name: str, process: Process, turn: Context) -> None:
        status = process.wait()
        del self._running[number]
        attributes = {"gateway.process": number}
        with _tracer.start_as_current_span("wake-up", context=turn, attributes=attributes) as span:
            session_key = self._whom_to_wake(process, self._sessions[name])
            span.set_attribute("gateway.channel", session_key)
            try:
                self._channels.send(session_key, {"type": "wake-up", "process": number, "status": status})
            except KeyError:
                _logger.warning("%s has ended, and there is no channel %r to wake", number, session_key)


def _resolver() -> Callable[[Process, str], str]:
    """Who decides which session is woken, from the process that has ended and the session that is on record.

    A function that the operator names, as ``module:function``; by default the record is believed.
    """
    path = os.environ.get("GATEWAY_WAKE_RESOLVER")
    if not path:
        return lambda process, recorded: recorded
    return cast("Callable[[Process, str], str]", pkgutil.resolve_name(path))
