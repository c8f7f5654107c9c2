"""Random trees of hops, binds, the application's own writes, spans and exceptions, against a plain model of them.

A *program* is a tree of statements. `Machine` runs it with real pools, threads, loops and spans, and writes down what
every node sees; `Model` works out from the same tree, with dictionaries alone, what it should have seen. The two lists
are equal.

Each level of a tree has pools of its own with one worker each, which stay warm from tree to tree: what one task leaves
behind would show in the next, and no worker ever waits for itself. All is in step: work that hops waits at a gate until
whoever sent it off has done what comes between departure and arrival, so a tree gives the same every time.

``OTELCTX_FUZZ_TREES=10000`` (``make fuzz``) sets how many trees are built.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, Token, copy_context
from dataclasses import dataclass, field, replace
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from opentelemetry import baggage, trace

import otelctx
from otelctx import metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

TREES: Final = int(os.environ.get("OTELCTX_FUZZ_TREES", "250"))
PART: Final = 500
"""Trees at a time."""
DEPTH: Final = 3
"""How many hops a branch of a tree may have."""
PATIENCE: Final = 30.0
"""Seconds after which something that should have happened has not."""

Mode: TypeAlias = Literal["observe", "repair", "enforce"]


class _Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


ABSENT: Final = _Named("<absent>")
UNSET: Final = _Named("<unset>")
OBJECT: Final = _Named("<object>")

# Two sources of the session key, one of the tenant; and two variables that nobody declares.
S1: ContextVar[Any] = ContextVar("S1")
S2: ContextVar[Any] = ContextVar("S2")
T1: ContextVar[Any] = ContextVar("T1", default=None)
U1: ContextVar[Any] = ContextVar("U1")
U2: ContextVar[Any] = ContextVar("U2")
VARS: Final = {"S1": S1, "S2": S2, "T1": T1, "U1": U1, "U2": U2}
DECLARED: Final = ("S1", "S2", "T1")
LOOSE: Final = ("U1", "U2")

KEYS: Final = {
    "session": {
        "sources": [
            {"contextvar": f"{__name__}:S1", "empty": [""]},
            {"contextvar": f"{__name__}:S2", "unset": f"{__name__}:UNSET", "empty": [""]},
        ]
    },
    "tenant": {"attribute": "tenant.id", "sources": [{"contextvar": f"{__name__}:T1"}]},
}
SOURCES: Final = {"session": ("S1", "S2"), "tenant": ("T1",)}


# --- programs --------------------------------------------------------------------------------------------------------

HopKind = Literal[
    "submit",
    "map",
    "run_in_executor",
    "callback in the worker",
    "callback from here",
    "callback when done",
    "ThreadPool.apply",
    "ThreadPool.map",
    "ThreadPool.imap",
    "ThreadPool callback",
    "Thread",
    "Thread subclass",
    "Timer",
    "create_task",
    "to_thread",
    "copy_context().run",
    "submit(ctx.run)",
]


@dataclass(frozen=True)
class Set:
    """The application sets a variable of its own, and perhaps never resets it."""

    var: str
    value: object


@dataclass(frozen=True)
class Reset:
    """… or resets one that this body has set, in whatever order."""

    which: int


@dataclass(frozen=True)
class Attach:
    keys: Mapping[str, str]


@dataclass(frozen=True)
class Detach:
    """With a token of anybody's: in order, out of order, for the second time, of another context."""

    which: int


@dataclass(frozen=True)
class Fail:
    """Raise `BoomError`: the rest of the body is skipped."""


@dataclass(frozen=True)
class Capture:
    """`otelctx.capture`, for a later `Replay`."""


@dataclass(frozen=True)
class Bind:
    keys: Mapping[str, str]
    body: Body


@dataclass(frozen=True)
class Span:
    """An OpenTelemetry span around a body: a recorded one, or a remote parent of which nothing is recorded."""

    recorded: bool
    body: Body


@dataclass(frozen=True)
class Replay:
    which: int
    how: Literal["run", "wrap", "attached"]
    body: Body


@dataclass(frozen=True)
class Hop:
    kind: HopKind
    body: Body
    between: Body = ()
    """What the departing side does before the work arrives."""


