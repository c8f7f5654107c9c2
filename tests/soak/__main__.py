"""``python -m tests.soak [--hops N | --seconds S] [--seed N]``: exit code 1, with what was wrong.

What is checked:

* each piece of work sees the identity of whoever handed it on, by every way to look at one, and nobody else's;
* each piece of work ran once, or was cancelled and did not run; each callback was called;
* nothing is in the real context of an idle worker that a task brought there: looked at in each pool that is replaced,
  and in all of them at the end;
* no alert and no internal error: nothing that the threads do is a mismatch where otelctx repairs;
* no memory is gained after the first tenth. It is looked at ten times, while everybody waits and all pools are new.

The choices that each thread makes are the seed's; how they interleave is the machine's.
"""

from __future__ import annotations

import argparse
import logging
import platform
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

import otelctx
from otelctx import flow, metrics, owners
from tests.soak.hops import EVERY, Client
from tests.soak.identity import KEYS, NOBODY, seen, turn
from tests.soak.memory import Memory, measure
from tests.soak.pools import PATIENCE, Pools
from tests.soak.work import Ledger

if TYPE_CHECKING:
    from otelctx import Mismatch

THREADS: Final = 64
POOLS: Final = 4
LOOKS: Final = 10

WARM: Final = 12_000
"""How many hops it takes until every way has been gone often enough: a run's first tenth, if that is more."""
MORE_BLOCKS: Final = 6_000
"""How many blocks the process may have more at the end than after the first tenth: a leak of one for every hundredth
hop of a million would be 9,000. What is seen is up to 3,500 more, in the first minute, and none from then on."""
MORE_BYTES: Final = 16 << 20
"""How many bytes it may have more, which the operating system counts in its own way. What is seen is up to 4 MiB."""


class Exported(SpanExporter):
    """Counts spans, and keeps none."""

    def __init__(self) -> None:
        self.number = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.number += len(spans)
        return SpanExportResult.SUCCESS


class Gate:
    """Where the threads wait between two turns while somebody looks at the process."""

    def __init__(self, threads: int) -> None:
        self._changed = threading.Condition()
        self._threads = threads
        self._waiting = 0
        self._closed = False

    def pass_through(self) -> None:
        if not self._closed:
            return
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._closed)
            self._waiting -= 1

    def leave(self) -> None:
        with self._changed:
            self._threads -= 1
            self._changed.notify_all()

    def close(self) -> bool:
        """Whether everybody waits now."""
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: self._waiting == self._threads, PATIENCE)

    def open(self) -> None:
        with self._changed:
            self._closed = False
            self._changed.notify_all()


