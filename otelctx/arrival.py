"""Arrivals that are not the hot path's: workers with a context of their own, hops with a span, observe, enforce.

The hot path (`otelctx.snapshot.arrive`) covers work that arrives in an empty context. Here is the rest:

* `among_others`: the worker's context has variables in it. What the application would see is compared with what
  departed, then declared variables are set, the work runs in place, and they are reset.
* `in_full`: the hop is recorded, so it has a span, a place and a time; or the mode is ``enforce``.
* `observed`: nothing is changed. What the application sees is compared, and the work runs.

Undeclared variables belong to the application, and behave as without otelctx. A worker whose task set one in a copied
context gets it back (`keep`), and its later tasks run in that same copy, so that a ``Token`` made in one task can be
used in the next.
"""

from __future__ import annotations

import _thread
import time
from contextlib import contextmanager
from contextvars import Context, ContextVar, Token, copy_context
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from otelctx import alerts, ambient, faults, flow, place, policy, runtime, spans
from otelctx import snapshot as snapshots
from otelctx.keys import MISSING
from otelctx.mismatch import Action, Mismatch, MismatchError, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from opentelemetry.trace import Span

    from otelctx.flow import Flow
    from otelctx.keys import ContextVarSource, Key
    from otelctx.mismatch import Place
    from otelctx.snapshot import Set, Snapshot

R = TypeVar("R")

Mode = Literal["observe", "repair", "enforce"]

TRAIL_LENGTH: Final = 8

_OURS: Final = "contextvar:otelctx.flow:STATE"
"""The source of a value that `otelctx.bind` bound."""

_TRAIL: Final[ContextVar[tuple[str, ...]]] = ContextVar("otelctx.trail", default=())
_HOME: Final[ContextVar[_Home | None]] = ContextVar("otelctx.home", default=None)

_HERE: Final[ContextVar[None]] = ContextVar("otelctx.here", default=None)
"""A token of it resets only in the context in which it was made, which tells a context from its copies."""

_mode: Mode = "repair"


def configure(mode: Mode) -> None:
    """Set the mode for the arrivals from now on."""
    global _mode
    _mode = mode
    _lost_at.clear()
    ambient.forget()


def mode() -> Mode:
    """The mode that is in force."""
    return _mode


class Departure:
    """One hop that has more to it than its snapshot: where and when it departed, and what was found at its arrival."""

    __slots__ = (
        "__weakref__",
        "called",
        "captured",
        "clock",
        "found",
        "is_asked",
        "kind",
        "name",
        "place",
        "snapshot",
        "spanned",
        "trail",
    )

    def __init__(self, snapshot: Snapshot, kind: int, *, called: object = None, name: str | None = None) -> None:
        self.captured = snapshot
        self.snapshot = snapshots.for_kind(snapshot, kind)
        self.kind = kind
        self.called = called
        """What is named as the callable, where it is not the one that arrives: a thread's target."""
        self.name = name
        """What the span is called after, where it is not the callable: a job."""
        self.place: Place | None = place.departure()
        self.clock = time.monotonic()
        self.trail = _TRAIL.get()
        self.found: list[Mismatch] = []
        self.is_asked = ambient.is_asking()
        """Whether a getter departs, which has been asked by an arrival: its own arrivals do not ask again."""
        self.spanned = spans.wanted_for(kind, snapshot.otel_departed)
        """Whether the hop has a span: decided here, since its parent may have ended by the time it arrives."""

    def again(self, kind: int) -> Departure:
        """The same departure for one more arrival, of `kind`: the items of a batch arrive one by one."""
        departure = Departure.__new__(Departure)
        departure.snapshot = self.snapshot if kind == self.kind else snapshots.for_kind(self.captured, kind)
        departure.captured, departure.place, departure.clock = self.captured, self.place, self.clock
        departure.trail, departure.kind, departure.found = self.trail, kind, []
        departure.called, departure.name, departure.spanned = self.called, self.name, self.spanned
        departure.is_asked = self.is_asked
        return departure

    def named(self, fn: object) -> str:
        """A readable name for what arrives, which is `fn`."""
        return self.name if self.name is not None else place.name_of(self.called if self.called is not None else fn)

    def hop(self, fn: object) -> str:
        """This hop in a trail."""
        where = f" @ {self.place.file}:{self.place.line}" if self.place else ""
        return f"{policy.NAMES[self.kind]} {self.named(fn)}{where}"