@dataclass(frozen=True)
class Burst:
    """Several submissions to one worker, and what comes before each; none of them runs before all have departed."""

    parts: tuple[tuple[Body, Body], ...]


Statement: TypeAlias = Set | Reset | Attach | Detach | Fail | Capture | Bind | Span | Replay | Hop | Burst
Body: TypeAlias = tuple[Statement, ...]


class BoomError(Exception):
    pass


def programs() -> st.SearchStrategy[Body]:
    values = st.sampled_from("ABC")
    keys: st.SearchStrategy[dict[str, str]] = st.one_of(
        st.builds(dict, session=values), st.builds(dict, session=values, tenant=values), st.builds(dict, tenant=values)
    )
    which = st.integers(0, 3)
    leaves = st.one_of(
        st.builds(Set, st.just("S1"), st.sampled_from(["A", "B", "", OBJECT])),
        st.builds(Set, st.just("S2"), st.sampled_from(["A", "C", "", UNSET])),
        st.builds(Set, st.just("T1"), st.sampled_from(["A", "B", None])),
        st.builds(Set, st.sampled_from(LOOSE), st.sampled_from(["u", "v"])),
        st.builds(Reset, which),
        st.builds(Attach, keys),
        st.builds(Detach, which),
        st.just(Capture()),
    )
    between = st.lists(leaves, max_size=2).map(tuple)
    body = st.lists(st.one_of(leaves, st.just(Fail())), max_size=4).map(tuple)
    for level in range(DEPTH):
        # One choice for each kind of hop, so that all are as likely.
        hops = st.one_of([st.builds(Hop, st.just(kind), body, between) for kind in get_args(HopKind)])
        statements = st.one_of(
            leaves,
            hops,
            st.builds(Bind, keys, body),
            st.builds(Span, st.booleans(), body),
            st.builds(Replay, which, st.sampled_from(["run", "wrap", "attached"]), body),
            st.builds(Burst, st.lists(st.tuples(between, body), min_size=2, max_size=3).map(tuple)),
            st.just(Fail()),
        )
        body = st.lists(statements, min_size=level, max_size=5).map(tuple)
    return body


# --- the model -------------------------------------------------------------------------------------------------------
#
# Contexts are dictionaries. What is declared travels by replay, what is not stays with the worker, and what otelctx was
# told is a stack of bindings.


@dataclass(frozen=True, eq=False)
class Otel:
    """An OpenTelemetry Context: told apart by identity, as real ones are."""

    baggage: Mapping[str, str] = field(default_factory=dict)
    trace: int | None = None
    recorded: bool = False


@dataclass(frozen=True, eq=False)
class Binding:
    """One `attach`: each bound key with its value, and the raw values that the application had at that moment."""

    bound: Mapping[str, tuple[str, tuple[object, ...]]]


@dataclass(frozen=True)
class Handle:
    """A token of `attach`."""

    before: Binding | None
    after: Binding
    otel_before: Otel
    otel_after: Otel


NO_OTEL: Final = Otel()
CLEARED: Final = {"S1": "", "S2": UNSET, "T1": None}
"""What stands for absent where a variable cannot be unset: its `unset` or `empty` value, or its own default."""


@dataclass
class Own:
    """What is replayed: declared variables, and otelctx's and OpenTelemetry's state."""

    vars: dict[str, object] = field(default_factory=dict)
    binding: Binding | None = None
    gone: dict[Binding, Handle] = field(default_factory=dict)
    """Bindings that were detached in this context before a later one was: they go when that one does."""
    otel: Otel = NO_OTEL

    def copy(self) -> Own:
        return replace(self, vars=dict(self.vars), gone=dict(self.gone))


@dataclass
class Ctx:
    """A context: what is replayed, and undeclared variables."""

    own: Own = field(default_factory=Own)
    loose: dict[str, object] = field(default_factory=dict)

    def copy(self) -> Ctx:
        return Ctx(self.own.copy(), dict(self.loose))

    def home_of(self, var: str) -> dict[str, object]:
        return self.own.vars if var in DECLARED else self.loose