class Soak:
    """One run."""

    def __init__(self, seed: int, hops: int | None, seconds: float | None) -> None:
        self._seed, self._hops, self._seconds = seed, hops, seconds
        self._dice = random.Random(f"{seed}/pools")
        self._ledger = Ledger()
        self._pools = Pools(POOLS)
        self._gate = Gate(THREADS)
        self._over = threading.Event()
        self._alerts: Counter[str] = Counter()
        self._exported = Exported()
        self._looks: list[Memory] = []
        self._first_look_at = 0
        self._began = time.monotonic()

    def run(self) -> int:
        provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.25)))
        provider.add_span_processor(SimpleSpanProcessor(self._exported))
        trace.set_tracer_provider(provider)
        otelctx.install({}, keys=KEYS)
        otelctx.on_mismatch(self._alert)
        fill_what_is_bounded()
        served = [threading.Thread(target=self._serve, args=(number,)) for number in range(THREADS)]
        for thread in served:
            thread.start()
        try:
            for look in range(1, LOOKS + 1):
                self._until(look / LOOKS)
                self._look()
                if self._ledger.number_of_faults:
                    break
        finally:
            self._over.set()
            self._gate.open()
            for thread in served:
                thread.join(PATIENCE)
        if any(thread.is_alive() for thread in served):
            self._ledger.wrong("a thread does not end")
        self._found(self._pools.close())
        otelctx.uninstall()
        return self._verdict()

    def _alert(self, mismatch: Mismatch) -> None:
        self._alerts[f"{mismatch.reason} {mismatch.key} {mismatch.hop_kind} {mismatch.source}"] += 1
        if sum(self._alerts.values()) <= 3:
            print("an alert:", mismatch, file=sys.stderr)

    def _serve(self, number: int) -> None:
        client = Client(number, self._seed, self._ledger, self._pools)
        try:
            while not self._over.is_set():
                self._gate.pass_through()
                with turn(client.dice) as mine:
                    for _ in range(client.dice.randrange(1, 4)):
                        client.dice.choice(EVERY)(client, mine)
                if seen() != NOBODY:
                    self._ledger.wrong(f"after its turn, a thread sees {seen()}")
        except BaseException:
            self._ledger.wrong(f"a thread ended: {traceback.format_exc()}")
        finally:
            self._gate.leave()
            client.loops.close()

    def _done(self) -> float:
        """Which part of the run is over."""
        if self._seconds is not None:
            return (time.monotonic() - self._began) / self._seconds
        assert self._hops is not None
        return self._ledger.hops / self._hops

    def _until(self, part: float) -> None:
        """Shut pools down, until a part of the run is over, or something is wrong."""
        while self._done() < part and not self._ledger.number_of_faults:
            before = self._ledger.hops
            self._over.wait(0.05)  # how often, is all that it is for
            if self._ledger.hops > before:
                self._found(self._pools.replace(self._dice.randrange(POOLS), cancel=self._dice.random() < 0.5))

    def _look(self) -> None:
        if not self._gate.close():
            self._ledger.wrong("threads do not come to an end of their turns")
        for number in range(POOLS):
            self._found(self._pools.replace(number, cancel=False))
        if self._first_look_at < WARM:
            self._looks.clear()
            self._first_look_at = self._ledger.hops
        self._looks.append(measure())
        self._report()
        self._gate.open()

    def _found(self, faults: list[str]) -> None:
        for fault in faults:
            self._ledger.wrong(fault)

    def _report(self) -> None:
        seconds, now = time.monotonic() - self._began, self._looks[-1]
        print(
            f"{self._done():4.0%} {seconds:6.0f} s {self._ledger.hops:9,} hops, {self._pools.replaced:5,} pools, "
            f"{self._exported.number:8,} spans; {now.blocks:9,} blocks {now.objects:8,} objects "
            f"{now.resident / 2**20:6.1f} MiB; wrong: {self._ledger.number_of_faults}",
            flush=True,
        )

    def _verdict(self) -> int:
        wrong = list(self._ledger.faults)
        if self._ledger.number_of_faults > len(wrong):
            wrong.append(f"… and {self._ledger.number_of_faults - len(wrong)} more")
        wrong += [f"an alert, {number} times: {what}" for what, number in self._alerts.items()]
        wrong += [f"an internal error, {number} times: {what}" for what, number in metrics.error_counts().items()]
        if len(self._looks) > 1:
            wrong += _gained(self._looks[0], self._looks[-1])
        else:
            print("too short a run for a statement about memory")
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in self._ledger.kinds.most_common())
        print(f"{self._ledger.hops:,} hops: {kinds}")
        for table, entries in self._looks[-1].tables.items():
            print(f"  {table:20} {self._looks[0].tables[table]:8,} → {entries:8,}")
        for line in wrong:
            print(f"WRONG: {line}", file=sys.stderr)
        print("no fault" if not wrong else f"{len(wrong)} faults; --seed {self._seed}")
        return 1 if wrong else 0


def fill_what_is_bounded() -> None:
    """Have as many sessions as otelctx remembers owners of: to fill a table that has a limit is not to grow."""
    for number in range(2 * owners._INTERNED):
        # As large as any: a session and a tenant, and a claim.
        claim = otelctx.Claim(f"task:{number}")
        with otelctx.bind(session=f"before:{number}", tenant="before"), otelctx.grant_claim(claim):
            owners.of(flow.peek())


def _gained(first: Memory, last: Memory) -> list[str]:
    found = []
    if last.blocks - first.blocks > MORE_BLOCKS:
        found.append(f"{last.blocks - first.blocks:,} blocks were gained after the first tenth")
    if last.resident - first.resident > MORE_BYTES:
        found.append(f"{(last.resident - first.resident) / 2**20:.1f} MiB were gained after the first tenth")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition("\n")[0])
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hops", type=int, default=1_000_000, help="how many (default: %(default)s)")
    length.add_argument("--seconds", type=float, help="how long, in place of how many")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # tokens that the work leaves are its own mistake
    what = f"{arguments.seconds:g} seconds" if arguments.seconds else f"{arguments.hops:,} hops"
    print(
        f"Python {platform.python_version()}, {what}, {THREADS} threads, {POOLS} pools, --seed {arguments.seed}",
        flush=True,
    )
    return Soak(arguments.seed, arguments.hops, arguments.seconds).run()


if __name__ == "__main__":
    sys.exit(main())
