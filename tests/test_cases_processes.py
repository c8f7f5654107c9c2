"""Cases 13, 20 and 30, and the rows of the hop table that are processes: whose work a process sees."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any

import pytest

import otelctx
from tests import process_work as work
from tests.conftest import set_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Install

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

TIMEOUT = 30
METHODS = [name for name in ("fork", "spawn", "forkserver") if name in multiprocessing.get_all_start_methods()]
methods = pytest.mark.parametrize("method", METHODS)

A, B, NONE = ("A", "A", "A"), ("B", "B", "B"), (None, None, None)


@contextmanager
def session(value: str) -> Iterator[None]:
    """A session of the application's: its own variable, as applications set theirs, and a binding."""
    with set_to(work.KEY, value), otelctx.bind(session=value):
        yield


# --- 13: executors ----------------------------------------------------------------------------------------------------


@methods
def test_a_process_pool_that_a_warmed_sees_b_under_b_and_none_under_none(install: Install, method: str) -> None:
    install(keys=work.SESSION)
    with session("A"):
        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method))
        warm = pool.submit(work.seen)
    with pool:
        with session("B"):
            assert pool.submit(work.seen).result(TIMEOUT) == B
            assert list(pool.map(work.seen, range(3), chunksize=2)) == [B, B, B]
        assert warm.result(TIMEOUT) == A
        assert pool.submit(work.seen).result(TIMEOUT) == NONE
        assert Context().run(pool.submit, work.seen).result(TIMEOUT) == NONE


def by_apply(pool: Any) -> Any:
    return pool.apply(work.seen)


def by_apply_async(pool: Any) -> Any:
    return pool.apply_async(work.seen, (1,)).get(TIMEOUT)


def by_map(pool: Any) -> Any:
    return pool.map(work.seen, range(3), 2)[2]


def by_map_async(pool: Any) -> Any:
    return pool.map_async(work.seen, range(3), 2).get(TIMEOUT)[2]


def by_imap(pool: Any) -> Any:
    return list(pool.imap(work.seen, range(3), 2))[2]


def by_imap_unordered(pool: Any) -> Any:
    return list(pool.imap_unordered(work.seen, range(3)))[2]


def by_starmap(pool: Any) -> Any:
    return pool.starmap(work.seen, [(1, 2)])[0]


def by_starmap_async(pool: Any) -> Any:
    return pool.starmap_async(work.seen, [(1, 2)]).get(TIMEOUT)[0]


WAYS: list[Callable[[Any], Any]] = [
    by_apply,
    by_apply_async,
    by_map,
    by_map_async,
    by_imap,
    by_imap_unordered,
    by_starmap,
    by_starmap_async,
]


@methods
def test_a_multiprocessing_pool_that_a_warmed_sees_b_under_b_and_none_under_none(install: Install, method: str) -> None:
    install(keys=work.SESSION)
    with session("A"):
        pool = multiprocessing.get_context(method).Pool(1)
        assert pool.apply(work.seen) == A
    with pool:
        with session("B"):
            assert {way.__name__: way(pool) for way in WAYS} == {way.__name__: B for way in WAYS}
        assert {way.__name__: way(pool) for way in WAYS} == {way.__name__: NONE for way in WAYS}


# --- processes --------------------------------------------------------------------------------------------------------


@methods
def test_a_process_has_the_key_of_whoever_started_it(install: Install, method: str) -> None:
    install(keys=work.SESSION)
    context: Any = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    with session("B"):
        process = context.Process(target=work.put_seen, args=(queue,))
        process.start()
        assert "run" not in vars(process)
    assert queue.get() == B
    process.join(TIMEOUT)
    assert otelctx.owner_of(process) == otelctx.Owner({"session": "B"})


def test_a_future_of_a_process_pool_has_its_submitters_owner(install: Install) -> None:
    install()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool, otelctx.bind(session="A"):
        future: Future[Any] = pool.submit(work.seen)
        assert otelctx.resolve_owner(future, "A") == "A"
        assert otelctx.owner_of(future) == otelctx.Owner({"session": "A"})
