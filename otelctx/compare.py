"""What is compared, and what is stated: the decision tables.

An arrival compares what departed with what the worker would see; a span's start compares the flow of its parent with
its context's. Nothing here changes what an application sees.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING, Any, Final, Literal

from otelctx import alerts, ambient, binding, flow, ownership, policy
from otelctx.bounded import make_room
from otelctx.claim import SHED
from otelctx.keys import MISSING
from otelctx.mismatch import Action, Mismatch, Reason
from otelctx.place import TRAIL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextvars import Context

    from opentelemetry.trace import Span

    from otelctx.departure import Departure
    from otelctx.flow import Flow
    from otelctx.keys import Key
    from otelctx.mismatch import Place
    from otelctx.snapshot import Snapshot


_OURS: Final = "contextvar:otelctx.flow:STATE"
"""The source of a value that `otelctx.bind` bound."""


def compare(snapshot: Snapshot, kind: int, departure: Departure | None) -> list[Mismatch]:
    """What the current context's own identity, which is about to be replaced, says against what departed."""
    seen: Flow = flow.peek()
    found: list[Mismatch] = []
    # Whoever replays a snapshot by hand means it; and where nobody has been, nothing is to be seen.
    if kind == policy.EXPLICIT or seen is flow.registry.root:
        return found
    # Where the context is the one that departed (a job that is run on the spot), there is nothing to compare with.
    if seen.registry is snapshot.flow.registry and seen.serial != snapshot.before.serial:
        for key, expected, observed in zip(seen.registry.keys, snapshot.flow.values, seen.values, strict=True):
            if observed is None or observed == expected or (expected is None and kind == policy.CALLBACK):
                continue
            reason: Reason = "leaked" if expected is None else "foreign"
            found.append(
                mismatch_of(
                    key, reason, expected, observed, source_of(key, seen, observed), "repaired", kind, departure
                )
            )
    return found


def mismatch_of(
    key: Key,
    reason: Reason,
    expected: str | None,
    observed: str | None,
    source: str | None,
    action: Action,
    kind: int | None,
    departure: Departure | None,
) -> Mismatch:
    """The mismatch of `key`, with the hop's kind, place and trail where there is a `departure`."""
    return Mismatch(
        key.name,
        reason,
        expected,
        observed,
        source,
        action,
        hop_kind=None if kind is None else policy.NAMES[kind],
        trail=TRAIL.get() if departure is None else departure.trail,
        place=None if departure is None else departure.place,
    )


def source_of(key: Key, seen: Flow, value: str) -> str:
    """Which variable gives `key` its `value` in the flow `seen`."""
    for source, raw in zip(seen.registry.settable, seen.raws, strict=True):
        if source in key.settable and source.reading(raw) == value:
            return source.label
    return _OURS


def deliver(found: list[Mismatch], span: Span | None, parent: Any) -> None:
    """Raise an alert for each mismatch `found`, on `span` or else under `parent`."""
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
        source = None if observed is None else source_of(key, now, observed)
        alerts.deliver(mismatch_of(key, reason, expected, observed, source, "observed", None, None), span, context)
    return now


_TOLD: Final = "_otelctx_told"
_MARK: Final = "_otelctx_mark"

_TOLD_AT_MOST: Final = 1024


def _is_told(parent: Span, key: str, observed: str | None, context: Any) -> bool:
    """Whether this was said already of this arrival: of work under `parent` in this thread and this Context.

    Work that fans out into tasks shares both; what it said is kept with the parent, and goes with it.
    """
    told: set[tuple[str, str | None, int, object]] = vars(parent).setdefault(_TOLD, set())
    mark = vars(context).setdefault(_MARK, object()) if context else None
    statement = (key, observed, _thread.get_ident(), mark)
    if statement in told or len(told) >= _TOLD_AT_MOST:
        return True
    told.add(statement)
    return False


def left_behind(departure: Departure) -> list[Mismatch]:
    """Where a key was minted or shed: the first place of the application's that still says the old value."""
    before, after, found = departure.snapshot.before, departure.snapshot.flow, []
    for key, old, new in zip(after.registry.keys, before.values, after.values, strict=True):
        if old is None or old == new:
            continue
        source = next((label for label, reading in each_source(key) if reading == old), None)
        if source is None and binding.get(key.name) == old:
            source = _OURS
        if source is not None:
            found.append(mismatch_of(key, "leaked", new, old, source, "observed", departure.kind, departure))
    return found


def _claim_left_behind(departure: Departure) -> list[Mismatch]:
    """Where the claim was to be shed: whether the environment that the work sees has one all the same.

    An application that says by its own predicate that it has shed it is believed.
    """
    if departure.snapshot.flow.claim != SHED or departure.snapshot.before.claim == SHED:
        return []
    claim, source = ownership.of_process(), ownership.source()
    if claim is None or source is None or ownership.application_says() is False:
        return []
    kind = policy.NAMES[departure.kind]
    leaked = Mismatch(
        "claim", "leaked", None, claim.task_id, source, "observed", kind, departure.trail, departure.place
    )
    return [leaked]


def each_source(key: Key) -> Iterator[tuple[str, str | Literal[False] | None]]:
    """Each source of `key`, by its name, and what it says by itself."""
    for source in key.settable:
        if source.var is not None:
            yield source.label, source.reading(source.var.get(MISSING))
    for ambient_source, reading in ambient.readings(key):
        yield ambient_source.label, reading


_lost_at: dict[tuple[str, Place | None, str], None] = {}

_LOST_AT_MOST: Final = 1024


def what_is_seen(departure: Departure, seen: Flow) -> list[tuple[Mismatch, bool]]:
    """In observe: the mismatches of an arrival, and of each whether it was told of its place before."""
    departed, arriving, kind = departure.snapshot.before, departure.snapshot.flow, departure.kind
    found: list[tuple[Mismatch, bool]] = []
    if seen.registry is not arriving.registry:
        return found
    if arriving is not departed:
        found.extend((mismatch, False) for mismatch in (*left_behind(departure), *_claim_left_behind(departure)))
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
            source = source_of(key, seen, bound)
            found.append((mismatch_of(key, reason, expected, bound, source, "observed", kind, departure), False))
        elif expected is not None:
            cleared = any(source.reading(readings.get(source, MISSING)) is False for source in key.settable)
            fallback = None if cleared else ambient.value(key)
            if fallback is None:
                lost = mismatch_of(key, "lost", expected, None, None, "observed", kind, departure)
                found.append((lost, _is_known_loss(key, departure)))
            elif fallback[0] != expected:
                found.append((mismatch_of(key, "foreign", expected, *fallback, "observed", kind, departure), False))
    return found


def _is_known_loss(key: Key, departure: Departure) -> bool:
    where = (key.name, departure.place, policy.NAMES[departure.kind])
    if where in _lost_at:
        return True
    make_room(_lost_at, _LOST_AT_MOST)
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
    from otelctx import departure as departures

    departure = departures.Departure(snapshot, kind)
    for key, expected, observed in zip(departed.registry.keys, departed.values, brought.values, strict=True):
        if expected is not None and observed is not None and observed != expected:
            source = source_of(key, brought, observed)
            alerts.deliver(
                mismatch_of(key, "foreign", expected, observed, source, "observed", kind, departure),
                None,
                snapshot.otel,
            )


def forget() -> None:
    """Say again what was said once."""
    _lost_at.clear()
