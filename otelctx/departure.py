"""One hop that has more to it than its snapshot: where and when it departed, and whether it has a span."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from otelctx import ambient, place, policy, spans
from otelctx import snapshot as snapshots
from otelctx.place import TRAIL

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from otelctx.mismatch import Mismatch, Place
    from otelctx.snapshot import Snapshot


class Departure:
    """One hop that has more to it than its snapshot: where and when it departed, and what was found at its arrival."""

    __slots__ = (
        "__weakref__",
        "called",
        "captured",
        "cause",
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
        self.trail = TRAIL.get()
        self.found: list[Mismatch] = []
        self.is_asked = ambient.is_asking()
        """Whether a getter departs, which has been asked by an arrival: its own arrivals do not ask again."""
        self.cause: SpanContext | None = None
        """Whose doing a run is, where that is not the departed span."""
        self.spanned = spans.wanted_for(kind, snapshot.otel_departed)
        """Whether the hop has a span: decided here, since its parent may have ended by the time it arrives."""

    @classmethod
    def carried(
        cls,
        snapshot: Snapshot,
        kind: int,
        *,
        name: str | None,
        place: Place | None,
        trail: tuple[str, ...],
        waited: float,
        spanned: bool,
        is_asked: bool,
    ) -> Departure:
        """What departed from another process `waited` seconds ago: a clock that runs evenly is each process's own."""
        departure = cls.__new__(cls)
        departure.captured = departure.snapshot = snapshot
        departure.kind, departure.called, departure.name = kind, None, name
        departure.place, departure.trail, departure.clock = place, trail, time.monotonic() - waited
        departure.found, departure.is_asked, departure.spanned = [], is_asked, spanned
        departure.cause = None
        return departure

    def again(self, kind: int) -> Departure:
        """The same departure for one more arrival, of `kind`: the items of a batch arrive one by one."""
        departure = Departure.__new__(Departure)
        departure.snapshot = self.snapshot if kind == self.kind else snapshots.for_kind(self.captured, kind)
        departure.captured, departure.place, departure.clock = self.captured, self.place, self.clock
        departure.trail, departure.kind, departure.found = self.trail, kind, []
        departure.called, departure.name, departure.spanned = self.called, self.name, self.spanned
        departure.is_asked, departure.cause = self.is_asked, self.cause
        return departure

    def named(self, fn: object) -> str:
        """A readable name for what arrives, which is `fn`."""
        return self.name if self.name is not None else place.name_of(self.called if self.called is not None else fn)

    def hop(self, fn: object) -> str:
        """This hop in a trail."""
        where = f" @ {self.place.file}:{self.place.line}" if self.place else ""
        return f"{policy.NAMES[self.kind]} {self.named(fn)}{where}"