# --- undeclared variables --------------------------------------------------------------------------------------------


class _Home:
    """The context that a worker's tasks run in, once one of them has set an undeclared variable."""

    __slots__ = ("busy", "context", "given", "mark")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.busy = False
        self.mark = _HERE.set(None)
        self.given: dict[ContextVar[Any], tuple[object, Token[Any]]] = {}
        """What the worker's real context got from it, and how to take it back."""

    def is_here(self) -> bool:
        """Whether the current context is the worker's own, and not a copy of it: another task's, of the same thread."""
        try:
            _HERE.reset(self.mark)
        except (ValueError, RuntimeError):
            return False
        self.mark = _HERE.set(None)
        return True


def _declared() -> set[ContextVar[Any]]:
    registry = flow.registry
    return {
        *registry.vars,
        flow.STATE,
        registry.flow,
        runtime.variable,
        _TRAIL,
        _HOME,
        _HERE,
        ambient.ASKING,
    }


def keep(context: Context, otel: Any) -> None:
    """Hand what a task set in undeclared variables, in the copy `context`, back to the worker (the current context).

    Also where it left another OpenTelemetry Context than the `otel` that arrived: somebody holds a token for it.
    """
    try:
        left = context.get(runtime.variable, runtime.empty)
        if left is not otel or not _declared().issuperset(context):
            context.run(_let_go)
            home = _Home(context)
            _HOME.set(home)
            _hand_back(home)
    except Exception as exc:
        faults.internal_error("hand back", exc)


def _let_go() -> None:
    """Forget, in a worker's context, what the task that left it carried."""
    flow.STATE.set(None)
    flow.registry.flow.set(flow.registry.root)


def _hand_back(home: _Home) -> None:
    declared, context = _declared(), home.context
    for var, value in context.items():
        if var not in declared and var.get(MISSING) is not value:
            token = var.set(value)
            _, first = home.given.get(var, (None, token))
            home.given[var] = (value, first)
    for var in [var for var in home.given if var not in context]:  # unset again by the task, with its own token
        value, token = home.given.pop(var)
        if var.get(MISSING) is value:
            var.reset(token)


def _take_along(home: _Home) -> None:
    declared = _declared()
    here = copy_context()
    for var, value in here.items():
        if var not in declared and home.context.get(var, MISSING) is not value:
            home.context.run(var.set, value)


def _without_declared(context: Context, cells: tuple[Set, ...] = ()) -> Context:
    # The variables of `cells` as well: the settings may have changed since they departed.
    declared, rebuilt = _declared().union(var for var, _ in cells), Context()
    for var, value in context.items():
        if var not in declared:
            rebuilt.run(var.set, value)
    return rebuilt


def neutral() -> Context:
    """A copy of the current context in which no key, claim or span is left: for pool workers and service threads."""
    return _without_declared(copy_context())