def reading(var: str, raw: object) -> str | None:
    """The value that an application's variable gives, if it is one: neither absent, nor cleared, nor something else."""
    return raw if isinstance(raw, str) and raw else None


def value(own: Own, key: str) -> str | None:
    """The latest writer wins: a binding counts until the application's own variables change."""
    raws = tuple(own.vars.get(var, ABSENT) for var in SOURCES[key])
    if own.binding is not None and key in own.binding.bound:
        bound, then = own.binding.bound[key]
        if all(one is other for one, other in zip(raws, then, strict=True)):
            return bound
    return next((found for var, raw in zip(SOURCES[key], raws, strict=True) if (found := reading(var, raw))), None)


def in_step(own: Own) -> Otel:
    """The OpenTelemetry Context of `own` with baggage that says what counts now; the same one where it does already."""
    says = {key: found for key in SOURCES if (found := value(own, key)) is not None}
    return own.otel if says == own.otel.baggage else replace(own.otel, baggage=says)


class Model:
    """What a program sees, worked out."""

    def __init__(self, mode: Mode, workers: Workers) -> None:
        self.mode = mode
        self.workers = workers
        self.log: list[object] = []
        self.handles: list[Handle] = []
        self.captured: list[Own] = []
        self.traces = itertools.count()

    def run(self, body: Body, ctx: Ctx, depth: int = 0) -> None:
        frame: list[tuple[str, object]] = []
        self.look(ctx)
        self.go_on(body, ctx, depth, frame)

    def go_on(self, body: Body, ctx: Ctx, depth: int, frame: list[tuple[str, object]]) -> None:
        for statement in body:
            self.step(statement, ctx, depth, frame)
            self.look(ctx)

    def look(self, ctx: Ctx) -> None:
        own = ctx.own
        self.log.append(
            (
                *(value(own, key) for key in SOURCES),
                *(ctx.home_of(var).get(var, ABSENT) for var in VARS),
                *(own.otel.baggage.get(key) for key in SOURCES),
                own.otel.trace,
            )
        )

    def attempt(self, body: Body, ctx: Ctx, depth: int) -> None:
        try:
            self.run(body, ctx, depth)
        except BoomError:
            self.log.append("BoomError")

    def step(self, statement: Statement, ctx: Ctx, depth: int, frame: list[tuple[str, object]]) -> None:
        own = ctx.own
        match statement:
            case Set(var, new):
                frame.append((var, ctx.home_of(var).get(var, ABSENT)))
                ctx.home_of(var)[var] = new
            case Reset(which):
                if frame:
                    var, old = frame.pop(which % len(frame))
                    ctx.home_of(var)[var] = old
                    if old is ABSENT:
                        del ctx.home_of(var)[var]
            case Attach(keys):
                self.attach(own, keys)
            case Detach(which):
                if self.handles:
                    self.detach(own, self.handles[which % len(self.handles)])
            case Fail():
                raise BoomError
            case Capture():
                captured = own.copy()
                captured.otel = in_step(captured)
                self.captured.append(captured)
            case Bind(keys, body):
                handle = self.attach(own, keys)
                self.handles.remove(handle)  # nobody has the token of a `with` block
                try:
                    self.go_on(body, ctx, depth, frame)
                finally:
                    self.detach(own, handle)
            case Span(recorded, body):
                before = own.otel
                same_trace = before.trace is not None and recorded
                label = before.trace if same_trace else next(self.traces)
                own.otel = replace(before, trace=label, recorded=recorded)
                if recorded:
                    self.log.append({key: value(own, key) for key in SOURCES})
                try:
                    self.go_on(body, ctx, depth, frame)
                finally:
                    own.otel = before
            case Replay(which, how, body):
                if not self.captured:
                    self.attempt(body, ctx, depth)
                elif how == "attached":
                    self.attached(self.captured[which % len(self.captured)], body, ctx, depth)
                else:
                    absent = [var for var in DECLARED if var not in own.vars]
                    self.attempt(body, Ctx(self.captured[which % len(self.captured)].copy(), ctx.loose), depth)
                    own.vars.update((var, CLEARED[var]) for var in absent)
            case Burst(parts):
                departed = []
                for between, _ in parts:
                    self.go_on(between, ctx, depth, frame)
                    departed.append(ctx.copy())
                for one, (_, body) in zip(departed, parts, strict=True):
                    self.arrive("submit", body, one, ctx, depth)
            case Hop(kind, body, between):
                departed_here = ctx.copy()
                if kind != "callback when done":
                    self.go_on(between, ctx, depth, frame)
                self.arrive(kind, body, departed_here, ctx, depth)

    def attach(self, own: Own, keys: Mapping[str, str]) -> Handle:
        bound = dict(own.binding.bound) if own.binding is not None else {}
        for key, new in keys.items():
            bound[key] = new, tuple(own.vars.get(var, ABSENT) for var in SOURCES[key])
        before, otel_before = own.binding, own.otel
        own.binding = Binding(bound)
        own.otel = in_step(own)
        handle = Handle(before, own.binding, otel_before, own.otel)
        self.handles.append(handle)
        return handle

    def detach(self, own: Own, handle: Handle) -> None:
        if own.binding is None:
            return
        if own.binding is not handle.after:
            own.gone[handle.after] = handle
            return
        binding = handle.before
        while binding is not None and binding in own.gone:
            binding = own.gone[binding].before
        own.binding = binding
        if binding is handle.before and own.otel is handle.otel_after:
            own.otel = handle.otel_before
        else:  # in another OpenTelemetry Context, or after a detach out of order
            own.otel = in_step(own)

    def attached(self, captured: Own, body: Body, ctx: Ctx, depth: int) -> None:
        """In the current context, where a variable can only be cleared, and is not reset by clearing it."""
        own, before = ctx.own, ctx.own.copy()
        cleared = {var: raw for var, raw in CLEARED.items() if var in own.vars and var not in captured.vars}
        own.vars.update({**captured.vars, **cleared})
        own.binding, own.gone, own.otel = captured.binding, dict(captured.gone), captured.otel
        if own.binding is not None and cleared:  # the binding counts all the same
            own.binding = Binding(
                {
                    key: (
                        bound,
                        tuple(cleared.get(v, r) if r is ABSENT else r for v, r in zip(SOURCES[key], raws, strict=True)),
                    )
                    for key, (bound, raws) in own.binding.bound.items()
                }
            )
        entered = own.copy()
        self.attempt(body, ctx, depth)
        # What the body has set itself stays.
        for var in DECLARED:
            was, is_to_be = before.vars.get(var, ABSENT), entered.vars.get(var, ABSENT)
            if own.vars.get(var, ABSENT) is is_to_be and was is not is_to_be:
                own.vars[var] = was
                if was is ABSENT:
                    del own.vars[var]
        bound_anew = own.binding is not entered.binding
        if not bound_anew:
            own.binding, own.gone = before.binding, before.gone
        if before.otel is not entered.otel and (own.otel is entered.otel or not bound_anew):
            own.otel = before.otel

    def arrive(self, kind: HopKind, body: Body, departed: Ctx, here: Ctx, depth: int) -> None:
        """Run `body` as it departed in `departed`; `here` is the context of whoever sent it."""
        if kind == "callback when done":  # no hop: it is called at once
            self.attempt(body, here, depth)
            return
        if kind in ("create_task", "to_thread", "copy_context().run", "submit(ctx.run)"):
            self.attempt(body, departed.copy(), depth + 1)
            return
        if kind in ("Thread", "Thread subclass", "Timer"):
            inherits = getattr(sys.flags, "thread_inherit_context", False)
            target = departed.copy() if inherits else Ctx()
        elif kind == "callback from here":
            target = here
        elif kind == "ThreadPool callback":
            target = self.workers.of("results", depth)
        elif kind.startswith("ThreadPool"):
            target = self.workers.of("ThreadPool", depth)
        else:
            target = self.workers.of("executor", depth)
        absent = [var for var in DECLARED if var not in here.own.vars] if target is here else []
        times = 2 if kind in ("map", "ThreadPool.map", "ThreadPool.imap") else 1
        if self.mode == "enforce" and self.is_refused(departed.own):
            times = 0
        for _ in range(times):
            if self.mode == "observe":
                self.attempt(body, target, depth + 1)
                continue
            own = departed.own.copy()
            own.otel = in_step(own)
            if own.otel.recorded:
                own.otel = replace(own.otel)  # with the hop's own span
            self.attempt(body, Ctx(own, target.loose), depth + 1)
        here.own.vars.update((var, CLEARED[var]) for var in absent)

    @staticmethod
    def is_refused(own: Own) -> bool:
        """Whether a source of the application, read alone, says something else than what counts."""
        return any(
            (found := reading(var, own.vars.get(var, ABSENT))) is not None and found != expected
            for key in SOURCES
            if (expected := value(own, key)) is not None
            for var in SOURCES[key]
        )


