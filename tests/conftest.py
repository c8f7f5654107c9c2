"""What every test starts from: otelctx off, nothing bound, no alert remembered; and what tests look at."""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context as OtelContext
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otelctx
from otelctx import flow, keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otelctx import Mismatch

_exporter = InMemorySpanExporter()

APP_KEY: ContextVar[Any] = ContextVar("app_key")
"""A ContextVar as an application has one for its session key; declared by the `app_source` of `install`."""

APP_SOURCE = {"contextvar": f"{__name__}:APP_KEY", "empty": [""]}


@pytest.fixture(scope="session", autouse=True)
def _provider() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_exporter))
    trace.set_tracer_provider(provider)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("OTELCTX_")]:
        monkeypatch.delenv(name)
    # What the process has seen so far: each test is a process of its own in this.
    keys._initial.clear()
    keys._ever_bound.clear()
    otel = otel_context.attach(OtelContext())
    state = flow.STATE.set(None)
    yield
    otelctx.uninstall()
    flow.STATE.reset(state)
    otel_context.detach(otel)


class Install(Protocol):
    """``install(mode="observe", …)``: otelctx on for this test, with settings as keyword arguments."""

    def __call__(self, **settings: Any) -> None: ...


@pytest.fixture
def install() -> Install:
    def turn_on(**settings: Any) -> None:
        otelctx.install({}, **settings)

    return turn_on


@pytest.fixture
def alerts() -> Iterator[list[Mismatch]]:
    """Every alert of this test, as callbacks get it."""
    seen: list[Mismatch] = []
    forget = otelctx.on_mismatch(seen.append)
    yield seen
    forget()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """What has been exported in this test."""
    _exporter.clear()
    yield _exporter
    _exporter.clear()


@contextmanager
def set_to(var: ContextVar[Any], value: Any) -> Iterator[None]:
    """Set an application's variable for a block."""
    token = var.set(value)
    try:
        yield
    finally:
        var.reset(token)


@pytest.fixture(autouse=True)
def _what_was_there_is_no_garbage(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that look for garbage collect a hundred times faster if they need not go through what was there before.

    Hypothesis asks the collector who refers to what, and would not see what is frozen.
    """
    if getattr(getattr(request.node, "obj", None), "is_hypothesis_test", False):
        yield
        return
    gc.freeze()
    yield
    gc.unfreeze()