# --- in place --------------------------------------------------------------------------------------------------------


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
    home: _Home | None = None
    try:
        home = _HOME.get()
        if home is not None and (home.busy or not home.is_here()):
            home = None  # a task within a task, or in a copy of the worker's context
        found = _compare(snapshot, kind, departure)
        if departure is not None:
            departure.found.extend(found)
        else:
            _deliver(found, None, snapshot.otel)
        if home is not None:
            _take_along(home)
            if _is_stale(snapshot.cells, home.context):
                home.context = _without_declared(home.context, snapshot.cells)
        elif kind == policy.EXECUTOR and _is_stale(snapshot.cells, copy_context()):
            home = _settle(snapshot.cells)
    except Exception as exc:
        faults.internal_error("arrival", exc)
    inside: Callable[..., R] = _with_all_set
    try:
        if home is not None:
            home.busy = True
            try:
                return home.context.run(inside, snapshot.cells, fn, args, kwargs)
            finally:
                home.busy = False
                _hand_back(home)
        if kind != policy.EXECUTOR and any(raw is MISSING for _, raw in snapshot.cells):
            return _elsewhere(snapshot.cells, fn, args, kwargs)
        try:
            return inside(snapshot.cells, fn, args, kwargs)
        finally:
            if _is_stale(snapshot.cells, copy_context()):
                _settle(snapshot.cells)
    finally:
        del snapshot, departure, home, inside, fn, args, kwargs


def _is_stale(cells: tuple[Set, ...], context: Context) -> bool:
    """Whether a variable that is to be absent is set in `context`, where it cannot be unset."""
    return any(raw is MISSING and var in context for var, raw in cells)


def _settle(cells: tuple[Set, ...]) -> _Home:
    """Give the worker a home without what was left behind in its own context."""
    home = _Home(_without_declared(copy_context(), cells))
    _HOME.set(home)
    return home


def _elsewhere(cells: tuple[Set, ...], fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    """Run the work in a copy of the current context.

    A variable that arrives absent could not be taken back from a context that is somebody else's, once the work has set
    it: whoever resolves a future must not be left with what a callback binds.
    """
    rebuilt = _without_declared(copy_context(), cells)
    inside: Callable[..., R] = _with_all_set
    try:
        return rebuilt.run(inside, cells, fn, args, kwargs)
    finally:
        _give_back(rebuilt)
        del cells, rebuilt, inside, fn, args, kwargs


def _with_all_set(cells: tuple[Set, ...], fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    # Each is set, also where it says so already: its token takes back what the work leaves there.
    tokens = [(var, var.set(raw)) for var, raw in cells if raw is not MISSING]
    try:
        return fn(*args, **kwargs)
    finally:
        for var, token in reversed(tokens):
            var.reset(token)
        del cells, tokens, fn, args, kwargs


def _give_back(rebuilt: Context) -> None:
    declared = _declared()
    for var, value in rebuilt.items():
        if var not in declared and var.get(MISSING) is not value:
            var.set(value)


@contextmanager
def attached(snapshot: Snapshot, *, whole: bool = False) -> Iterator[None]:
    """See `Snapshot.attached`. `whole`: at the end the context is what it was, whatever the block has set meanwhile."""
    tokens: list[tuple[ContextVar[Any], Token[Any], object]] = []
    by_var = {source.var: source for source in snapshot.flow.registry.settable}
    for var, raw in snapshot.cells:
        if var is flow.STATE:  # after the application's own variables
            raw = _as_it_stands(snapshot)
        if var.get(MISSING) is raw:
            continue
        if raw is MISSING:
            source = by_var.get(var)
            raw = MISSING if source is None else _like_absent(source)
            if raw is MISSING:
                faults.internal_error(
                    "attached", message=f"{var.name} was absent at capture and cannot be unset in place"
                )
                continue
        tokens.append((var, var.set(raw), raw))
    try:
        yield
    finally:
        # In place of the block's own context it may be closed in another one, as a generator may be.
        is_ours = whole or any(var is flow.STATE and var.get() is raw for var, _, raw in tokens) or not tokens
        for var, token, raw in reversed(tokens):
            ours = var.get(MISSING) is raw or (is_ours and var in (runtime.variable, snapshot.flow.registry.flow))
            if not whole and not ours:
                continue
            try:
                var.reset(token)
            except ValueError:
                if var.get(MISSING) is raw and token.old_value is not Token.MISSING:
                    var.set(token.old_value)


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
        )
        for name, binding in state.bound.items()
    }
    return flow.State(bound, state.claim)


