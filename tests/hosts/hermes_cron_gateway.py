"""A gateway of hermes that serves session A and runs cron jobs: ``hermes_cron_gateway.py REPORT``.

Session A is bound as the gateway binds it, per message, in hermes' ContextVars and in the environment. In A's first
turn, hermes' scheduler thread is started, and in each of its turns A's agent wants to run a script, which a user has to
approve and a cron job may not: before any job ran, while one runs, and after it. At last A's agent runs the job itself,
by the cronjob tool. A job is a real agent, whose model looks around and wants to run a script, too.

What was seen, who was asked, and what OpenTelemetry and the log were told goes to REPORT. Nothing here knows otelctx:
it is on, or not, by the environment alone.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cron import jobs
from cron.scheduler_provider import InProcessCronScheduler
from gateway import session_context
from gateway.run import GatewayRunner
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted_model import Message, Request, answered, calling, saying, serving
from tools import approval
from tools.cronjob_tools import cronjob
from tools.registry import registry

A = "agent:main:webui:A"
MIRROR, CRON_SESSION = "HERMES_SESSION_KEY", "HERMES_CRON_SESSION"
SCRIPT = "print('hello')"
PATIENCE = 90.0  # seconds that one side waits for the other
CONFIG = """
model: {{default: model, provider: custom, base_url: {model}}}
approvals: {{mode: manual, cron_mode: deny, timeout: 20}}
security: {{tirith_enabled: false}}
"""

tracer = trace.get_tracer("hermes-app")


def look_around() -> dict[str, object]:
    """What code that runs here is told of the session that it works for."""
    stored = session_context._SESSION_KEY.get()
    with tracer.start_as_current_span("look around"):
        return {
            "session": approval.get_current_session_key(default=""),
            "approval_contextvar": approval._approval_session_key.get(),
            "gateway_contextvar": None if stored is session_context._UNSET else stored,
            "cron_session": os.environ.get(CRON_SESSION),
            "bindings": {name: session_context.get_session_env(name) for name in session_context._VAR_MAP},
            "thread": threading.current_thread().name,
        }


class Gateway:
    """The process: its user, its jobs and their model, and all that is observed."""

    def __init__(self) -> None:
        self.runner = object.__new__(GatewayRunner)  # all that is used of it is its executor
        self.spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        trace.set_tracer_provider(provider)
        self.log: list[dict[str, object]] = []
        handler = logging.Handler()
        handler.emit = self._logged  # type: ignore[method-assign]
        logging.getLogger("otelctx").addHandler(handler)

        self.cards: list[str] = []
        self.jobs: list[dict[str, Any]] = []
        self.stop = threading.Event()
        self.running, self.go_on = threading.Event(), threading.Event()
        self.scheduler = threading.Thread(
            target=InProcessCronScheduler().start, args=(self.stop,), kwargs={"interval": 1}, name="cron-scheduler"
        )

    def _logged(self, record: logging.LogRecord) -> None:
        attributes = {name: value for name, value in vars(record).items() if name.startswith("otelctx")}
        self.log.append({"message": record.getMessage(), "attributes": {n: str(v) for n, v in attributes.items()}})

    def script(self, request: Request) -> Message:
        """The model of the jobs."""
        if "report-nightly" not in json.dumps(request["messages"]):  # some other question of the host's
            return saying("yes")
        match answered(request):
            case []:
                self.running.set()
                self.go_on.wait(PATIENCE)
                return calling("look_around")
            case [_]:
                return calling("ask_to_run_a_script")
            case [seen, verdict, *_]:
                self.jobs.append({"seen": json.loads(seen), "verdict": json.loads(verdict)})
        return saying("done")

    def first_turn(self) -> object:
        self.scheduler.start()
        return ask_to_run_a_script()

    def turn(self, work: Callable[[], object]) -> dict[str, object]:
        """One message of session A, whose turn does `work` and looks around before and after it."""
        self.cards.clear()
        return asyncio.run(self._message(work))

    async def _message(self, work: Callable[[], object]) -> dict[str, object]:
        session_context.reset_session_vars()  # how the gateway's handler begins
        bound = session_context.set_session_vars(
            platform="webui", chat_id="chat-A", chat_name="A's", user_id="user-A", session_key=A, session_id="id-A"
        )
        os.environ[MIRROR] = A
        approval.register_gateway_notify(A, self._show)
        try:
            found: dict[str, object] = await self.runner._run_in_executor_with_context(self._agent_turn, work)
            return {**found, "cards": list(self.cards)}
        finally:
            approval.unregister_gateway_notify(A)
            session_context.clear_session_vars(bound)

    def _agent_turn(self, work: Callable[[], object]) -> dict[str, object]:
        token = approval.set_current_session_key(A)
        try:
            with tracer.start_as_current_span("turn"):
                before = look_around()
                return {"before": before, "result": work(), "after": look_around()}
        finally:
            approval.reset_current_session_key(token)

    def _show(self, card: dict[str, Any]) -> None:
        """The channel of session A: the person in it sees the card and says no."""
        self.cards.append(card["pattern_key"])
        approval.resolve_gateway_approval(A, "deny")

    def take(self) -> list[dict[str, object]]:
        """The spans that have ended since the last time."""
        spans = [_plain(span) for span in self.spans.get_finished_spans()]
        self.spans.clear()
        return spans


def ask_to_run_a_script() -> object:
    """What hermes' tool for scripts asks before it runs one."""
    return approval.check_execute_code_guard(SCRIPT, "local")


def register(tool: Callable[[], object]) -> None:
    """Let agents call `tool`, as a plugin's."""
    schema = {"name": tool.__name__, "description": tool.__doc__, "parameters": {"type": "object", "properties": {}}}
    registry.register(name=tool.__name__, toolset="look", schema=schema, handler=lambda *_, **__: json.dumps(tool()))


def _plain(span: ReadableSpan) -> dict[str, object]:
    return {
        "name": span.name,
        "trace": span.context.trace_id,
        "parent": span.parent.span_id if span.parent else None,
        "links": [link.context.trace_id for link in span.links],
        "attributes": {name: str(value) for name, value in (span.attributes or {}).items()},
    }


def main(report: Path) -> None:
    register(look_around)
    register(ask_to_run_a_script)
    registry.register_toolset_alias("look", "look")
    gateway = Gateway()
    found: dict[str, object] = {"otelctx": "otelctx" in sys.modules}
    with serving(gateway.script) as model:
        Path(os.environ["HERMES_HOME"], "config.yaml").write_text(CONFIG.format(model=model), encoding="utf-8")
        found["first"] = gateway.turn(gateway.first_turn)
        gateway.take()

        job = jobs.create_job("Write report-nightly.", "every 1h", name="n", enabled_toolsets=["look"])
        jobs.trigger_job(job["id"])
        assert gateway.running.wait(PATIENCE), "the scheduler did not run the job"
        found["during"] = gateway.turn(ask_to_run_a_script)
        gateway.go_on.set()
        gateway.stop.set()
        gateway.scheduler.join()
        while jobs.get_job(job["id"])["last_status"] is None:  # a pool of hermes' runs it
            time.sleep(0.1)
        found |= {"ticked": list(gateway.jobs), "ticked_spans": gateway.take()}
        found["later"] = gateway.turn(ask_to_run_a_script)
        gateway.take()

        gateway.jobs.clear()
        found["run_now"] = gateway.turn(lambda: json.loads(cronjob(action="run", job_id=job["id"])))
        found |= {"ran": list(gateway.jobs), "ran_spans": gateway.take(), "job": job["id"]}
    found["log"] = gateway.log
    report.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
