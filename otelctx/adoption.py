"""Adopting an identity in place: what happens in a worker's context when an item has been got from a queue.

A queue hands out an item, and what the worker does with it is no function that could be run in another context. So the
current context itself becomes the putter's, by *total replay*: each declared variable, otelctx's own state and the
OpenTelemetry Context are set to what departed with the item, and what was absent there is absent here.

**What ends it** is the next item, got from any adopting queue in the same context, or the end of that context (the
thread, the task). A ``get`` that raises changes nothing.

**Absent.** A ContextVar cannot be unset in place, but by the token of the `set` that first set it. Where that was an
adoption's, which is nearly always, the token is kept and used. Where the worker itself had set the variable, it is
cleared as `Snapshot.attached` clears it: by its source's ``unset`` or ``empty`` value, or its own default. Where there
is none of these it stays as it is, which is counted and logged, and for otelctx the key is nobody's all the same.

**Nothing is compared** in ``repair`` and ``enforce`` with what the worker had: to replace it is what adopting is for. A
worker that a session has started has that session's key, which otelctx itself has carried there.

**Nothing raises**, in ``enforce`` either: a `MismatchError` out of ``get`` would lose the item, and whoever joins the
queue would wait for ever. There a source that still says something else is told, and the work goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from otelctx import ambient, arrival, compare, faults, flow, mode, runtime, spans, workers
from otelctx import snapshot as snapshots
from otelctx.claim import SHED
from otelctx.departure import Departure
from otelctx.keys import MISSING
from otelctx.place import TRAIL, TRAIL_LENGTH
from otelctx.policy import QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import ContextVar, Token

    from otelctx.keys import Registry
    from otelctx.snapshot import Snapshot

Q = TypeVar("Q")

Carried: TypeAlias = "Snapshot | Departure"
"""What departs with an item."""


def adopting(queue: Q, /) -> Q:
    """Let the items of `queue` carry the identity of whoever puts them, and ``get`` adopt it.

    After ``get`` has returned an item, the current context is its putter's, in each declared key, the claim and the
    OpenTelemetry Context (absent included), until the next item is got there. Items, their order and everything else
    about the queue are as ever. Works while otelctx is on; where it is off, the queue is a plain one.

    Arguments: `queue` is a queue of `queue`, `asyncio` or `multiprocessing`, or of a subclass.

    Returns the queue to use in its place: the same object, but for a `queue.SimpleQueue`, which cannot be changed: an
    object of a subclass stands in front of it. Raises `TypeError` for anything else. Thread-safe; adopting twice is
    adopting once.
    """
    from otelctx_instrumentation import queues

    return queues.adopting(queue)


_look: Callable[[], None] | None = None


def watch(look: Callable[[], None] | None) -> None:
    """Call `look` from now on whenever a declared queue may have come into being."""
    global _look
    _look = look


def look() -> None:
    """Look for declared queues: a worker is about to start. Never raises."""
    if _look is not None:
        try:
            _look()
        except Exception as exc:
            faults.internal_error("queue", exc)


def departing(name: str) -> Carried | None:
    """What departs with an item that is put into the queue called `name`; None where it cannot be had. Never raises."""
    try:
        captured = snapshots.depart()
        return Departure(captured, QUEUE, name=name) if captured.detailed else captured
    except Exception as exc:
        faults.internal_error("queue", exc)
        return None


def adopt(carried: Carried | None, queue: object) -> None:
    """Adopt in the current context what was `carried` with an item of `queue`; None: nobody knows whose it is.

    Never raises.
    """
    try:
        if isinstance(carried, Departure):
            if mode.current() == "observe":
                with arrival.watched(carried, queue):
                    return
            _adopt_in_full(carried, queue)
        elif carried is not None or mode.current() != "observe":
            snapshot = _nobodys() if carried is None else carried
            snapshot.counts[QUEUE]()
            _replay(snapshot)
            if TRAIL.get():
                TRAIL.set(())
    except Exception as exc:
        faults.internal_error("queue", exc)


def _nobodys() -> Snapshot:
    """What arrives with an item of unknown origin: nothing, and the process's own claim, unless it is shed here.

    An item that nobody granted anything with must not end a shed.
    """
    arriving = root = flow.registry.root
    state = flow.STATE.get()
    if state is not None and state.claim == SHED:
        arriving = flow.derive(root, flow.State({}, SHED), root.raws)
    otel = snapshots.in_step(runtime.empty, arriving)
    return snapshots.Snapshot(root, arriving, runtime.empty, otel, detailed=False)


def _adopt_in_full(departure: Departure, queue: object) -> None:
    """Adopt with everything: the span, the trail, the comparison of each source where the mode asks for it.

    The span is the item's time in the queue. It is over by now, and is not made current: nobody knows when the worker
    will be done with the item. What the worker does is under the putter's span, as in any other hop.
    """
    snapshot = departure.snapshot
    snapshot.counts[QUEUE]()
    _replay(snapshot)
    TRAIL.set((*departure.trail, departure.hop(queue))[-TRAIL_LENGTH:])
    asked = ambient.quietly(departure.is_asked)
    try:
        span = spans.start_hop_span(departure, queue, snapshot.otel, since_departure=True)
        try:
            if snapshot.before is not snapshot.flow:
                departure.found.extend(compare.left_behind(departure))
            if mode.current() == "enforce":
                departure.found.extend(
                    one for one in arrival.still_differing(departure, "observed") if not arrival.is_told(one, departure)
                )
            compare.deliver(departure.found, span, snapshot.otel)
        finally:
            spans.end(span)
    finally:
        if asked is not None:
            asked.var.reset(asked)


def _replay(snapshot: Snapshot) -> None:
    """Set each variable of the current context that travels to what `snapshot` says."""
    declared = snapshot.flow.registry
    known = workers.UNSET_BY.get() or {}
    unset_by = dict(known)
    standing: list[ContextVar[Any]] = []
    for var, raw in (*zip(declared.vars, snapshot.flow.raws, strict=True), *_declared_since(declared)):
        now = var.get(MISSING)
        if now is raw:
            continue
        if raw is not MISSING:
            token = var.set(raw)
            if now is MISSING:
                unset_by[var] = token
        elif not _unset(var, unset_by.pop(var, None)):
            _clear(var, declared)
            standing.append(var)
    flow.STATE.set(_state(snapshot, standing) if standing else snapshot.flow.state)
    declared.flow.set(snapshot.flow.to_keep())
    if runtime.is_adopted():
        runtime.variable.set(runtime.empty if snapshot.otel is None else snapshot.otel)
    if unset_by != known or workers.UNSET_BY.get() is None:
        workers.UNSET_BY.set(unset_by)


def _declared_since(declared: Registry) -> list[tuple[ContextVar[Any], object]]:
    """The variables that were declared after the item had departed: it says nothing for them."""
    if declared is flow.registry:
        return []
    return [(var, MISSING) for var in flow.registry.vars if var not in declared.vars]


def _unset(var: ContextVar[Any], token: Token[Any] | None) -> bool:
    if token is None:
        return False
    try:
        var.reset(token)
    except (ValueError, RuntimeError):  # this context is a copy of the one that it was made in
        return False
    return var.get(MISSING) is MISSING


def _clear(var: ContextVar[Any], declared: Registry) -> None:
    """Give `var`, which is to be absent and cannot be, a value that says so, where there is one."""
    for source in (*declared.settable, *flow.registry.settable):
        if source.var is var:
            cleared = source.like_absent()
            if cleared is not MISSING:
                var.set(cleared)
                return
    faults.internal_error("queue", message=f"{var.name} was absent at the put, and cannot be unset in place")


def _state(snapshot: Snapshot, standing: list[ContextVar[Any]]) -> flow.State:
    """The state of `snapshot`, which counts in spite of variables that are `standing` and should be absent."""
    now = snapshot.flow
    bound = {} if now.state is None else dict(now.state.bound)
    for key, value in zip(now.registry.keys, now.values, strict=True):
        own = [source.var for source in key.settable if source.var is not None]
        if any(var in standing for var in own):
            before = bound.get(key.name)
            raws = {var: var.get(MISSING) for var in own}
            bound[key.name] = flow.Binding(value, raws, minted=before is not None and before.minted)
    return flow.State(bound, now.claim)