def _like_absent(source: ContextVarSource) -> object:
    if source.unset is not MISSING:
        return source.unset
    if source.empty:
        return source.empty[0]
    assert source.var is not None
    try:
        return Context().run(source.var.get)  # the variable's own default
    except LookupError:
        return MISSING


# --- comparing -------------------------------------------------------------------------------------------------------


def _compare(snapshot: Snapshot, kind: int, departure: Departure | None) -> list[Mismatch]:
    """What the current context's own identity, which is about to be replaced, says against what departed."""
    seen: Flow = flow.peek()
    found: list[Mismatch] = []
    if kind == policy.EXPLICIT:  # whoever replays a snapshot by hand means it
        return found
    # Where the context is the one that departed (a job that is run on the spot), there is nothing to compare with.
    if seen.registry is snapshot.flow.registry and seen.serial != snapshot.before.serial:
        for key, expected, observed in zip(seen.registry.keys, snapshot.flow.values, seen.values, strict=True):
            if observed is None or observed == expected or (expected is None and kind == policy.CALLBACK):
                continue
            reason: Reason = "leaked" if expected is None else "foreign"
            found.append(
                _mismatch(key, reason, expected, observed, _source(key, seen, observed), "repaired", kind, departure)
            )
    return found


def _mismatch(
    key: Key,
    reason: Reason,
    expected: str | None,
    observed: str | None,
    source: str | None,
    action: Action,
    kind: int | None,
    departure: Departure | None,
) -> Mismatch:
    return Mismatch(
        key.name,
        reason,
        expected,
        observed,
        source,
        action,
        hop_kind=None if kind is None else policy.NAMES[kind],
        trail=_TRAIL.get() if departure is None else departure.trail,
        place=None if departure is None else departure.place,
    )


def _source(key: Key, seen: Flow, value: str) -> str:
    """Which variable gives `key` its `value` in the flow `seen`."""
    for source, raw in zip(seen.registry.settable, seen.raws, strict=True):
        if source in key.settable and source.reading(raw) == value:
            return source.label
    return _OURS


def _deliver(found: list[Mismatch], span: Span | None, parent: Any) -> None:
    for mismatch in found:
        alerts.deliver(mismatch, span, parent)


def span_started(began: Flow, now: Flow, span: Span, parent: Span, context: Any) -> Flow:
    """State what the start of `span` shows: its `parent` began in another flow, and this context is at `now`.

    Returns the flow that the context has from now on. Nothing is stated where the context has gone through the parent's
    flow: then the application has bound anew since. `context` is the OpenTelemetry Context that the span starts in.
    """
    if began.registry is not now.registry or began.serial == now.serial:
        return now
    if now.knows(began):
        return now if now.seen[:1] == (began.serial,) else now.after(began)
    for key, expected, observed in zip(now.registry.keys, began.values, now.values, strict=True):
        if expected is None or observed == expected or _is_told(parent, key.name, observed, context):
            continue
        reason: Reason = "lost" if observed is None else "foreign"
        source = None if observed is None else _source(key, now, observed)
        alerts.deliver(_mismatch(key, reason, expected, observed, source, "observed", None, None), span, context)
    return now


_TOLD: Final = "_otelctx_told"


def _is_told(parent: Span, key: str, observed: str | None, context: Any) -> bool:
    """Whether this was said already of this arrival: of work under `parent` in this thread and this Context.

    Work that fans out into tasks shares both; what it said is kept with the parent, and goes with it.
    """
    told: set[tuple[str, str | None, int, int]] = vars(parent).setdefault(_TOLD, set())
    statement = (key, observed, _thread.get_ident(), id(context))
    if statement in told or len(told) >= _TOLD_AT_MOST:
        return True
    told.add(statement)
    return False


_TOLD_AT_MOST: Final = 1024


