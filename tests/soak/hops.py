"""The hops: each function hands pieces of work on, waits for them, and says what became of them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotInTime
from contextvars import copy_context
from functools import partial
from typing import Any, Final

import otelctx
from tests.soak.identity import Seen, Turn, seen
from tests.soak.pools import PATIENCE, Pools
from tests.soak.work import Boom, Ledger, Work


class Client:
    """One of the threads that serve: its dice, its event loop, and how it makes pieces of work."""

    def __init__(self, number: int, seed: int, ledger: Ledger, pools: Pools) -> None:
        self.dice = random.Random(f"{seed}/{number}")
        self.ledger = ledger
        self.pools = pools
        self.loops = asyncio.Runner()

    def work(self, kind: str, turn: Turn, **options: Any) -> Work:
        return Work(self.ledger, kind, self.dice, turn.sees, **options)

    def pool(self) -> int:
        return self.dice.randrange(len(self.pools))

    def submit(self, work: Work) -> Future[Any]:
        """As a plain function nearly always: that is the short way through the patches."""
        return self.pools.submit(self.pool(), work.function() if self.dice.random() < 0.7 else work)

    def settle(self, work: Work, get: Callable[[], Any]) -> None:
        """Wait for what became of `work`: it ran once, or it was cancelled and did not run."""
        try:
            result = get()
        except Boom:
            pass
        except CancelledError:
            if work.times:
                self.ledger.wrong("a piece of work was cancelled, and ran")
            return
        else:
            if result != work.result:
                self.ledger.wrong(f"a piece of work gave {result}, not {work.result}")
        self.ran_once(work)

    def ran_once(self, work: Work) -> None:
        if work.times != 1:
            self.ledger.wrong(f"a piece of work ran {work.times} times")


def submitted(client: Client, turn: Turn) -> None:
    works = [client.work("submit", turn) for _ in range(client.dice.randrange(1, 8))]
    for work, future in [(work, client.submit(work)) for work in works]:
        client.settle(work, partial(future.result, PATIENCE))


def cancelled(client: Client, turn: Turn) -> None:
    """Some are cancelled while they wait, some run already; nobody waits for others for long."""
    works = [client.work("submit, cancelled", turn) for _ in range(6)]
    futures = [client.submit(work) for work in works]
    for future in futures[::2]:
        future.cancel()
    try:
        futures[1].result(0)
    except (NotInTime, Boom, CancelledError):
        pass
    for work, future in zip(works, futures, strict=True):
        client.settle(work, partial(future.result, PATIENCE))


def called_back(client: Client, turn: Turn) -> None:
    """A callback for each of: work that runs, work that is cancelled, work that has finished."""
    works = [client.work("submit, with a callback", turn) for _ in range(3)]
    callbacks = [client.work("callback", turn, may_leave=False) for _ in range(3)]
    # One of a future that is done runs on the spot, where baggage may not be in step: that is no hop.
    either = {turn.sees, seen()}
    for callback in callbacks:
        callback.expect(either.__contains__)
    done = [threading.Event() for _ in range(3)]

    def told(callback: Work, event: threading.Event, _: object) -> None:
        try:
            callback()
        except Boom:
            pass
        finally:
            event.set()

    futures = [client.submit(work) for work in works]
    futures[1].cancel()
    if client.dice.random() < 0.5:
        try:
            futures[2].result(PATIENCE)
        except (Boom, CancelledError):
            pass
    for future, callback, event in zip(futures, callbacks, done, strict=True):
        future.add_done_callback(partial(told, callback, event))
    for work, future, callback, event in zip(works, futures, callbacks, done, strict=True):
        client.settle(work, partial(future.result, PATIENCE))
        if not event.wait(PATIENCE):
            client.ledger.wrong("a callback was lost")
        client.ran_once(callback)


def mapped(client: Client, turn: Turn) -> None:
    works = [client.work("map", turn) for _ in range(client.dice.randrange(1, 6))]
    try:
        list(client.pools.executor(client.pool()).map(quietly, works))
    except (RuntimeError, CancelledError):  # shut down: what was submitted by then runs, or is cancelled
        return
    for work in works:
        client.ran_once(work)


def quietly(work: Work) -> None:
    try:
        work()
    except Boom:
        pass


def nested(client: Client, turn: Turn) -> None:
    """Work that hands on work, which hands on work: each as what the one before it saw."""
    depth = client.dice.randrange(2, 5)
    handed_on: list[tuple[Work, Future[Any]]] = []

    def hand_on(level: int) -> Callable[[random.Random], None]:
        def behave(dice: random.Random) -> None:
            if level:
                inner = Work(client.ledger, "submit, nested", dice, seen(), hand_on(level - 1))
                handed_on.append((inner, client.pools.submit(dice.randrange(4), inner.function())))

        return behave

    outer = client.work("submit, outermost", turn, behave=hand_on(depth))
    client.settle(outer, partial(client.submit(outer).result, PATIENCE))
    for work, future in handed_on:  # it grows as they run
        client.settle(work, partial(future.result, PATIENCE))


def threads(client: Client, turn: Turn) -> None:
    works = [client.work("thread", turn) for _ in range(2)]
    started = [threading.Thread(target=quietly, args=(work,)) for work in works]
    for thread in started:
        thread.start()
    for work, thread in zip(works, started, strict=True):
        thread.join(PATIENCE)
        client.ran_once(work)


def timers(client: Client, turn: Turn) -> None:
    """One that runs, one that is cancelled, and one that sets itself again: its later runs are a cron job's."""
    once, never = client.work("timer", turn), client.work("timer, cancelled", turn)
    runs, done = client.dice.randrange(2, 4), threading.Event()
    first = client.work("timer", turn, may_leave=False)
    ticks = [client.work("timer, set again", turn, may_leave=False) for _ in range(runs - 1)]
    for later in ticks:
        later.expect(is_minted)
    left = [first, *ticks]

    def tick() -> None:
        quietly(left.pop(0))
        if left:
            threading.Timer(0, tick).start()
        else:
            done.set()

    timer, cancelled = threading.Timer(0, quietly, (once,)), threading.Timer(60, quietly, (never,))
    timer.start()
    cancelled.start()
    threading.Timer(0, tick).start()
    cancelled.cancel()
    for thread in (timer, cancelled):
        thread.join(PATIENCE)
    if not done.wait(PATIENCE):
        client.ledger.wrong("a timer was lost")
    for work in (once, first, *ticks):
        client.ran_once(work)
    if never.times:
        client.ledger.wrong("a timer was cancelled, and ran")


