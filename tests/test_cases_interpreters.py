"""Interpreters and inherited contexts (3.14 and newer): whose work another interpreter, or such a thread, sees."""

from __future__ import annotations

import sys
import threading
from contextvars import Context
from typing import TYPE_CHECKING, Any

import pytest

import otelctx
from tests import process_work as work
from tests.test_cases_processes import NONE, TIMEOUT, A, B, outcome, run, session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Install

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="executors of interpreters are new in 3.14")


def interpreters(**options: Any) -> Any:
    from concurrent.futures import InterpreterPoolExecutor  # type: ignore[attr-defined,unused-ignore]

    return InterpreterPoolExecutor(1, **options)


def test_a_worker_interpreter_that_a_warmed_sees_b_under_b_and_none_under_none(install: Install) -> None:
    install(keys=work.SESSION)
    with interpreters(initializer=work.note_seen) as pool:
        with session("A"):
            assert pool.submit(work.seen).result(TIMEOUT) == A
            later = pool.map(work.seen, range(3), buffersize=1)
        with session("B"):
            future = pool.submit(work.seen)
            assert list(pool.map(work.seen, range(2))) == [B, B]
            assert list(later) == [A] * 3
            assert pool.submit(lambda: 1).result(TIMEOUT) == 1
        assert future.result(TIMEOUT) == B
        assert otelctx.owner_of(future) == otelctx.Owner({"session": "B"})
        assert pool.submit(work.seen).result(TIMEOUT) == NONE
        assert Context().run(pool.submit, work.seen).result(TIMEOUT) == NONE
        assert pool.submit(work.what_was_noted).result(TIMEOUT) == [NONE]
        pool.submit(work.keep, "X").result(TIMEOUT)
        assert pool.submit(work.seen).result(TIMEOUT) == NONE


