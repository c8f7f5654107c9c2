"""``gevent_program.py ORDER MODE``: what work sees behind each of gevent's hops.

ORDER: otelctx is installed ``before`` monkey.patch_all(), ``after`` it, or there is ``no`` patching.
"""

# ruff: noqa: E402
# mypy: disable-error-code="import-not-found,import-untyped,no-any-return"

from __future__ import annotations

import sys

order, mode = sys.argv[1:]

import greenlet_program as application

if order == "before":
    application.install(mode)

import gevent.monkey

if order != "no":
    gevent.monkey.patch_all()
if order != "before":
    application.install(mode)

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from multiprocessing.pool import ThreadPool as StandardThreadPool
from typing import Any

import gevent
import gevent.event
import gevent.pool
import gevent.threadpool

look = application.look
pool = gevent.pool.Pool(2)
threads = gevent.threadpool.ThreadPool(1)


class Subclass(gevent.Greenlet):  # type: ignore[misc]
    def _run(self) -> str | None:
        return look()


def told(schedule: Callable[[Callable[..., None]], Any]) -> str | None:
    """What a callback sees that `schedule` hands on."""
    seen = gevent.event.AsyncResult()
    kept = schedule(lambda *_: seen.set(look()))
    result: str | None = seen.get(timeout=10)
    del kept
    return result


def started_elsewhere() -> str | None:
    """A greenlet that another session made: it departs where it is started."""
    with application.session("who made it"):
        greenlet = gevent.Greenlet(look)
    greenlet.start()
    result: str | None = greenlet.get(timeout=10)
    return result


def nested() -> str | None:
    result: str | None = gevent.spawn(lambda: gevent.spawn(look).get(timeout=10)).get(timeout=10)
    return result


def in_a_given_context() -> str | None:
    with application.session("who gave it"):
        context = copy_context()
    greenlet = gevent.Greenlet(look)
    greenlet.gr_context = context
    greenlet.start()
    result: str | None = greenlet.get(timeout=10)
    return result


def by_executor(executor: Callable[..., Any]) -> str | None:
    with executor(1) as made:
        result: str | None = made.submit(look).result(10)
        return result


def by_executors_map(executor: Callable[..., Any]) -> list[str | None]:
    with executor(1) as made:
        return list(made.map(look, [1, 2]))


def by_standard_pool() -> str | None:
    with StandardThreadPool(1) as made:
        return made.apply(look)


def by_pool_made_elsewhere() -> str | None:
    """A pool whose threads another session has started."""
    with application.session("who warmed it"):
        made = gevent.threadpool.ThreadPool(1)
        made.apply(look)
    result: str | None = made.apply(look)
    return result


hops: dict[str, Callable[[], Any]] = {
    "spawn": lambda: gevent.spawn(look).get(timeout=10),
    "spawn_later": lambda: gevent.spawn_later(0.001, look).get(timeout=10),
    "a subclass": lambda: (lambda made: (made.start(), made.get(timeout=10))[1])(Subclass()),
    "made elsewhere": started_elsewhere,
    "nested": nested,
    "Pool.spawn": lambda: pool.spawn(look).get(timeout=10),
    "Pool.apply": lambda: pool.apply(look),
    "Pool.apply_async": lambda: pool.apply_async(look).get(timeout=10),
    "Pool.apply_async callback": lambda: told(lambda callback: pool.apply_async(int, callback=callback)),
    "Pool.map": lambda: pool.map(look, [1, 2]),
    "Pool.map_async": lambda: pool.map_async(look, [1, 2]).get(timeout=10),
    "Pool.imap": lambda: list(pool.imap(look, [1, 2])),
    "Pool.imap_unordered": lambda: list(pool.imap_unordered(look, [1, 2])),
    "ThreadPool.spawn": lambda: threads.spawn(look).get(timeout=10),
    "ThreadPool.apply": lambda: threads.apply(look),
    "ThreadPool.map": lambda: threads.map(look, [1, 2]),
    "ThreadPool, warmed elsewhere": by_pool_made_elsewhere,
    "the hub's threadpool": lambda: gevent.get_hub().threadpool.apply(look),
    "gevent's ThreadPoolExecutor": lambda: by_executor(gevent.threadpool.ThreadPoolExecutor),
    "gevent's ThreadPoolExecutor.map": lambda: by_executors_map(gevent.threadpool.ThreadPoolExecutor),
    "Thread": lambda: told(lambda callback: threading.Thread(target=callback).start()),
    "Timer": lambda: told(lambda callback: threading.Timer(0.001, callback).start()),
    "ThreadPoolExecutor": lambda: by_executor(ThreadPoolExecutor),
    "ThreadPoolExecutor.map": lambda: by_executors_map(ThreadPoolExecutor),
    "multiprocessing.pool.ThreadPool": by_standard_pool,
    "gr_context given": in_a_given_context,
    "spawn_raw": lambda: told(lambda callback: gevent.spawn_raw(callback)),
    "link": lambda: told(lambda callback: gevent.spawn(int).link(callback)),
    "the loop's run_callback": lambda: told(lambda callback: gevent.get_hub().loop.run_callback(callback)),
}

application.report(
    hops, mode, lambda: {name: hops[name]() for name in ("spawn", "ThreadPool.apply", "Thread", "ThreadPoolExecutor")}
)