def is_minted(here: Seen) -> bool:
    """Whether this is a run of a cron job: a key of its own, nothing of the application's, no claim."""
    key = here.session
    is_fresh = key is not None and key.startswith("cron:") and here[:6] == (key, key, "shed", "", "", key)
    return is_fresh and here.trace_id != 0


def thread_pool(client: Client, turn: Turn) -> None:
    pool = client.pools.thread_pool
    works = [client.work("ThreadPool", turn) for _ in range(4)]
    callback, called = client.work("ThreadPool, callback", turn, may_leave=False), threading.Event()

    def told(_: object) -> None:
        quietly(callback)
        called.set()

    asked = pool.apply_async(works[0].function(), callback=told, error_callback=told)
    pool.map(quietly, works[1:3])
    for _ in pool.imap_unordered(quietly, works[3:]):
        pass
    client.settle(works[0], partial(asked.get, PATIENCE))
    if not called.wait(PATIENCE):
        client.ledger.wrong("a ThreadPool's callback was lost")
    for work in (*works[1:], callback):
        client.ran_once(work)


def cron(client: Client, turn: Turn) -> None:
    """A run of a cron job, by hand, in a thread of somebody's: and what it hands on is the job's."""
    with otelctx.cron_run("nightly", runner="soak"):
        here = seen()
        if not is_minted(here):
            client.ledger.wrong(f"a cron run sees {here}")
        submitted(client, Turn(here))
    if seen()._replace(baggage=None) != turn.sees._replace(baggage=None):
        client.ledger.wrong(f"after a cron run its caller sees {seen()}, not {turn.sees}")


def captured(client: Client, turn: Turn) -> None:
    """Snapshots that the application takes itself, and contexts that it brings."""
    snapshot = otelctx.capture()
    works = [client.work("captured", turn) for _ in range(2)]
    brought = Work(client.ledger, "brought", client.dice, seen(), may_leave=False)
    futures = [client.pools.submit(client.pool(), snapshot.wrap(works[0].function()))]
    futures.append(client.pools.submit(client.pool(), snapshot.run, works[1].function()))
    theirs = client.pools.submit(client.pool(), copy_context().run, brought)
    for work, future in zip(works, futures, strict=True):
        client.settle(work, partial(future.result, PATIENCE))
    client.settle(brought, partial(theirs.result, PATIENCE))


def tasks(client: Client, turn: Turn) -> None:
    """Coroutines of one loop: tasks, threads and executors, some of them cancelled or waited for in vain."""
    # A task has the context of whoever made it, as it is; only what arrives by a hop has baggage in step.
    sees = seen()
    works: list[Work] = []

    def new(kind: str, expects: Seen, *, leaves: bool) -> Work:
        works.append(Work(client.ledger, kind, client.dice, expects, may_leave=leaves))
        return works[-1]

    async def task() -> None:
        await asyncio.sleep(0)
        quietly(new("task", sees, leaves=True))

    async def to_thread() -> None:
        await asyncio.to_thread(quietly, new("to_thread", sees, leaves=True))

    async def in_executor() -> None:
        work, loop = new("run_in_executor", turn.sees, leaves=True), asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(client.pools.executor(client.pool()), quietly, work)
                return
            except RuntimeError:  # the pool was shut down
                continue
            except asyncio.CancelledError:
                # Cancelled with its pool, and never run; or the task itself, whose work may still run.
                works.remove(work)
                raise

    async def never() -> None:
        await asyncio.sleep(PATIENCE)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        soon = loop.create_future()
        loop.call_soon(soon.set_result, None, context=copy_context())
        made = [loop.create_task(fn()) for fn in (task, to_thread, in_executor, task)]
        given_up = loop.create_task(never())
        try:
            await asyncio.wait_for(never(), 0.0001)
        except TimeoutError:
            pass
        given_up.cancel()
        if client.dice.random() < 0.2:
            made[2].cancel()
        await asyncio.gather(soon, given_up, *made, return_exceptions=True)
        if seen() != sees:
            client.ledger.wrong(f"a coroutine sees {seen()} after its tasks, not {sees}")

    client.loops.run(main(), context=copy_context())
    for work in works:
        client.ran_once(work)


EVERY: Final = (
    submitted,
    submitted,
    submitted,
    cancelled,
    called_back,
    mapped,
    nested,
    nested,
    threads,
    timers,
    thread_pool,
    cron,
    captured,
    tasks,
)
