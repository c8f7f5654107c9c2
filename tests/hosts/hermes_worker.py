"""A dispatcher's worker in which cron jobs run: ``hermes_worker.py REPORT``, started by hermes' own dispatcher.

The process has a task (``HERMES_KANBAN_TASK``). It runs a cron job as the cronjob tool does, by a direct call in the
thread of the worker, and then two at once by a tick of the scheduler. Each job is a real agent, whose model looks
around, asks a shell for the task, and wants to complete "its" task. All the while a heartbeat thread that the worker
started extends the claim on the board.

Nothing here knows otelctx, but for the question that is asked at the ends: who holds the claim?
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import ctypes
import json
import logging
import os
import queue
import re
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from cron import jobs, scheduler
from hermes_cli import kanban_db
from scripted_model import Message, Request, answered, calling, saying, serving
from tools import approval, kanban_tools
from tools.registry import registry

import otelctx

TASK_VARIABLE, OTHER_TASK = "HERMES_KANBAN_TASK", "t_other"
TOGETHER = 60.0  # seconds that one of two jobs waits for the other
CONFIG = """
model: {{default: model, provider: custom, base_url: {model}}}
approvals: {{mode: manual, timeout: 20}}
security: {{tirith_enabled: false}}
"""

_getenv = ctypes.CDLL(None).getenv
_getenv.restype, _getenv.argtypes = ctypes.c_char_p, [ctypes.c_char_p]


def look_around() -> dict[str, object]:
    """What code that runs here is told of the task that it works on."""
    real = _getenv(TASK_VARIABLE.encode())
    return {
        "default_task": kanban_tools._default_task_id(None),
        "explicit_task": kanban_tools._default_task_id(OTHER_TASK),
        "is_kanban_worker": kanban_tools._check_kanban_mode(),
        "environment": os.environ.get(TASK_VARIABLE),
        "names": sorted(name for name in os.environ if name.startswith("HERMES_KANBAN_")),
        "process": None if real is None else real.decode(),
        "session": approval.get_current_session_key(default=""),
        "cron_session": os.environ.get("HERMES_CRON_SESSION"),
        "claim": otelctx.claim_state(),
    }


class Heartbeat:
    """The holder's heartbeat: a thread of its own that extends the claim, here whenever it is asked to."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Future[dict[str, object]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._beat, name="heartbeat")
        self._thread.start()

    def _beat(self) -> None:
        while (asked := self._asked.get()) is not None:
            try:
                with kanban_db.connect_closing() as board:
                    task, lock = os.environ[TASK_VARIABLE], os.environ["HERMES_KANBAN_CLAIM_LOCK"]
                    extended = kanban_db.heartbeat_claim(board, task, claimer=lock)
                asked.set_result({**look_around(), "extended": extended})
            except BaseException as exc:
                asked.set_exception(exc)

    def now(self) -> dict[str, object]:
        asked: Future[dict[str, object]] = Future()
        self._asked.put(asked)
        return asked.result()

    def stop(self) -> None:
        self._asked.put(None)
        self._thread.join()


class Worker:
    """The process, its jobs and their model, and all that is observed."""

    def __init__(self) -> None:
        self.heartbeat = Heartbeat()
        self.jobs: dict[str, dict[str, Any]] = {}
        self.heartbeats: list[dict[str, object]] = []
        self.waiting: threading.Barrier | None = None

    def script(self, request: Request) -> Message:
        """The model of the jobs; it knows a job by its prompt."""
        name = next(iter(re.findall(r"report-\w+", json.dumps(request["messages"]))), None)
        if name is None:  # some other question of the host's: a title, a summary
            return saying("yes")
        so_far = answered(request)
        if not so_far:
            self.jobs[name] = {"tools": sorted(tool["function"]["name"] for tool in request.get("tools", []))}
            if self.waiting is not None:
                self.waiting.wait(TOGETHER)
        self.heartbeats.append(self.heartbeat.now())
        match so_far:
            case []:
                return calling("look_around")
            case [_]:
                return calling("terminal", command=f"echo task=[${TASK_VARIABLE}]")
            case [_, _]:
                return calling("kanban_complete", summary="done by a cron job")
        self.jobs[name] |= {"seen": json.loads(so_far[0]), "shell": so_far[1], "completed": so_far[2]}
        return saying("done")

    def job(self, name: str) -> dict[str, Any]:
        created: dict[str, Any] = jobs.create_job(
            f"Write report-{name}.", "every 1h", name=name, enabled_toolsets=["look", "terminal"]
        )
        return created


def main(report: Path) -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    logging.getLogger("otelctx").addHandler(handler)
    registry.register(
        name="look_around",
        toolset="look",
        schema={"name": "look_around", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
        handler=lambda *_, **__: json.dumps(look_around()),
    )
    registry.register_toolset_alias("look", "look")
    worker = Worker()
    claim = otelctx.current_claim()
    found: dict[str, Any] = {
        "otelctx": otelctx.is_installed(),
        "started_with": {name: value for name, value in os.environ.items() if name.startswith("HERMES_")},
        "marker": os.environ.get("OTELCTX_CLAIM"),
        "claim": claim and {"task": claim.task_id, "run": claim.attempt, "lock": claim.token},
        "before": look_around(),
    }
    with serving(worker.script) as model:
        config = Path(os.environ["HERMES_HOME"], "config.yaml")
        config.write_text(CONFIG.format(model=model), encoding="utf-8")
        before = dict(os.environ)
        found["direct"] = scheduler.run_job(worker.job("one"))[3]
        found["between"] = look_around()
        for name in ("two", "three"):
            jobs.trigger_job(worker.job(name)["id"])
        worker.waiting = threading.Barrier(2)
        found["ticked"] = scheduler.tick(verbose=False)
        after = dict(os.environ)
    found |= {
        "after": look_around(),
        "changed": sorted(name for name in {*before, *after} if before.get(name) != after.get(name)),
        "last_heartbeat": worker.heartbeat.now(),
        "heartbeats": worker.heartbeats,
        "jobs": worker.jobs,
        "log": records,
    }
    worker.heartbeat.stop()
    report.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