# --- the real thing --------------------------------------------------------------------------------------------------


class Workers:
    """Warm pools of one worker each, by the depth in the tree; and the contexts that the model gives their threads.

    A pool whose worker has been left with something of its own, by the model, is not used for the next tree: a tree
    must give the same wherever it is run.
    """

    def __init__(self) -> None:
        self._pools: dict[tuple[str, int], Any] = {}
        self._contexts: dict[tuple[str, int], Ctx] = {}

    def executor(self, depth: int) -> ThreadPoolExecutor:
        pool: ThreadPoolExecutor = self._pool("executor", depth, lambda: ThreadPoolExecutor(1))
        return pool

    def thread_pool(self, depth: int) -> ThreadPool:
        pool: ThreadPool = self._pool("ThreadPool", depth, lambda: ThreadPool(1))
        return pool

    def loop(self, depth: int) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = self._pool("loop", depth, asyncio.new_event_loop)
        return loop

    def of(self, pool: str, depth: int) -> Ctx:
        return self._contexts.setdefault((pool, depth), Ctx())

    def _pool(self, name: str, depth: int, make: Callable[[], Any]) -> Any:
        if (name, depth) not in self._pools:
            # Where threads inherit, a worker has its undeclared variables from whoever submits first.
            self._pools[name, depth] = Context().run(make)
            if name == "executor":
                Context().run(self._pools[name, depth].submit, int).result(PATIENCE)
        return self._pools[name, depth]

    def renew(self) -> None:
        """Let go of every pool that is not as new."""
        for (name, depth), ctx in list(self._contexts.items()):
            if ctx.loose or ctx.own != Own():
                self.drop("ThreadPool" if name == "results" else name, depth)

    def drop(self, name: str, depth: int) -> None:
        pool = self._pools.pop((name, depth), None)
        for context in (name, "results") if name == "ThreadPool" else (name,):
            self._contexts.pop((context, depth), None)
        if isinstance(pool, ThreadPoolExecutor):
            pool.shutdown()
        elif isinstance(pool, ThreadPool):
            pool.close()
            pool.join()
        elif pool is not None:
            pool.close()

    def close(self) -> None:
        for name, depth in list(self._pools):
            self.drop(name, depth)


