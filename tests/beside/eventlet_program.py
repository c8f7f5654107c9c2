"""``eventlet_program.py ORDER MODE``: what work sees behind each of eventlet's hops.

ORDER: otelctx is installed ``before`` monkey_patch(), ``after`` it, or there is ``no`` patching.
"""

# ruff: noqa: E402
# mypy: disable-error-code="import-not-found,import-untyped,no-any-return"

from __future__ import annotations

import sys
import warnings

order, mode = sys.argv[1:]

import greenlet_program as application

if order == "before":
    application.install(mode)

with warnings.catch_warnings(action="ignore"):  # that it is deprecated
    import eventlet
    import eventlet.greenthread
    import eventlet.tpool

    if order != "no":
        eventlet.monkey_patch()
if order != "before":
    application.install(mode)

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import eventlet.event

look = application.look
pool = eventlet.GreenPool(2)


def told(schedule: Callable[[Callable[..., None]], Any]) -> str | None:
    """What a callback sees that `schedule` hands on."""
    seen: list[str | None] = []
    kept = schedule(lambda *_: seen.append(look()))
    with eventlet.Timeout(10):
        while not seen:
            eventlet.sleep(0.001)
    del kept
    return seen[0]


def in_a_given_context() -> str | None:
    with application.session("who gave it"):
        context = copy_context()
    green = eventlet.spawn(look)
    green.gr_context = context
    result: str | None = green.wait()
    return result


def by_pile() -> list[str | None]:
    pile = eventlet.GreenPile(pool)
    pile.spawn(look)
    return list(pile)


def by_executor() -> str | None:
    with ThreadPoolExecutor(1) as made:
        return made.submit(look).result(10)


hops: dict[str, Callable[[], Any]] = {
    "spawn": lambda: eventlet.spawn(look).wait(),
    "spawn_n": lambda: told(eventlet.spawn_n),
    "spawn_after": lambda: eventlet.spawn_after(0.001, look).wait(),
    "spawn_after_local": lambda: eventlet.greenthread.spawn_after_local(0.001, look).wait(),
    "nested": lambda: eventlet.spawn(lambda: eventlet.spawn(look).wait()).wait(),
    "GreenPool.spawn": lambda: pool.spawn(look).wait(),
    "GreenPool.spawn_n": lambda: told(pool.spawn_n),
    "GreenPool.imap": lambda: list(pool.imap(look, [1, 2])),
    "GreenPool.starmap": lambda: list(pool.starmap(look, [(1,), (2,)])),
    "GreenPile": by_pile,
    "tpool.execute": lambda: eventlet.tpool.execute(look),
    "Thread": lambda: told(lambda callback: threading.Thread(target=callback).start()),
    "Timer": lambda: told(lambda callback: threading.Timer(0.001, callback).start()),
    "ThreadPoolExecutor": by_executor,
    "gr_context given": in_a_given_context,
    "link": lambda: told(lambda callback: eventlet.spawn(int).link(callback)),
}

application.report(
    hops, mode, lambda: {name: hops[name]() for name in ("spawn", "tpool.execute", "Thread", "ThreadPoolExecutor")}
)
