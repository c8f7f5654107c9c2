"""What happens when threads meet at the worst moment: with a switch between them after nearly every instruction.

Each test goes on for `OTELCTX_RACE_SECONDS` (1 by default), with as many threads as find something to trip over.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context

import otelctx
from otelctx import metrics, snapshot

if TYPE_CHECKING:
    from tests.conftest import Install

KEY: ContextVar[Any] = ContextVar("KEY")
OTHER: ContextVar[Any] = ContextVar("OTHER")
KEYS: Final = {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}, {"env": "RACES_SESSION"}]}}
MORE: Final = KEYS | {"tenant": {"sources": [{"contextvar": f"{__name__}:OTHER"}]}}

SECONDS: Final = float(os.environ.get("OTELCTX_RACE_SECONDS", "1"))
THREADS: Final = 8
TIMEOUT: Final = 60.0

pytestmark = pytest.mark.timeout(60 + 3 * SECONDS)


@pytest.fixture(autouse=True)
def _switching() -> Iterator[None]:
    before, errors = sys.getswitchinterval(), metrics.error_counts()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    assert metrics.error_counts() == errors


def at_once(*jobs: Callable[[random.Random], None]) -> None:
    """Do each of the jobs again and again, all at once; raises what one of them raises."""
    over = threading.Event()
    together = threading.Barrier(len(jobs) + 1)
    failures: list[BaseException] = []

    def repeat(job: Callable[[random.Random], None], number: int) -> None:
        dice = random.Random(number)
        together.wait(TIMEOUT)
        try:
            while not over.is_set():
                job(dice)
        except BaseException as exc:
            failures.append(exc)
            over.set()

    threads = [threading.Thread(target=repeat, args=(job, number)) for number, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    together.wait(TIMEOUT)
    over.wait(SECONDS)  # the length of the test, not a wait for something
    over.set()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


def sees(*_: object) -> tuple[object, object]:
    return otelctx.get("session"), KEY.get(None)


def test_work_in_flight_runs_once_and_is_its_callers_or_nobodys_while_otelctx_is_turned_on_and_off(
    install: Install,
) -> None:
    pool, other = ThreadPoolExecutor(4), ThreadPool(2)

    def by_submit(found: Future[Any]) -> None:
        pool.submit(lambda: found.set_result(sees()))

    def by_map(found: Future[Any]) -> None:
        list(pool.map(lambda _: found.set_result(sees()), [1]))

    def by_thread(found: Future[Any]) -> None:
        threading.Thread(target=lambda: found.set_result(sees())).start()

    def by_timer(found: Future[Any]) -> None:
        threading.Timer(0, lambda: found.set_result(sees())).start()

    def by_callback(found: Future[Any]) -> None:
        done: Future[None] = Future()
        done.add_done_callback(lambda _: found.set_result(sees()))
        pool.submit(done.set_result, None)

    def by_thread_pool(found: Future[Any]) -> None:
        other.apply_async(lambda: found.set_result(sees()))

    ways = (by_submit, by_submit, by_map, by_thread, by_timer, by_callback, by_thread_pool)

    def serve(who: str, dice: random.Random) -> None:
        token = KEY.set(who)
        try:
            found: Future[Any] = Future()  # a second `set_result` would raise, and a lost one is a timeout
            with otelctx.bind(session=who):
                dice.choice(ways)(found)
                assert found.result(TIMEOUT) in ((who, who), (None, None))
            assert sees() == (who, who)
        finally:
            KEY.reset(token)

    def toggle(dice: random.Random) -> None:
        if dice.random() < 0.3:
            otelctx.uninstall()
        else:
            otelctx.install({}, mode=dice.choice(["repair", "observe"]), keys=dice.choice([KEYS, MORE]))

    install(keys=KEYS)
    with pool, other:
        at_once(toggle, *(partial(serve, f"session:{number}") for number in range(THREADS)))


def test_contexts_that_share_one_flow_depart_each_with_its_own_span_and_baggage(install: Install) -> None:
    install(keys=KEYS)
    with otelctx.bind(session="shared"):
        contexts = [copy_context() for _ in range(THREADS)]

    def look() -> tuple[object, object, int]:
        span = trace.get_current_span().get_span_context()
        return otelctx.get("session"), baggage.get_baggage("theirs"), span.span_id

    def depart(number: int, dice: random.Random) -> None:
        theirs = str(dice.randrange(4))
        otel = baggage.set_baggage("theirs", theirs)
        span = trace.NonRecordingSpan(trace.SpanContext(1, number + 1, is_remote=False))
        token = otel_context.attach(trace.set_span_in_context(span, otel))
        captured = otelctx.capture()
        again = snapshot.depart()
        otel_context.detach(token)
        for one in (captured, again):
            assert one.run(look) == ("shared", theirs, number + 1)

    def in_its_context(number: int, dice: random.Random) -> None:
        contexts[number].run(depart, number, dice)

    at_once(*(partial(in_its_context, number) for number in range(THREADS)))


def test_one_snapshot_arrives_in_many_threads_at_once_and_none_of_them_sees_what_another_sets(
    install: Install,
) -> None:
    install(keys=KEYS)
    token = KEY.set("shared")
    captured = otelctx.capture()
    KEY.reset(token)

    def arrive(number: int, dice: random.Random) -> None:
        def work() -> None:
            assert sees() == ("shared", "shared")
            KEY.set(number)
            with otelctx.bind(session=f"own:{number}"):
                inner = otelctx.capture()
            assert inner.run(sees) == (f"own:{number}", number)
            assert sees() == (str(number), number)

        captured.run(work)

    at_once(*(partial(arrive, number) for number in range(THREADS)))


def test_a_future_that_many_ask_for_its_owner_at_once_has_one(install: Install) -> None:
    install(keys=KEYS)
    with ThreadPoolExecutor(2) as pool:

        def ask(number: int, dice: random.Random) -> None:
            who = f"session:{dice.randrange(100)}"
            with otelctx.bind(session=who):
                handle = pool.submit(int)
            answers: list[object] = []

            def owner() -> None:
                found = otelctx.owner_of(handle)
                answers.append(found.session if found else None)
                answers.append(otelctx.resolve_owner(handle, who))

            threads = [threading.Thread(target=owner) for _ in range(3)]
            for thread in threads:
                thread.start()
            owner()
            for thread in threads:
                thread.join(TIMEOUT)
            assert answers == [who] * 8

        at_once(*(partial(ask, number) for number in range(4)))


def test_each_contexts_environment_is_its_own(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RACES_SESSION", raising=False)
    install(keys=KEYS, scoped_env={"mode": "scope", "names": ["RACES_SESSION"]})

    def serve(number: int, dice: random.Random) -> None:
        who = f"{number}:{dice.random()}"
        with otelctx.bind(session=who):
            os.environ["RACES_SESSION"] = who
            assert os.environ["RACES_SESSION"] == os.getenv("RACES_SESSION") == who
            assert dict(os.environ)["RACES_SESSION"] == who
            del os.environ["RACES_SESSION"]
            assert "RACES_SESSION" not in os.environ

    at_once(*(partial(serve, number) for number in range(THREADS)))
    assert "RACES_SESSION" not in os.environ


def test_every_patch_is_undone_after_threads_have_turned_otelctx_on_and_off_at_once(install: Install) -> None:
    before = ThreadPoolExecutor.submit, threading.Thread.start, Future.add_done_callback

    def toggle(dice: random.Random) -> None:
        if dice.random() < 0.5:
            otelctx.uninstall()
        else:
            otelctx.install({}, keys=KEYS)

    at_once(*[toggle] * 4)
    otelctx.uninstall()
    assert (ThreadPoolExecutor.submit, threading.Thread.start, Future.add_done_callback) == before