class Subclassed(threading.Thread):
    """Overrides ``run`` and never calls ``super().run()``."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.work = work

    def run(self) -> None:
        self.work()


class Machine:
    """What a program sees, really."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.log: list[object] = []
        self.tokens: list[Any] = []
        self.captured: list[otelctx.Snapshot] = []
        self.traces: dict[int, int] = {}
        self.tracer = trace.get_tracer(__name__)

    def run(self, body: Body, depth: int = 0) -> None:
        frame: list[tuple[ContextVar[Any], Token[Any]]] = []
        self.look()
        self.go_on(body, depth, frame)

    def go_on(self, body: Body, depth: int, frame: list[tuple[ContextVar[Any], Token[Any]]]) -> None:
        for statement in body:
            self.step(statement, depth, frame)
            self.look()

    def look(self) -> None:
        entries = baggage.get_all()
        span = trace.get_current_span().get_span_context()
        self.log.append(
            (
                *(otelctx.get(key) for key in SOURCES),
                *(var.get(ABSENT) for var in VARS.values()),
                *(entries.get(f"otelctx.{key}") for key in SOURCES),
                self.traces.get(span.trace_id, -1) if span.is_valid else None,
            )
        )

    def attempt(self, body: Body, depth: int) -> None:
        """Run `body`, and write down that it raised."""
        with suppress(BoomError):
            self.risk(body, depth)

    def risk(self, body: Body, depth: int) -> None:
        try:
            self.run(body, depth)
        except BoomError:
            self.log.append("BoomError")
            raise

    def step(self, statement: Statement, depth: int, frame: list[tuple[ContextVar[Any], Token[Any]]]) -> None:
        match statement:
            case Set(name, new):
                frame.append((VARS[name], VARS[name].set(new)))
            case Reset(which):
                if frame:
                    var, token = frame.pop(which % len(frame))
                    var.reset(token)
            case Attach(keys):
                self.tokens.append(otelctx.attach(**keys))
            case Detach(which):
                if self.tokens:
                    otelctx.detach(self.tokens[which % len(self.tokens)])
            case Fail():
                raise BoomError
            case Capture():
                self.captured.append(otelctx.capture())
            case Bind(keys, body):
                with otelctx.bind(**keys):
                    self.go_on(body, depth, frame)
            case Span(recorded, body):
                self.span(recorded, body, depth, frame)
            case Replay(which, how, body):
                self.replay(which, how, body, depth)
            case Burst(parts):
                gate = threading.Event()
                futures = []
                try:
                    for between, body in parts:
                        self.go_on(between, depth, frame)
                        futures.append(self.workers.executor(depth).submit(self.gated(gate, body, depth)))
                finally:
                    gate.set()
                for future in futures:
                    self.waiting(future.result)()
            case Hop(kind, body, between):
                gate = threading.Event()
                wait = self.depart(kind, body, depth, gate)
                try:
                    if kind != "callback when done":
                        self.go_on(between, depth, frame)
                finally:
                    gate.set()
                wait()

    def span(self, recorded: bool, body: Body, depth: int, frame: list[tuple[ContextVar[Any], Token[Any]]]) -> None:
        if not recorded:
            number = len(self.traces) + 1
            self.traces[number] = len(self.traces)
            sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)
            remote = trace.SpanContext(number, number, is_remote=True, trace_flags=sampled)
            with trace.use_span(trace.NonRecordingSpan(remote), record_exception=False, set_status_on_exception=False):
                self.go_on(body, depth, frame)
            return
        with self.tracer.start_as_current_span("fuzz") as span:
            self.traces.setdefault(span.get_span_context().trace_id, len(self.traces))
            attributes: Mapping[str, object] = span.attributes  # type: ignore[attr-defined]
            self.log.append({"session": attributes.get("session.id"), "tenant": attributes.get("tenant.id")})
            self.go_on(body, depth, frame)

    def replay(self, which: int, how: str, body: Body, depth: int) -> None:
        if not self.captured:
            self.attempt(body, depth)
            return
        snapshot = self.captured[which % len(self.captured)]
        if how == "attached":
            with suppress(BoomError), snapshot.attached():
                self.risk(body, depth)
            return
        with self.washed(), suppress(BoomError):
            if how == "run":
                snapshot.run(self.risk, body, depth)
            else:
                snapshot.wrap(self.risk)(body, depth)

    @contextmanager
    def washed(self) -> Iterator[None]:
        """Around work that is replayed in the current context, and may leave something in a variable that was absent.

        That cannot be unset, and whether it stays depends on what else the context holds; so the application clears it.
        """
        absent = [var for var in DECLARED if VARS[var].get(ABSENT) is ABSENT]
        yield
        for var in absent:
            VARS[var].set(CLEARED[var])

    def gated(self, gate: threading.Event, body: Body, depth: int) -> Callable[..., None]:
        """The work of a hop: `body`, once the gate is open."""

        def work(*_: object) -> None:
            assert gate.wait(PATIENCE), "the gate was never opened"
            self.risk(body, depth + 1)

        return work

    def depart(self, kind: HopKind, body: Body, depth: int, gate: threading.Event) -> Callable[[], None]:
        """Send `body` off; what is returned waits for it."""
        work = self.gated(gate, body, depth)

        def safe(*_: object) -> None:
            with suppress(BoomError):
                work()

        match kind:
            case "submit":
                return self.waiting(self.workers.executor(depth).submit(work).result)
            case "submit(ctx.run)":
                return self.waiting(self.workers.executor(depth).submit(copy_context().run, work).result)
            case "map":
                items = self.workers.executor(depth).map(safe, range(2), timeout=PATIENCE)
                return self.waiting(lambda _: list(items))
            case "ThreadPool.apply":
                return self.waiting(self.workers.thread_pool(depth).apply_async(work).get)
            case "ThreadPool.map":
                return self.waiting(self.workers.thread_pool(depth).map_async(safe, range(2), chunksize=1).get)
            case "ThreadPool.imap":
                iterator: Any = self.workers.thread_pool(depth).imap(safe, range(2))
                return self.waiting(lambda timeout: [iterator.next(timeout) for _ in range(2)])
            case "ThreadPool callback":
                # One that raises ends the pool's own thread.
                return self.waiting(self.workers.thread_pool(depth).apply_async(int, callback=safe).get)
            case "Thread" | "Thread subclass" | "Timer":
                thread: threading.Thread
                if kind == "Thread":
                    thread = threading.Thread(target=work, daemon=True)
                elif kind == "Timer":
                    thread = threading.Timer(0, work)
                else:
                    thread = Subclassed(work)
                thread.start()
                return lambda: self.join(thread)
            case "callback when done":
                done: Future[None] = Future()
                done.set_result(None)
                gate.set()
                done.add_done_callback(lambda _: self.attempt(body, depth))
                return lambda: None
            case "callback from here":
                future: Future[None] = Future()
                future.add_done_callback(work)

                def set_result() -> None:
                    with self.washed():
                        future.set_result(None)

                return set_result
            case "callback in the worker":
                over = threading.Event()
                # Nobody's, but for the callback itself: in enforce these could be refused, too.
                opened = Context().run(self.workers.executor(depth).submit, gate.wait, PATIENCE)
                opened.add_done_callback(work)
                Context().run(opened.add_done_callback, lambda _: over.set())
                return self.waiting(lambda timeout: over.wait(timeout) or pytest.fail("no callback"))
            case "copy_context().run":
                context = copy_context()
                return self.waiting(lambda _: context.run(work))
            case "create_task" | "to_thread" | "run_in_executor":
                return self.depart_in_loop(kind, work, depth)
        raise AssertionError(kind)

    def depart_in_loop(self, kind: str, work: Callable[[], None], depth: int) -> Callable[[], None]:
        if asyncio._get_running_loop() is not None:  # no loop runs within a loop: the same by hand
            executor, context = self.workers.executor(depth), copy_context()
            if kind == "run_in_executor":
                return self.waiting(executor.submit(work).result)
            return self.waiting(lambda _: context.run(work))
        loop = self.workers.loop(depth)

        async def main() -> None:
            if kind == "create_task":
                work()
            elif kind == "to_thread":
                loop.set_default_executor(self.workers.executor(depth))
                await asyncio.wait_for(asyncio.to_thread(work), PATIENCE)
            else:
                await asyncio.wait_for(loop.run_in_executor(self.workers.executor(depth), work), PATIENCE)

        task = loop.create_task(main())  # departs here
        return self.waiting(lambda _: loop.run_until_complete(task))

    def waiting(self, result: Callable[[float], object]) -> Callable[[], None]:
        def wait() -> None:
            with suppress(BoomError, otelctx.MismatchError):
                result(PATIENCE)

        return wait

    def join(self, thread: threading.Thread) -> None:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the thread never ended"


