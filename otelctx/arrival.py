"""Arrivals that are not the hot path's: workers with a context of their own, hops with a span, observe, enforce.

The hot path (`otelctx.snapshot.arrive`) covers work that arrives in an empty context. Here is the rest:

* `among_others`: the worker's context has variables in it. What the application would see is compared with what
  departed, then declared variables are set, the work runs in place, and they are reset.
* `in_full`: the hop is recorded, so it has a span, a place and a time; or the mode is ``enforce``.
* `observed`: nothing is changed. What the application sees is compared, and the work runs.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar, Token, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from otelctx import alerts, ambient, compare, faults, flow, mode, policy, runtime, spans, workers
from otelctx import snapshot as snapshots
from otelctx.keys import MISSING
from otelctx.mismatch import MismatchError
from otelctx.place import TRAIL, TRAIL_LENGTH
from otelctx.tokens import give_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from opentelemetry.trace import Span

    from otelctx.departure import Departure
    from otelctx.flow import Flow
    from otelctx.mismatch import Action, Mismatch
    from otelctx.snapshot import Snapshot

R = TypeVar("R")


def among_others(
    snapshot: Snapshot,
    kind: int,
    fn: Callable[..., R],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    departure: Departure | None = None,
) -> R:
    """Run the work as `snapshot` departed, where the current context is not empty."""
    snapshot.counts[kind]()
    home: workers.Home | None = None
    try:
        # Of variables that are the worker's own, and nothing besides, none can differ and none be stale.
        if snapshot.flow.registry is not flow.registry or not workers.declared.isdisjoint(copy_context()):
            home = _compared(snapshot, kind, departure)
    except Exception as exc:
        faults.internal_error("arrival", exc)
    inside: Callable[..., R] = _with_all_set
    try:
        if home is not None:
            home.busy = True
            try:
                return home.context.run(inside, snapshot, fn, args, kwargs)
            finally:
                home.busy = False
                workers.hand_back(home)
                if workers.is_stale(snapshot.cells, home.context):
                    home.context.run(workers.forget, snapshot.flow)
        if kind not in policy.WORKERS and any(raw is MISSING for _, raw in snapshot.cells):
            return _elsewhere(snapshot, fn, args, kwargs)
        try:
            return inside(snapshot, fn, args, kwargs)
        finally:
            if workers.is_stale_here(snapshot.flow):
                workers.clear(snapshot.flow)
                workers.settle(snapshot.cells)
    finally:
        del snapshot, departure, home, inside, fn, args, kwargs


def _compared(snapshot: Snapshot, kind: int, departure: Departure | None) -> workers.Home | None:
    """Compare what the current context says with what departed; the home that the work is to run in, if any."""
    home = workers.HOME.get()
    if home is not None and (home.busy or not home.is_here()):
        home = None  # a task within a task, or in a copy of the worker's context
    found = compare.compare(snapshot, kind, departure)
    if departure is not None:
        departure.found.extend(found)
    elif found:
        compare.deliver(found, None, snapshot.otel)
    if home is not None:
        workers.take_along(home)
        if workers.is_stale(snapshot.cells, home.context):
            home.context = workers.without_declared(home.context, snapshot.cells)
    elif kind in policy.WORKERS and workers.is_stale(snapshot.cells, copy_context()):
        home = workers.settle(snapshot.cells)
    return home


def _elsewhere(snapshot: Snapshot, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    """Run the work in a copy of the current context.

    A variable that arrives absent could not be taken back from a context that is somebody else's, once the work has set
    it: whoever resolves a future must not be left with what a callback binds.
    """
    rebuilt = workers.without_declared(copy_context(), snapshot.cells)
    inside: Callable[..., R] = _with_all_set
    try:
        return rebuilt.run(inside, snapshot, fn, args, kwargs)
    finally:
        workers.give_back(rebuilt)
        del snapshot, rebuilt, inside, fn, args, kwargs


def _with_all_set(snapshot: Snapshot, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    # Each is set, also where it says so already: its token takes back what the work leaves there.
    # In reverse at the end: two keys may be kept in one variable.
    otel = runtime.variable.set(runtime.empty if snapshot.otel is None else snapshot.otel)
    tokens = [var.set(raw) for var, raw in snapshot.cells if raw is not MISSING]
    try:
        return fn(*args, **kwargs)
    finally:
        if snapshot.flow.registry is not flow.registry:
            flow.take_back()
        for token in reversed(tokens):
            token.var.reset(token)
        otel.var.reset(otel)
        del snapshot, otel, tokens, fn, args, kwargs


@contextmanager
def attached(snapshot: Snapshot, *, whole: bool = False, ends: bool = False) -> Iterator[None]:
    """See `Snapshot.attached`. `whole`: at the end the context is what it was, whatever the block has set meanwhile.

    `ends`: the context ends with the block, so that nothing has to be taken away from it.
    """
    tokens: list[tuple[ContextVar[Any], Token[Any], object]] = []
    by_var = {source.var: source for source in snapshot.flow.registry.settable}
    for var, raw in snapshot.replayed():
        if var is flow.STATE:  # after the application's own variables
            raw = _as_it_stands(snapshot)
        if var.get(MISSING) is raw and (not whole or raw is MISSING):
            continue  # else its token takes back what the block leaves there
        if raw is MISSING:
            source = by_var.get(var)
            raw = MISSING if source is None else source.like_absent()
            if raw is MISSING:
                faults.internal_error(
                    "attached", message=f"{var.name} was absent at capture and cannot be unset in place"
                )
                continue
        tokens.append((var, var.set(raw), raw))
    try:
        yield
    finally:
        if snapshot.flow.registry is not flow.registry:
            flow.take_back()
        # In place of the block's own context it may be closed in another one, as a generator may be.
        is_ours = whole or any(var is flow.STATE and _is_still(var, raw) for var, _, raw in tokens) or not tokens
        for var, token, raw in reversed(tokens):
            ours = _is_still(var, raw) or (is_ours and var in (runtime.variable, snapshot.flow.registry.flow))
            if not whole and not ours:
                continue
            try:
                var.reset(token)
            except ValueError:
                whole = False  # closed in another context
                if var.get(MISSING) is raw and token.old_value is not Token.MISSING:
                    var.set(token.old_value)
        if whole and tokens and not ends:
            _take_away(snapshot, {var for var, _, _ in tokens})


def _take_away(snapshot: Snapshot, restored: set[ContextVar[Any]]) -> None:
    """Clear what a block has set in variables that were absent, and so need no token, but those in `restored`.

    Whoever comes next in this context must not find the block's key there.
    """
    for source in snapshot.flow.registry.settable:
        var = source.var
        if var is None or var in restored or var.get(MISSING) is MISSING:
            continue
        if snapshot.flow.raws[snapshot.flow.registry.vars.index(var)] is MISSING:
            cleared = source.like_absent()
            if cleared is MISSING:
                faults.internal_error("attached", message=f"{var.name} was set in a block and cannot be unset in place")
            else:
                var.set(cleared)


def _is_still(var: ContextVar[Any], raw: Any) -> bool:
    """Whether `var` says what it was given: a state is copied where a token of an outer binding is detached."""
    now = var.get(MISSING)
    return now is raw or (isinstance(now, flow.State) and isinstance(raw, flow.State) and now.origin is raw.origin)


def _as_it_stands(snapshot: Snapshot) -> flow.State | None:
    """The state of `snapshot`, whose bindings count in spite of variables that could not be made absent."""
    state = snapshot.flow.state
    stands = {var: var.get(MISSING) for var, raw in snapshot.cells if raw is MISSING and var.get(MISSING) is not raw}
    if state is None or not stands:
        return state
    bound = {
        name: flow.Binding(
            binding.value,
            {var: stands.get(var, raw) if raw is MISSING else raw for var, raw in binding.raws.items()},
            minted=binding.minted,
            awaited=binding.awaited,
        )
        for name, binding in state.bound.items()
    }
    return flow.State(bound, state.claim)


def in_full(departure: Departure, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    """Arrive with everything: the span, the trail, the comparison of each source where the mode asks for it."""
    try:
        if mode.current() == "observe":
            return observed(departure, fn, args, kwargs)
        return replayed(departure, fn, args, kwargs)
    finally:
        del departure, fn, args, kwargs


def replayed(departure: Departure, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    """Arrive with everything, in every mode: where the application itself asked for the hop."""
    inside: Callable[..., R] = _inside
    arguments = (departure, fn, args, kwargs)
    try:
        if copy_context():
            return among_others(departure.snapshot, departure.kind, inside, arguments, {}, departure)
        return snapshots.arrive(departure.snapshot, departure.kind, inside, arguments, {})
    finally:
        del arguments, departure, fn, args, kwargs


def apart(departure: Departure, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    """Arrive as `replayed` does, in a context of its own: what the work sets in any variable ends with it.

    For a cron run that is called in somebody's thread. Its caller's other variables are part of the caller's session,
    and hosts clear theirs at the end of a job.
    """
    context = copy_context()
    inside: Callable[..., R] = replayed
    try:
        context.run(workers.HOME.set, None)  # the worker's home is of the worker's context
        return context.run(inside, departure, fn, args, kwargs)
    finally:
        del context, departure, fn, args, kwargs


def _inside(departure: Departure, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    """Run the work in its replayed context."""
    span: Span | None = None
    trail: Token[tuple[str, ...]] | None = None
    current: Token[Any] | None = None
    inner: Any = None
    otel: Any = None
    asked = ambient.quietly(departure.is_asked)
    try:
        try:
            otel = runtime.variable.get()
            span = spans.start_hop_span(departure, fn, otel)
            hop = departure.hop(fn)
            trail = TRAIL.set((*departure.trail, hop)[-TRAIL_LENGTH:])
            if span is not None:
                inner = runtime.with_span(otel, span)
                current = runtime.variable.set(inner)
            if departure.snapshot.before is not departure.snapshot.flow:
                departure.found.extend(compare.left_behind(departure))
            compare.deliver(departure.found, span, otel)
        except Exception as exc:
            faults.internal_error("arrival", exc)
        if mode.current() == "enforce":
            _enforce(departure, span)
        return fn(*args, **kwargs)
    except BaseException as exc:
        spans.failed(span, exc)
        raise
    finally:
        if current is not None and runtime.variable.get() is inner:  # else somebody holds a token for what is there
            runtime.variable.reset(current)
        if trail is not None:
            TRAIL.reset(trail)
        if asked is not None:
            asked.var.reset(asked)
        spans.end(span)
        del asked, departure, fn, args, kwargs, span, current, trail, inner, otel


@contextmanager
def entered(departure: Departure, fn: object, *, ends: bool = False) -> Iterator[None]:
    """Arrive in the current context, for the length of a ``with`` block: for a coroutine, or a block of code.

    `ends`: the context ends with the block.
    """
    departure.snapshot.counts[departure.kind]()
    with attached(departure.snapshot, whole=True, ends=ends):
        span: Span | None = None
        tokens: list[Token[Any]] = []
        try:
            try:
                otel = runtime.variable.get()
                span = spans.start_hop_span(departure, fn, otel)
                tokens.append(TRAIL.set((*departure.trail, departure.hop(fn))[-TRAIL_LENGTH:]))
                if span is not None:
                    tokens.append(runtime.variable.set(runtime.with_span(otel, span)))
                departure.found.extend(compare.left_behind(departure))
                compare.deliver(departure.found, span, otel)
            except Exception as exc:
                faults.internal_error("arrival", exc)
            if mode.current() == "enforce":
                _enforce(departure, span)
            yield
        except BaseException as exc:
            spans.failed(span, exc)
            raise
        finally:
            give_back(*reversed(tokens))
            spans.end(span)


def _enforce(departure: Departure, span: Span | None) -> None:
    """Raise `MismatchError` where a source of the application, read alone, still says something else."""
    for raised in still_differing(departure, "raised"):
        if not is_told(raised, departure):
            alerts.deliver(raised, span, departure.snapshot.otel)
        raise MismatchError(raised)


def is_told(mismatch: Mismatch, departure: Departure) -> bool:
    """Whether what was left behind has been told of already: one cause, one alert."""
    return any(told.key == mismatch.key and told.observed == mismatch.observed for told in departure.found)


def still_differing(departure: Departure, action: Action) -> list[Mismatch]:
    """The first source of the application that, read alone, says something else than what has arrived; if any."""
    try:
        now = flow.peek()
        for key, expected in zip(now.registry.keys, departure.snapshot.flow.values, strict=True):
            if expected is None:
                continue
            for source, reading in compare.each_source(key):
                if reading and reading != expected:
                    return [
                        compare.mismatch_of(
                            key, "foreign", expected, reading, source, action, departure.kind, departure
                        )
                    ]
    except Exception as exc:
        faults.internal_error("enforce", exc)
    return []


def observed(departure: Departure, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    """Compare, change nothing, and run the work where it is."""
    with watched(departure, fn):
        try:
            return fn(*args, **kwargs)
        finally:
            del departure, fn, args, kwargs


@contextmanager
def watched(departure: Departure, fn: object) -> Iterator[None]:
    """Compare, and change nothing, for the length of a ``with`` block."""
    line: Token[Flow] | None = None
    span: Span | None = None
    asked = ambient.quietly(departure.is_asked)
    try:
        try:
            seen = flow.peek()
            found = compare.what_is_seen(departure, seen)
            if seen.registry is departure.snapshot.before.registry:
                # The statement about this hop is being made; spans that start in the work need not make it again.
                line = seen.registry.flow.set(seen.after(departure.snapshot.before))
            span = spans.start_hop_span(departure, fn, departure.snapshot.otel_departed)
            # What counts as carried here is what the worker sees without our help.
            (departure.snapshot.counts if not found else snapshots.EMPTY)[departure.kind]()
            for mismatch, repeated in found:
                alerts.deliver(mismatch, span, departure.snapshot.otel_departed, count_only=repeated)
        except Exception as exc:
            faults.internal_error("arrival", exc)
        yield
    except BaseException as exc:
        spans.failed(span, exc)
        raise
    finally:
        give_back(line, asked)
        spans.end(span)
