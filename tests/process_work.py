"""What the tests of processes and interpreters run in them: importable there, and quick to import."""

from __future__ import annotations

import io
import marshal
import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextvars import ContextVar, Token
from decimal import getcontext
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import otelctx

if TYPE_CHECKING:
    from collections.abc import Callable

    from otelctx import Mismatch

KEY: ContextVar[Any] = ContextVar(f"{__name__}:KEY")
"""An application's variable for its session key."""

TENANT: ContextVar[Any] = ContextVar(f"{__name__}:TENANT")

UNSET = object()
"""What that application sets it to where there is no session."""

UNDECLARED: ContextVar[Any] = ContextVar(f"{__name__}:UNDECLARED", default=None)

SESSION: dict[str, Any] = {
    "session": {"sources": [{"contextvar": f"{__name__}:KEY", "unset": f"{__name__}:UNSET", "empty": ["", "-"]}]}
}

ALERTS: list[Mismatch] = []
"""Where a forked worker finds what was told in it, if its parent has asked for that."""


class Seen(NamedTuple):
    """What a piece of work sees: the application's variable, the key, its baggage entry, and somebody else's."""

    variable: object
    key: object
    entry: object
    baggage: object


def seen(*_: object) -> Seen:
    from opentelemetry import baggage

    return Seen(
        KEY.get(None), otelctx.get("session"), baggage.get_baggage("otelctx.session"), baggage.get_baggage("who")
    )


def serve(calls: Any, results: Any) -> None:
    """A worker of a pool that otelctx does not know."""
    while calls.get():
        results.put(seen())


def put_seen(queue: Any) -> None:
    queue.put(seen())


class OwnRun:
    """A process's own `run`, for each start method."""

    def __init__(self, queue: Any) -> None:
        super().__init__()
        self.queue = queue

    def run(self) -> None:
        self.queue.put(seen())


class ForkWithARunOfItsOwn(OwnRun, multiprocessing.get_context("fork").Process):  # type: ignore[misc]
    pass


class SpawnWithARunOfItsOwn(OwnRun, multiprocessing.get_context("spawn").Process):  # type: ignore[misc]
    pass


STARTED: list[Seen] = []


class SendsItself(ProcessPoolExecutor):
    """An executor that pickles work by itself, so that it can be anything."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        sent = io.BytesIO()
        _AsItself(sent).dump(fn)
        return super().submit(call_as_itself, sent.getvalue(), *args, **kwargs)


class _AsItself(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, FunctionType) and "<locals>" in thing.__qualname__:
            return _made_of, (marshal.dumps(thing.__code__),)
        return NotImplemented


def _made_of(code: bytes) -> Any:
    return FunctionType(marshal.loads(code), {"work": sys.modules[__name__]})


def call_as_itself(sent: bytes, *args: object) -> Any:
    return pickle.loads(sent)(*args)


class Outlaw(type):
    """The type of a class that does not say what it is."""

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__name__", "__qualname__"):
            raise RuntimeError("none of your business")
        return super().__getattribute__(name)


def note_seen() -> None:
    """For an initializer."""
    STARTED.append(seen())


def what_was_noted() -> list[Seen]:
    return STARTED


def keep(value: str) -> None:
    """Set what the next task must not see, and what it must."""
    KEY.set(value)
    otelctx.attach(session=value)
    UNDECLARED.set(value)
    getcontext().prec = 7


def kept() -> tuple[Seen, object, int]:
    return seen(), UNDECLARED.get(), getcontext().prec


TOKENS: list[Token[Any]] = []


def enter(value: str) -> None:
    """Begin in one task what `leave` ends in another: a context manager that is kept."""
    TOKENS.append(UNDECLARED.set(value))


def leave() -> object:
    UNDECLARED.reset(TOKENS.pop())
    return UNDECLARED.get()


def raw() -> object:
    return KEY.get("absent")


def is_unset() -> bool:
    return KEY.get(None) is UNSET


def environment() -> tuple[str | None, str | None]:
    return os.environ.get("APP_SESSION"), os.environ.get("APP_CRON")


def tenant() -> tuple[object, object]:
    return TENANT.get(None), otelctx.get("tenant")


def alerts() -> tuple[Seen, list[Mismatch]]:
    return seen(), ALERTS


def claim(*_: object) -> tuple[str, otelctx.Claim | None]:
    return otelctx.claim_state(), otelctx.current_claim()


def put_claim(queue: Any) -> None:
    queue.put(claim()[0])


def claim_of_a_child() -> tuple[str, str]:
    """The claim here, and the marker in the environment of a child."""
    code = "import os; print(os.environ.get('OTELCTX_CLAIM'))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    return otelctx.claim_state(), ran.stdout.strip()


def installed() -> tuple[bool, Seen]:
    return otelctx.is_installed(), seen()


def fails(*_: object) -> NoReturn:
    raise KeyError("no such thing")


def dies(*_: object) -> NoReturn:
    os._exit(3)


def unpicklable(*_: object) -> Callable[[], None]:
    return lambda: None


def pid(*_: object) -> int:
    return os.getpid()


def add(one: int, other: int = 1, *, self: int = 0, fn: int = 0) -> int:
    return one + other + self + fn


class Thing:
    """A large object that a task takes along."""

    def method(self) -> Seen:
        return seen()


def identity(thing: object) -> object:
    return thing


def is_same(one: Thing, other: Any) -> bool:
    """Whether what was one object on the other side is one here."""
    return other.__self__ is one


def trace_providers() -> None:
    """An initializer: the worker has an SDK."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())


def span() -> dict[str, Any]:
    """The current span: whether it records, its trace, its parent, and what it says."""
    from opentelemetry import trace

    current: Any = trace.get_current_span()
    context = current.get_span_context()
    told = {"trace": context.trace_id, "span": context.span_id, "recording": current.is_recording()}
    if current.is_recording():
        told |= {"name": current.name, "parent": current.parent.span_id, "attributes": dict(current.attributes)}
    return told