# --- the tests -------------------------------------------------------------------------------------------------------


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.close()


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    # Alerts are not what is looked at, and each would be a line in the report.
    monkeypatch.setattr(logging.getLogger("otelctx"), "disabled", True)
    monkeypatch.setattr(logging.getLogger("concurrent.futures"), "disabled", True)
    loud = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not isinstance(args.exc_value, BoomError | otelctx.MismatchError):
            loud(args)

    monkeypatch.setattr(threading, "excepthook", hook)


def compare(mode: Mode, program: Body, workers: Workers) -> None:
    faults = metrics.error_counts()
    model, machine = Model(mode, workers), Machine(workers)
    model.attempt(program, Ctx(), 0)
    try:
        Context().run(machine.attempt, program, 0)
        assert machine.log == model.log
        assert metrics.error_counts() == faults
    except BaseException:
        workers.close()  # whatever is in them now is not in the model
        raise
    workers.renew()


finds_and_shrinks = pytest.mark.timeout(600 + TREES)
"""A tree that differs is made small before it is shown, which takes longer than all that came before it."""


def explore(mode: Mode, trees: int, workers: Workers, spans: InMemorySpanExporter) -> None:
    """Build `trees` trees and compare each. In parts, since hypothesis remembers all that it has tried."""
    otelctx.install({}, keys=KEYS, mode=mode)
    for part in range(0, trees, PART):

        @seed(random.getrandbits(64))
        @settings(
            max_examples=min(PART, trees - part),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(program=programs())
        def the_same(program: Body) -> None:
            spans.clear()
            compare(mode, program, workers)

        the_same()


@finds_and_shrinks
def test_every_node_of_a_tree_of_hops_sees_what_a_plain_model_says(
    workers: Workers, spans: InMemorySpanExporter
) -> None:
    explore("repair", TREES, workers, spans)


@finds_and_shrinks
def test_in_observe_every_node_sees_what_it_would_see_without_otelctx(
    workers: Workers, spans: InMemorySpanExporter
) -> None:
    explore("observe", max(1, TREES // 5), workers, spans)


@finds_and_shrinks
def test_in_enforce_work_does_not_run_where_a_source_disagrees_and_else_sees_what_it_would_in_repair(
    workers: Workers, spans: InMemorySpanExporter
) -> None:
    explore("enforce", max(1, TREES // 5), workers, spans)


A: Final = {"session": "A"}
B: Final = {"session": "B"}
C: Final = {"session": "C"}


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            (Set("S1", "A"), Capture(), Replay(0, "run", (Set("S1", "B"),))),
            id="what replayed work leaves in a variable that it found as captured is taken back",
        ),
        pytest.param(
            (Attach(A), Capture(), Replay(0, "wrap", (Attach(B),))),
            id="what replayed work binds and never detaches is taken back",
        ),
        pytest.param(
            (Set("S1", "A"), Capture(), Replay(0, "attached", (Set("S1", "B"),))),
            id="what an attached block sets itself in a variable stays",
        ),
        pytest.param(
            (Set("S1", "A"), Hop("callback from here", (Set("S1", "B"),))),
            id="a callback leaves nothing with whoever resolves its future",
        ),
        pytest.param(
            (Attach(A), Attach(B), Detach(0), Detach(1)),
            id="baggage has no entry any more after two tokens were detached out of order",
        ),
        pytest.param(
            (Bind(A, (Attach(B),)), Detach(0)),
            id="baggage has no entry any more after a token was detached outside of its with block",
        ),
        pytest.param(
            (Attach(A), Bind(A, (Detach(0),))),
            id="baggage has no entry any more after a bind of the same value outlived the outer one",
        ),
        pytest.param(
            (Bind(A, (Attach(B),)), Hop("submit", (Detach(0),))),
            id="work that detaches does not go back to a binding that had ended when it departed",
        ),
        pytest.param(
            (Attach(A), Capture(), Set("S1", "A"), Attach(B), Replay(0, "attached", (Detach(0),))),
            id="a token of anybody's that is detached inside an attached block does not keep the block from ending",
        ),
        pytest.param(
            (Attach(A), Attach(B), Hop("copy_context().run", (Detach(0),)), Detach(1)),
            id="a token that another context detaches still counts here",
        ),
        pytest.param(
            (Attach(A), Hop("submit", (Bind(C, ()),), between=(Attach(B), Detach(0)))),
            id="work keeps its key after a bind of its own although its sender has gone on to the next message",
        ),
        pytest.param(
            (Attach(A), Hop("submit", (Bind(C, ()),), between=(Detach(0), Detach(0)))),
            id="work keeps its key after a bind of its own although its sender detached twice",
        ),
    ],
)
def test_a_program_that_once_differed(program: Body, workers: Workers) -> None:
    otelctx.install({}, keys=KEYS)
    compare("repair", program, workers)
