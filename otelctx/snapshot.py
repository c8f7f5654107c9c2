"""Capture and replay: what departs with the work, and how it arrives. The hot path, and the only one.

`depart` reads the declared variables, otelctx's own state and the OpenTelemetry Context, and compares them *by
identity* with the snapshot that was prepared last in this context; nearly always it is the same one, and nothing is
built. `arrive` runs the work in a copy of the snapshot's prepared `contextvars.Context` where the worker's own
context is empty (a neutral worker: nothing to compare, nothing to restore), and hands everything else to
`otelctx.arrival`.

A snapshot says nothing by leaving something out: a variable that was **absent** at departure is absent at arrival
(*total replay*), whatever the worker held. It holds strings, the application's raw values of *declared* variables and
the OpenTelemetry Context, and it goes when the work has run.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from otelctx import flow, metrics, owners, ownership, policy, runtime
from otelctx.claim import SHED
from otelctx.keys import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from otelctx.flow import Flow

P = ParamSpec("P")
R = TypeVar("R")

Set = tuple[ContextVar[Any], object]

_counted: Final = (*policy.NAMES, policy.NAMES[policy.CALLBACK])
_carried: Final = tuple(metrics.hop_counter(name, "carried") for name in _counted)
_minted: Final = tuple(metrics.hop_counter(name, "minted") for name in _counted)
_shed: Final = tuple(metrics.hop_counter(name, "shed") for name in _counted)
EMPTY: Final = tuple(metrics.hop_counter(name, "empty") for name in _counted)


class Snapshot:
    """What departs with a piece of work. `capture` makes one; it may be replayed any number of times, concurrently."""

    __slots__ = (
        "before",
        "cells",
        "context",
        "counts",
        "detailed",
        "flow",
        "otel",
        "otel_departed",
        "otel_set",
        "owner",
        "packed",
        "size",
    )

    def __init__(
        self,
        before: Flow,
        after: Flow,
        otel_departed: Any,
        otel: Any,
        *,
        detailed: bool,
    ) -> None:
        self.before = before
        """The flow that departed."""
        self.flow = after
        """The flow that arrives: the same one, but where a key is minted or shed."""
        self.otel_departed = otel_departed
        self.otel = otel
        """The OpenTelemetry Context that arrives, its baggage in step with the flow."""
        self.detailed = detailed
        """Whether the hop has more to it than carrying: a span, a place and a time, a comparison of all sources."""
        self.cells: tuple[Set, ...]
        """Each variable of the flow that is replayed, with its raw value, `MISSING` where it is to be absent. The
        OpenTelemetry Context is replayed besides."""
        self.context: Context
        self.size: int
        """The prepared context; copied for every arrival, never entered after this."""
        own = zip(after.registry.vars, after.raws, strict=True)
        self.cells = (*own, (flow.STATE, after.state), (after.registry.flow, after.to_keep()))
        self.context = Context()
        self.context.run(_fill, self.replayed(), after.registry.root)
        self.size = len(self.context)
        self.otel_set = None if otel is runtime.empty else otel
        """What the prepared context says for the OpenTelemetry Context, None where it says nothing."""
        self.owner: owners.Owner | None = owners.of(after)
        """Whose the work is; None where it is nobody's."""
        self.packed: str
        """As text, once it has gone to another process (unset before that); see `otelctx.carrier`."""
        self.counts: tuple[Callable[[], int], ...] = EMPTY
        """How to count its arrival, by the kind of hop."""
        if not (after.is_empty and before.is_empty):
            self.counts = _carried if after is before else _minted if _is_minted(before, after) else _shed

    def replayed(self) -> tuple[Set, ...]:
        """Each variable that is replayed, with its raw value: the flow's, and OpenTelemetry's."""
        # What departed before there was an OpenTelemetry Context arrives in an empty one.
        return (*self.cells, (runtime.variable, runtime.empty if self.otel is None else self.otel))

    def run(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn` as the captured identity, here and now; what it returns or raises is passed on.

        A coroutine that it returns is run as the captured identity too, whoever awaits it.
        """
        result = arrive(self, policy.EXPLICIT, fn, args, kwargs)
        if type(result) is CoroutineType:
            from otelctx import runs

            work: Any = result
            return runs.captured(self, work)  # type: ignore[return-value]
        return result

    def wrap(self, fn: Callable[P, R], /) -> Callable[P, R]:
        """A callable that runs `fn`, sync or async, as the captured identity, wherever and as often as it is called.

        Raises `TypeError` for a generator function: its body runs in whoever iterates over it. There, use `attached`.
        """
        import inspect
        from functools import wraps

        from otelctx import cron

        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError(
                "otelctx: a generator function cannot be wrapped: its body runs in whoever iterates over it"
            )
        if cron.is_asynchronous(fn):

            @wraps(fn)
            async def captured_async(*args: Any, **kwargs: Any) -> Any:
                result: Any = self.run(fn, *args, **kwargs)
                return await result

            return captured_async  # type: ignore[return-value]

        @wraps(fn)
        def captured(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.run(fn, *args, **kwargs)

        return captured

    def attached(self) -> AbstractContextManager[None]:
        """A ``with`` block in the captured identity, in the current context: for code that cannot be made a function.

        A ContextVar cannot be unset in place. One that was absent at capture and is set here is cleared for the block:
        it is given its source's ``unset`` or ``empty`` value, or its own default; where there is none of these it stays
        as it is, which is counted and logged. `run` has no such limit.
        """
        return arrival.attached(self)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a Snapshot belongs to its process and cannot be pickled")

    def __repr__(self) -> str:
        bound = ", ".join(
            key.name for key, value in zip(self.flow.registry.keys, self.flow.values, strict=True) if value
        )
        return f"<otelctx.Snapshot of {bound or 'nothing'}>"


def _is_minted(before: Flow, after: Flow) -> bool:
    pairs = zip(before.values, after.values, strict=False)  # of the same keys, but where they are declared anew
    return any(new is not None and new != old for old, new in pairs)


def _fill(cells: tuple[Set, ...], root: Flow) -> None:
    # What a variable has by default is left out: an arrival with nothing to carry then runs in an empty context.
    for var, raw in cells:
        if raw is not MISSING and raw is not None and raw is not root and raw is not runtime.empty:
            var.set(raw)
        elif raw is None and var is not flow.STATE and var is not runtime.variable:
            var.set(raw)  # an application's own variable that says None


# What `depart` looks at. They are this module's globals because that is the fastest place to read them from;
# `refresh` is the only writer.
_flow_of: Callable[[], Flow]
_otel_of: Callable[[], Any]
_otel_variable: ContextVar[Any]
_state_of: Final = flow.STATE.get


def depart() -> Snapshot:
    """What the current context would hand to work that hops from here, as its keys' policies are at most hops."""
    last = _flow_of()
    if last.state is _state_of():
        for get, raw in last.pairs:
            if get(MISSING) is not raw:
                break
        else:
            snapshot, otel = last.base, _otel_of()
            if snapshot is not None:
                if snapshot.otel_departed is not otel:
                    snapshot = last.base = _renewed(snapshot, otel)
                return snapshot
    return prepare()


def arrive(snapshot: Snapshot, kind: int, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    """Call ``fn(*args, **kwargs)`` as `snapshot` departed, in whatever context the current thread has."""
    if copy_context():  # not empty: the worker has a context of its own
        try:
            return arrival.among_others(snapshot, kind, fn, args, kwargs)
        finally:
            del snapshot, fn, args, kwargs
    context = snapshot.context.copy()
    snapshot.counts[kind]()
    try:
        result: R = context.run(_call, fn, args, kwargs)
        return result
    finally:
        if len(context) != snapshot.size or context.get(_otel_variable) is not snapshot.otel_set:
            workers.keep(context, snapshot.otel)
        # An exception keeps this frame alive, and may itself be kept: it must not keep the work or a span.
        del snapshot, context, fn, args, kwargs


def _call(fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    # `context.run(fn, *args, **kwargs)` would cost more than this frame does.
    try:
        return fn(*args, **kwargs) if kwargs else fn(*args)
    finally:
        del fn, args, kwargs


def _renewed(like: Snapshot, otel: Any) -> Snapshot:
    """The snapshot of the flow of `like` in another OpenTelemetry Context: every request's first hop comes here."""
    now = like.flow
    arriving = now.in_step(otel)
    if arriving is runtime.empty or like.otel_set is None:
        return Snapshot(now, now, otel, arriving, detailed=_is_detailed(otel))
    snapshot = _bare(Snapshot)
    snapshot.before = snapshot.flow = now
    snapshot.otel_departed = otel
    snapshot.otel = snapshot.otel_set = arriving
    snapshot.detailed = _is_detailed(otel)
    snapshot.cells = like.cells
    snapshot.context = context = like.context.copy()
    context.run(_otel_variable.set, arriving)
    snapshot.size = like.size
    snapshot.owner = like.owner
    snapshot.counts = like.counts
    return snapshot


_bare: Final[Callable[[type[Snapshot]], Snapshot]] = object.__new__


def prepare() -> Snapshot:
    """Build the snapshot of the current context and remember it for the next departure from here."""
    if flow.registry.pending:
        flow.discover()
    now = flow.here()
    otel = runtime.variable.get()
    snapshot = Snapshot(now, now, otel, in_step(otel, now), detailed=_is_detailed(otel))
    # A process that holds a claim is asked anew each time: the verdict is not to be remembered.
    if not flow.registry.pending and now.to_keep() is now and (now.claim is not None or not ownership.is_declared()):
        now.base = snapshot
    return snapshot


def depart_as(kind: int, minted: str | None = None) -> Snapshot:
    """What departs from the current context at a hop of `kind`, whose keys and claim may be minted or shed there.

    A key that is minted has the value `minted`. The application's own sources of a minted or shed key are cleared:
    given their first ``empty`` value, or left out. A shed claim is a tombstone, which nothing but a grant removes.
    """
    return _changed_for(kind, minted, flow.here(), runtime.variable.get())


def for_kind(captured: Snapshot, kind: int) -> Snapshot:
    """`captured` as it departs at a hop of `kind`: the same, unless an operator's policy mints or sheds a key there."""
    is_changed = captured.flow is not captured.before
    if is_changed or all(policy.for_key(key, kind) == "inherit" for key in captured.before.registry.keys):
        return captured
    return _changed_for(kind, policy.fresh(kind), captured.before, captured.otel_departed)


def _changed_for(kind: int, minted: str | None, now: Flow, otel: Any) -> Snapshot:
    declared = now.registry
    bound = {} if now.state is None else dict(now.state.bound)
    raws = dict(zip(declared.vars, now.raws, strict=True))
    for key in declared.keys:
        wanted = policy.for_key(key, kind)
        if wanted == "inherit":
            continue
        cleared = {source.var: source.cleared for source in key.settable if source.var is not None}
        raws.update(cleared)
        bound[key.name] = flow.Binding(minted if wanted == "mint" else None, cleared, minted=True)
        raws.update({source.var: source.cleared for source in declared.carried if source.var is not None})
    claim = now.claim if policy.for_claim(kind) == "inherit" else SHED
    after = flow.derive(now, flow.State(bound, claim), tuple(raws[var] for var in declared.vars))
    # A cron run is nobody's: what its cause has put into baggage, in any name, says whose the cause was.
    arriving = runtime.alone(otel) if kind == policy.CRON and runtime.is_adopted() else otel
    return Snapshot(now, after, otel, in_step(arriving, after), detailed=True)


def in_step(otel: Any, now: Flow) -> Any:
    """The OpenTelemetry Context `otel` with baggage that says what `now` says; nothing where there is none yet."""
    return now.in_step(otel) if runtime.is_adopted() else otel


def _never_detailed(otel: Any) -> bool:
    return False


_is_detailed: Callable[[Any], bool] = _never_detailed


def is_detailed(otel: Any) -> bool:
    """Whether a hop in the OpenTelemetry Context `otel` has a span or a comparison."""
    return _is_detailed(otel)


def refresh(is_detailed: Callable[[Any], bool] | None = None) -> None:
    """Look at the process's present keys and OpenTelemetry context from now on.

    `is_detailed` decides, from the departing OpenTelemetry Context, whether a hop has a span or a comparison.
    """
    global _flow_of, _otel_of, _otel_variable, _is_detailed
    if is_detailed is not None:
        _is_detailed = is_detailed
    _otel_variable = runtime.variable
    _otel_of = _otel_variable.get
    _flow_of = flow.registry.flow.get
    workers.refresh()


def _is(one: Any, ended: Any) -> bool:
    # Processors get a read-only copy of the span that ended.
    return one is not None and one.get_span_context() == ended.get_span_context()


def forget(span: Any) -> None:
    """Let go of the snapshot that was prepared under `span`, which has ended."""
    # Other contexts may have departed under it as well; what those remember goes with them, or with their next hop.
    now = flow.registry.flow.get()
    if now.base is not None and _is(runtime.span_of(now.base.otel_departed), span):
        now.base = None


def capture() -> Snapshot:
    """Capture the current identity (each declared key, the claim, the OpenTelemetry Context) for later.

    For hops that no instrumentation covers: ``snapshot.run(fn)``, ``snapshot.wrap(fn)``, ``with snapshot.attached()``.
    """
    return depart()


# Last, and as a module: it imports this one, and the work that arrives while the interpreter ends can import nothing.
from otelctx import arrival, workers  # noqa: E402

refresh()
