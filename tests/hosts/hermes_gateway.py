"""Two sessions, A and B, in one hermes process; the environment's interpreter runs it as ``hermes_gateway.py REPORT``.

The process is what hermes-webui makes of hermes-agent: every message has its own asyncio task and runs its turn in the
gateway's executor. Its session is bound in both of hermes' ContextVars and mirrored in ``HERMES_SESSION_KEY``, where
the last writer wins: here always B. Then a turn delegates to sub-agents, whose pool submits without a context.
Three turns: A delegates to a child that looks around, so does B, and A delegates a batch to real agents.

What each sub-agent saw, who was shown its approval cards, and what OpenTelemetry and the log were told goes to REPORT.
Nothing here knows otelctx: it is on, or not, by the environment alone.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from gateway import session_context
from gateway.run import GatewayRunner
from hermes_model import COMMAND, serving
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from run_agent import AIAgent
from tools import approval
from tools.delegate_tool import _run_single_child, delegate_task

A, B = "agent:main:webui:A", "agent:main:webui:B"
MIRROR = "HERMES_SESSION_KEY"
CONFIG = """
approvals: {mode: manual, timeout: 20}
security: {tirith_enabled: false}
"""

undeclared: ContextVar[str | None] = ContextVar("undeclared", default=None)
tracer = trace.get_tracer("hermes-app")


def look_around() -> dict[str, object]:
    """What code that runs here is told of the session that it works for."""
    stored = session_context._SESSION_KEY.get()
    return {
        "session": approval.get_current_session_key(default=""),
        "approval_contextvar": approval._approval_session_key.get(),
        "gateway_contextvar": None if stored is session_context._UNSET else stored,
        "environment": os.environ.get(MIRROR),
        "undeclared": undeclared.get(),
        "thread": threading.get_ident(),
    }


class Child:
    """A sub-agent that, instead of asking a model, looks around and wants to run one dangerous command."""

    def __init__(self) -> None:
        self.sightings: list[dict[str, object]] = []

    def run_conversation(self, **_: object) -> dict[str, object]:
        with tracer.start_as_current_span("sub-agent"):
            self.sightings.append(look_around())
            verdict = approval.check_all_command_guards(COMMAND, "local")
        return {"final_response": str(verdict["approved"]), "completed": True, "api_calls": 1}

    def get_activity_summary(self) -> dict[str, object]:
        return {}


class Records(logging.Handler):
    """The records of one logger, as plain data."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.records: list[dict[str, object]] = []
        logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        attributes = {name: _json(value) for name, value in vars(record).items() if name.startswith("otelctx")}
        self.records.append({"level": record.levelname, "message": record.getMessage(), "attributes": attributes})


class Process:
    """The gateway of this process, the people in its two sessions, and all that is observed."""

    def __init__(self) -> None:
        self.runner = object.__new__(GatewayRunner)  # all that is used of it is its executor
        self.spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        trace.set_tracer_provider(provider)
        self.log = Records("otelctx")
        self.cards: list[dict[str, object]] = []

    def turn(self, key: str, work: Callable[[], object]) -> dict[str, object]:
        """One message of session ``key``, whose turn does ``work`` while the other session is in a turn of its own."""
        self.spans.clear()
        self.log.records.clear()
        self.cards.clear()
        before, result = asyncio.run(self._two_messages(key, work))
        return {
            "result": result,
            "cards": list(self.cards),
            "log": list(self.log.records),
            "spans": [_plain(span) for span in self.spans.get_finished_spans()],
            "environment": [before, os.environ.get(MIRROR)],
        }

    async def _two_messages(self, key: str, work: Callable[[], object]) -> tuple[str | None, object]:
        a_is_bound, both_are_bound, worked = asyncio.Event(), asyncio.Barrier(3), asyncio.Event()

        async def message(session: str) -> object:
            session_context.reset_session_vars()  # how the gateway's handler begins
            if session == B:
                await a_is_bound.wait()  # so that the mirror says B
            session_context.set_session_vars(platform="webui", session_key=session)
            os.environ["HERMES_EXEC_ASK"] = "1"
            os.environ[MIRROR] = session
            a_is_bound.set()
            approval.register_gateway_notify(session, self._notify(session))
            try:
                await both_are_bound.wait()
                if session != key:  # in the middle of a turn of its own
                    await worked.wait()
                    return None
                try:
                    return await self.runner._run_in_executor_with_context(self._agent_turn, key, work)
                finally:
                    worked.set()
            finally:
                approval.unregister_gateway_notify(session)

        messages = [asyncio.create_task(message(A)), asyncio.create_task(message(B))]
        await both_are_bound.wait()
        before = os.environ.get(MIRROR)
        results = await asyncio.gather(*messages)
        return before, results[key == B]

    def _agent_turn(self, key: str, work: Callable[[], object]) -> object:
        token = approval.set_current_session_key(key)
        undeclared.set(key)
        try:
            with tracer.start_as_current_span("turn"):
                return work()
        finally:
            approval.reset_current_session_key(token)

    def _notify(self, key: str) -> Callable[[dict[str, Any]], None]:
        """The channel of session ``key``: the person in it sees the card and says no."""

        def show(card: dict[str, Any]) -> None:
            self.cards.append({"shown_to": key, "command": card["command"], **look_around()})
            approval.resolve_gateway_approval(key, "deny")

        return show


def delegate_to_child() -> object:
    """Run one child the way `delegate_task` does."""
    child = Child()
    outcome = _run_single_child(0, "clean up", child, parent_agent=None)
    return {"status": outcome["status"], "caller": threading.get_ident(), "sightings": child.sightings}


def delegate_to_agents(model: str) -> object:
    """Let a real agent delegate two tasks, which two real sub-agents work on in the batch pool."""
    parent = AIAgent(
        base_url=model,
        api_key="none",
        provider="custom",
        model="model",
        quiet_mode=True,
        enabled_toolsets=["terminal", "delegation"],
        skip_context_files=True,
        skip_memory=True,
    )
    outcome = json.loads(delegate_task(tasks=[{"goal": "clean up"}, {"goal": "clean up more"}], parent_agent=parent))
    return {"status": [result["status"] for result in outcome["results"]], "caller": threading.get_ident()}


def _plain(span: ReadableSpan) -> dict[str, object]:
    return {
        "name": span.name,
        "trace": span.context.trace_id,
        "parent": span.parent.span_id if span.parent else None,
        "id": span.context.span_id,
        "status": span.status.status_code.name,
        "attributes": _json(span.attributes or {}),
        "events": [{"name": event.name, "attributes": _json(event.attributes or {})} for event in span.events],
    }


def _json(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _json(of) for name, of in value.items()}
    if isinstance(value, tuple | list):
        return [_json(of) for of in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def main(report: Path) -> None:
    Path(os.environ["HERMES_HOME"], "config.yaml").write_text(CONFIG, encoding="utf-8")
    process = Process()
    with serving() as model:
        turns = {
            "child": process.turn(A, delegate_to_child),
            "other": process.turn(B, delegate_to_child),
            # Last: a real agent starts threads that outlive its turn.
            "agents": process.turn(A, lambda: delegate_to_agents(model)),
        }
    report.write_text(json.dumps({"otelctx": "otelctx" in sys.modules, "turns": turns}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