def test_a_claim_that_is_shed_is_shed_in_an_interpreter(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOARD_TASK", "t1")
    install(claim={"env": {"task_id": "BOARD_TASK"}})
    with interpreters() as pool:
        assert pool.submit(work.claim).result(TIMEOUT)[0] == "held"
        with otelctx.shed_claim():
            assert pool.submit(work.claim).result(TIMEOUT) == ("shed", None)


WAYS: dict[str, Callable[[Any], Any]] = {
    "keywords": lambda pool: pool.submit(work.add, 1, self=3, fn=4).result(TIMEOUT),
    "a lambda": lambda pool: pool.submit(lambda: 1).result(TIMEOUT),
    "a lambda with an argument": lambda pool: pool.submit(lambda thing: thing + 1, 1).result(TIMEOUT),
    "an object": lambda pool: type(pool.submit(work.identity, work.Thing()).result(TIMEOUT)),
    "a built-in": lambda pool: pool.submit(len, [1]).result(TIMEOUT),
    "no callable": lambda pool: pool.submit("1 + 1"),
    "no callable to map": lambda pool: list(pool.map("1 + 1", [1])),
    "a wrong call": lambda pool: pool.submit(work.add).result(TIMEOUT),
    "it raises": lambda pool: pool.submit(work.fails).result(TIMEOUT),
    "uneven iterables": lambda pool: list(pool.map(work.add, [1, 2, 3], [4, 5])),
}


def test_a_pool_of_interpreters_does_and_raises_what_it_does_without_otelctx(install: Install) -> None:
    def outcomes() -> dict[str, object]:
        with interpreters() as pool, session("B"):
            # What the other interpreter's traceback looks like is told in the cause.
            return {name: outcome(lambda call=call: call(pool), cause=False) for name, call in WAYS.items()}  # type: ignore[misc]

    without = outcomes()
    install(keys=work.SESSION)
    assert outcomes() == without


def test_what_cannot_be_sent_raises_the_same_exception_which_shows_no_key(install: Install) -> None:
    from concurrent.interpreters import NotShareableError  # type: ignore[import-not-found,unused-ignore]

    install(keys=work.SESSION)
    with interpreters() as pool, otelctx.bind(session="a secret"), pytest.raises(NotShareableError) as raised:
        pool.submit(work.identity, work.KEY).result(TIMEOUT)
    shown: BaseException | None = raised.value
    while shown is not None:
        assert "a secret" not in str(shown)
        shown = shown.__cause__ or shown.__context__


PROGRAM = """
import sys
from concurrent.futures import InterpreterPoolExecutor

import otelctx
from tests import process_work as work

with InterpreterPoolExecutor(1) as pool, otelctx.bind(session="A"):
    print(pool.submit(work.installed).result())
"""


def test_an_interpreter_is_on_by_itself_where_the_environment_turns_otelctx_on(tmp_path: Path) -> None:
    on, seen = run(tmp_path, PROGRAM, OTELCTX_ENABLED="true")
    assert (on, seen) == (True, work.Seen(None, "A", "A", None))


WITHOUT_OTELCTX = """
import sys

sys.path[:0] = {path}  # no other interpreter has these

import otelctx
from concurrent.futures import InterpreterPoolExecutor

def see():
    import sys
    return 1, "otelctx" in sys.modules

otelctx.install()
with InterpreterPoolExecutor(1) as pool, otelctx.bind(session="A"):
    print(pool.submit(lambda: 1).result(), list(pool.map(lambda x: x, [2])), sep=",")
"""


def test_work_runs_in_an_interpreter_that_cannot_import_otelctx(tmp_path: Path) -> None:
    program = WITHOUT_OTELCTX.format(path=sys.path)
    assert run(tmp_path, program, flags=["-I"]) == (1, [2])


# --- contexts that threads are given, or inherit ---------------------------------------------------------------------


def test_a_thread_that_is_given_a_context_has_that_one_and_not_ours(install: Install) -> None:
    install(keys=work.SESSION)
    seen: list[work.Seen] = []
    with session("A"):
        thread = threading.Thread(target=lambda: seen.append(work.seen()), context=Context())  # type: ignore[call-arg,unused-ignore]
        thread.start()
        thread.join(TIMEOUT)
    assert seen == [NONE]


INHERITING = """
import multiprocessing, threading
from concurrent.futures import InterpreterPoolExecutor, ProcessPoolExecutor, ThreadPoolExecutor, Future
from contextvars import copy_context
from multiprocessing.pool import ThreadPool

import otelctx
from tests import process_work as work

def in_thread(**given):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(work.seen()), **given)
    thread.start()
    thread.join()
    return seen[0]

def in_timer():
    seen = []
    timer = threading.Timer(0, lambda: seen.append(work.seen()))
    timer.start()
    timer.join()
    return seen[0]

def by_callback():
    seen, future = [], Future()
    future.add_done_callback(lambda _: seen.append(work.seen()))
    resolver = threading.Thread(target=future.set_result, args=(1,), context=__import__("contextvars").Context())
    resolver.start()
    resolver.join()
    return seen[0]

if __name__ == "__main__":
    otelctx.install({"keys": work.SESSION})
    first = work.KEY.set("A")
    threads, mapped = ThreadPoolExecutor(1), ThreadPool(1)
    forked = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    pooled = multiprocessing.get_context("fork").Pool(1)
    others = InterpreterPoolExecutor(1)
    ways = {
        "thread": in_thread,
        "thread with a context": lambda: in_thread(context=copy_context()),
        "timer": in_timer,
        "submit": lambda: threads.submit(work.seen).result(),
        "map": lambda: list(threads.map(work.seen, [1]))[0],
        "thread pool": lambda: mapped.apply(work.seen),
        "process pool": lambda: forked.submit(work.seen).result(),
        "multiprocessing pool": lambda: pooled.apply(work.seen),
        "callback": by_callback,
        "interpreters": lambda: others.submit(work.seen).result(),  # last: a fork with interpreters would hang
    }
    found = {"A": {name: way().variable for name, way in ways.items()}}
    work.KEY.reset(first)
    second = work.KEY.set("B")
    found["B"] = {name: way().variable for name, way in ways.items()}
    work.KEY.reset(second)
    found[None] = {name: way().variable for name, way in ways.items()}
    for pool in (threads, forked, others):
        pool.shutdown()
    for pool in (mapped, pooled):
        pool.terminate()
    print(found)
"""


@pytest.mark.parametrize("inherit", ["0", "1"])
def test_every_hop_has_its_own_key_whether_threads_inherit_the_context_or_not(tmp_path: Path, inherit: str) -> None:
    flags = ["-W", "ignore:This process:DeprecationWarning", "-X", f"thread_inherit_context={inherit}"]
    found = run(tmp_path, INHERITING, flags=flags)
    assert {value: set(seen.values()) for value, seen in found.items()} == {"A": {"A"}, "B": {"B"}, None: {None}}
