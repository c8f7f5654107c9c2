"""What the process holds: its memory, its objects, and each table of otelctx that has an entry for something."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otelctx import alerts, ambient, compare, cron, faults, flow, keys, metrics, owners, ownership, place
from otelctx.departure import Departure
from otelctx.snapshot import Snapshot
from otelctx.workers import Home
from otelctx_instrumentation import patching, tracing

OURS: Final = (flow.Flow, flow.State, flow.Binding, Snapshot, Departure, Home, owners.Owner)
"""Types whose instances are counted: a table that one of them is in need not be known here."""


def tables() -> dict[str, int]:
    """How many entries each table of otelctx has, and how many objects of its types are alive."""
    alive = Counter(type(thing) for thing in gc.get_objects())
    found = {
        "owners of objects": len(owners._alive),
        "owners of values": len(owners._values),
        "owners by flow": len(owners._by_flow),
        "owners, interned": owners._interned.cache_info().currsize,
        "alert places": len(alerts._settings.rate),
        "places of a loss": len(compare._lost_at),
        "places of a split": len(ownership._split_at),
        "cron runs": len(cron._under_way),
        "files": len(place._is_plumbing),
        "span processors": len(tracing._attended),
        "meter providers": len(metrics._instruments),
        "hop counters": len(metrics._hops._ticks),
        "unsent mismatches": len(metrics._unsent),
        "faults": len(faults._logged) + len(faults._kept),
        "getters given up": len(ambient._given_up),
        "refused baggage": len(flow._refused),
        "keys ever bound": len(keys._ever_bound),
        "patches": len(patching._applied),
    }
    return found | {kind.__name__: alive[kind] for kind in OURS}


@dataclass(frozen=True)
class Memory:
    """The process's memory at a moment at which nothing is under way."""

    blocks: int
    """Blocks that Python has allocated: exact, and of all objects."""
    objects: int
    """Objects that the garbage collector knows."""
    resident: int
    """Bytes that the operating system counts."""
    tables: dict[str, int]


def measure() -> Memory:
    """Collect garbage, and look at what is left."""
    for _ in range(3):  # an object with a finalizer goes with the second; what that let go, with the third
        gc.collect()
    held = tables()
    return Memory(sys.getallocatedblocks(), len(gc.get_objects()), _resident(), held)


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # not Linux: the highest it ever was is the nearest to be had
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return pages * os.sysconf("SC_PAGE_SIZE")