# --- recorded hops, enforce ------------------------------------------------------------------------------------------


def in_full(departure: Departure, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    """Arrive with everything: the span, the trail, the comparison of each source where the mode asks for it."""
    try:
        if _mode == "observe":
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
        context.run(_HOME.set, None)  # the worker's home is of the worker's context
        return context.run(inside, departure, fn, args, kwargs)
    finally:
        del context, departure, fn, args, kwargs


def _inside(departure: Departure, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    """Run the work in its replayed context."""
    span: Span | None = None
    trail: Token[tuple[str, ...]] | None = None
    current: Token[Any] | None = None
    inner: Any = None
    asked = ambient.quietly(departure.is_asked)
    try:
        snapshot = departure.snapshot
        otel = runtime.variable.get()
        span = spans.start_hop_span(departure, fn, otel)
        hop = departure.hop(fn)
        trail = _TRAIL.set((*departure.trail, hop)[-TRAIL_LENGTH:])
        if span is not None:
            inner = runtime.with_span(otel, span)
            current = runtime.variable.set(inner)
        if snapshot.before is not snapshot.flow:
            departure.found.extend(_left_behind(departure))
        _deliver(departure.found, span, otel)
    except Exception as exc:
        faults.internal_error("arrival", exc)
    try:
        if _mode == "enforce":
            _enforce(departure, span)
        return fn(*args, **kwargs)
    except BaseException as exc:
        spans.failed(span, exc)
        raise
    finally:
        if current is not None and runtime.variable.get() is inner:  # else somebody holds a token for what is there
            runtime.variable.reset(current)
        if trail is not None:
            _TRAIL.reset(trail)
        if asked is not None:
            asked.var.reset(asked)
        spans.end(span)
        del asked, departure, fn, args, kwargs, span, current, trail, inner


@contextmanager
def entered(departure: Departure, fn: object) -> Iterator[None]:
    """Arrive in the current context, for the length of a ``with`` block: for a coroutine, or a block of code."""
    departure.snapshot.counts[departure.kind]()
    with attached(departure.snapshot, whole=True):
        span: Span | None = None
        tokens: list[Token[Any]] = []
        try:
            otel = runtime.variable.get()
            span = spans.start_hop_span(departure, fn, otel)
            tokens.append(_TRAIL.set((*departure.trail, departure.hop(fn))[-TRAIL_LENGTH:]))
            if span is not None:
                tokens.append(runtime.variable.set(runtime.with_span(otel, span)))
            departure.found.extend(_left_behind(departure))
            _deliver(departure.found, span, otel)
        except Exception as exc:
            faults.internal_error("arrival", exc)
        try:
            yield
        except BaseException as exc:
            spans.failed(span, exc)
            raise
        finally:
            for token in reversed(tokens):
                try:
                    token.var.reset(token)
                except ValueError:  # closed in another context
                    pass
            spans.end(span)


def _left_behind(departure: Departure) -> list[Mismatch]:
    """Where a key was minted or shed: the first place of the application's that still says the old value."""
    before, after, found = departure.snapshot.before, departure.snapshot.flow, []
    for key, old, new in zip(after.registry.keys, before.values, after.values, strict=True):
        if old is None or old == new:
            continue
        source = next((label for label, reading in _each_source(key) if reading == old), None)
        if source is None and flow.get(key.name) == old:
            source = _OURS
        if source is not None:
            found.append(_mismatch(key, "leaked", new, old, source, "observed", departure.kind, departure))
    return found


def _each_source(key: Key) -> Iterator[tuple[str, str | Literal[False] | None]]:
    for source in key.settable:
        if source.var is not None:
            yield source.label, source.reading(source.var.get(MISSING))
    for ambient_source, reading in ambient.readings(key):
        yield ambient_source.label, reading


def _enforce(departure: Departure, span: Span | None) -> None:
    """Raise `MismatchError` where a source of the application, read alone, still says something else."""
    raised: Mismatch | None = None
    try:
        now = flow.peek()
        for key, expected in zip(now.registry.keys, departure.snapshot.flow.values, strict=True):
            if expected is None:
                continue
            for source, reading in _each_source(key):
                if reading and reading != expected:
                    raised = _mismatch(key, "foreign", expected, reading, source, "raised", departure.kind, departure)
                    break
            if raised is not None:
                break
    except Exception as exc:
        faults.internal_error("enforce", exc)
    if raised is not None:
        alerts.deliver(raised, span, departure.snapshot.otel)
        raise MismatchError(raised)


# --- observe ---------------------------------------------------------------------------------------------------------

_lost_at: dict[tuple[str, Place | None, str], None] = {}
_LOST_AT_MOST: Final = 1024


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
        seen = flow.peek()
        found = _what_is_seen(departure, seen)
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
    try:
        yield
    except BaseException as exc:
        spans.failed(span, exc)
        raise
    finally:
        for token in (line, asked):
            if token is not None:
                try:
                    token.var.reset(token)  # type: ignore[arg-type]
                except ValueError:  # closed in another context
                    pass
        spans.end(span)


def _what_is_seen(departure: Departure, seen: Flow) -> list[tuple[Mismatch, bool]]:
    departed, arriving, kind = departure.snapshot.before, departure.snapshot.flow, departure.kind
    found: list[tuple[Mismatch, bool]] = []
    if seen.registry is not arriving.registry:
        return found
    if arriving is not departed:
        found.extend((mismatch, False) for mismatch in _left_behind(departure))
    readings = dict(zip(seen.registry.settable, seen.raws, strict=True))
    for key, old, expected, bound in zip(
        seen.registry.keys, departed.values, arriving.values, seen.values, strict=True
    ):
        if old != expected:  # minted or shed
            continue
        if bound is not None:
            if bound == expected or (expected is None and kind == policy.CALLBACK):
                continue
            reason: Reason = "leaked" if expected is None else "foreign"
            source = _source(key, seen, bound)
            found.append((_mismatch(key, reason, expected, bound, source, "observed", kind, departure), False))
        elif expected is not None:
            cleared = any(source.reading(readings.get(source, MISSING)) is False for source in key.settable)
            fallback = None if cleared else ambient.value(key)
            if fallback is None:
                lost = _mismatch(key, "lost", expected, None, None, "observed", kind, departure)
                found.append((lost, _is_known_loss(key, departure)))
            elif fallback[0] != expected:
                found.append((_mismatch(key, "foreign", expected, *fallback, "observed", kind, departure), False))
    return found


def _is_known_loss(key: Key, departure: Departure) -> bool:
    where = (key.name, departure.place, policy.NAMES[departure.kind])
    if where in _lost_at:
        return True
    while len(_lost_at) >= _LOST_AT_MOST:
        _lost_at.pop(next(iter(_lost_at)), None)
    _lost_at[where] = None
    return False


def compare_brought(snapshot: Snapshot, kind: int, context: Context) -> None:
    """A hop whose author brings a context: compare it with what departs, and leave it alone.

    A context that has gone through the departing flow, or the other way round, is the author's rebinding; an empty one
    is the author's wish for none.
    """
    departed = snapshot.before
    if departed.registry.flow not in context:
        return  # nobody has looked at it before, so nobody knows what it has gone through
    brought = flow.in_context(context)
    if brought.registry is not departed.registry or brought.knows(departed) or departed.knows(brought):
        return
    departure = Departure(snapshot, kind)
    for key, expected, observed in zip(departed.registry.keys, departed.values, brought.values, strict=True):
        if expected is not None and observed is not None and observed != expected:
            source = _source(key, brought, observed)
            alerts.deliver(
                _mismatch(key, "foreign", expected, observed, source, "observed", kind, departure), None, snapshot.otel
            )
