"""What a job sees, and what an application does in a turn: for the programs of schedulers, which report to stdout."""

from __future__ import annotations

import contextvars
import json
import os
import sys
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if os.environ.get("INSTRUMENT_OPENTELEMETRY"):
    from opentelemetry.instrumentation.threading import ThreadingInstrumentor

    ThreadingInstrumentor().instrument()

from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otelctx

if TYPE_CHECKING:
    from collections.abc import Callable

APP_KEY: ContextVar[str] = ContextVar("app_key")
"""An application's own variable, without a default."""

_exporter = InMemorySpanExporter()
_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(_exporter))
trace.set_tracer_provider(_provider)
_tracer = trace.get_tracer("application")

seen: list[dict[str, Any]] = []
alerts: list[str] = []
otelctx.on_mismatch(lambda alert: alerts.append(f"{alert.reason} {alert.expected} {alert.observed}"))


def see(label: str) -> None:
    """Remember what the current context is."""
    seen.append(
        {
            "label": label,
            "app": APP_KEY.get(None),
            "baggage": baggage.get_baggage("app.session"),
            "key": otelctx.get("session"),
            "claim": otelctx.claim_state(),
        }
    )


def see_and_leave(label: str) -> None:
    """The same, in a job that sets its variable and never resets it."""
    see(label)
    APP_KEY.set(f"left by {label}")


async def see_in_task(label: str) -> None:
    """The same, in a coroutine."""
    see(label)


def number(label: str) -> int:
    """How many such sightings there are."""
    return sum(sighting["label"] == label for sighting in seen)


def in_turn(session: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `fn` as the application does in a turn of `session`: its variable, baggage and span are that turn's."""

    def turn() -> Any:
        APP_KEY.set(session)
        otel_context.attach(baggage.set_baggage("app.session", session))
        with _tracer.start_as_current_span(f"turn {session}"):
            return fn(*args, **kwargs)

    return contextvars.copy_context().run(turn)


def wait_for(label: str, times: int = 1, poll: Callable[[], object] = lambda: time.sleep(0.005)) -> None:
    """Wait until a job has seen something so often."""
    deadline = time.monotonic() + 20
    while number(label) < times:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{label}: {number(label)} of {times}; {seen}")
        poll()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until `is_so`."""
    deadline = time.monotonic() + 20
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)


def report() -> None:
    """Print all of it, and end at once: a scheduler's threads may linger."""
    spans = [
        {
            "name": span.name,
            "kind": span.kind.name,
            "span": span.context.span_id,
            "parent": span.parent.span_id if span.parent else None,
            "links": [link.context.span_id for link in span.links],
            "start": span.start_time / 1e9,
            "wait": (span.attributes or {}).get("otelctx.hop.wait"),
            "session": (span.attributes or {}).get("session.id"),
            "is_error": span.status.status_code is trace.StatusCode.ERROR,
        }
        for span in _exporter.get_finished_spans()
    ]
    from otelctx import metrics

    errors = metrics.error_counts()
    print(json.dumps({"seen": seen, "spans": spans, "alerts": alerts, "errors": errors}), flush=True)
    sys.stdout.flush()
    os._exit(0)
