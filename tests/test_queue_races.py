"""Adopting queues under load, and against the standard library's: whose an item is, and that none is lost."""

from __future__ import annotations

import contextvars
import queue
import sys
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import otelctx
from tests.conftest import Install

TIMEOUT = 30.0

PUTTERS, GETTERS, ITEMS = 4, 4, 150

KINDS = [queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue]


@pytest.fixture
def on(install: Install) -> None:
    install()


@pytest.fixture
def _quick_switches() -> Any:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def put_all(items: Any, who: str, *, small: bool) -> None:
    for number in range(ITEMS):
        item = (number % 7, who, number)
        with otelctx.bind(session=who):
            while True:
                try:
                    items.put(item, timeout=0.001) if small else items.put(item)
                    break
                except queue.Full:
                    pass


def get_all(items: Any, over: threading.Event, got: list[tuple[Any, object]]) -> None:
    while True:
        before = otelctx.get("session")
        try:
            # CPython 3.12.1's own loses wake-ups where several threads wait with a timeout.
            item = items.get() if isinstance(items, queue.SimpleQueue) else items.get(timeout=0.001)
        except queue.Empty:
            assert otelctx.get("session") == before
            if over.is_set() and items.empty():
                return
            continue
        if item is None:
            return
        got.append((item, otelctx.get("session")))
        if hasattr(items, "task_done"):
            items.task_done()


@pytest.mark.usefixtures("on", "_quick_switches")
@pytest.mark.parametrize("maxsize", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_of_many_putters_and_getters_each_item_is_got_once_and_under_its_putters_key(
    kind: type[Any], maxsize: int
) -> None:
    if kind is queue.SimpleQueue and maxsize:
        pytest.skip("a SimpleQueue has no size")
    items = otelctx.adopting(kind(maxsize) if maxsize else kind())
    got: list[tuple[Any, object]] = []
    over = threading.Event()
    putters = [
        threading.Thread(target=put_all, args=(items, f"s{n}"), kwargs={"small": bool(maxsize)}) for n in range(PUTTERS)
    ]
    getters = [threading.Thread(target=get_all, args=(items, over, got)) for _ in range(GETTERS)]
    for thread in (*getters, *putters):
        thread.start()
    for thread in putters:
        thread.join(TIMEOUT)
    over.set()
    for _ in getters:
        if kind is queue.SimpleQueue:
            items.put(None)
    for thread in getters:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert [(item, session) for item, session in got if item[1] != session] == []
    assert Counter(item for item, _ in got) == Counter(
        (number % 7, f"s{n}", number) for n in range(PUTTERS) for number in range(ITEMS)
    )
    if hasattr(items, "join"):
        items.join()
    assert len(items._otelctx_marks) == 0


@pytest.mark.usefixtures("on", "_quick_switches")
@pytest.mark.parametrize("kind", [queue.Queue, queue.SimpleQueue])
def test_of_one_object_that_many_put_each_gets_as_many_as_were_put_under_each_key(kind: type[Any]) -> None:
    items = otelctx.adopting(kind())
    seen: list[object] = []

    def put(who: str) -> None:
        for _ in range(ITEMS):
            with otelctx.bind(session=who):
                items.put("tick")

    def get() -> None:
        for _ in range(PUTTERS * ITEMS // GETTERS):
            assert items.get() == "tick"
            seen.append(otelctx.get("session"))

    threads = [threading.Thread(target=put, args=(f"s{n}",)) for n in range(PUTTERS)]
    threads += [threading.Thread(target=get) for _ in range(GETTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert Counter(seen) == {f"s{n}": ITEMS for n in range(PUTTERS)}


@pytest.mark.skipif(sys.version_info < (3, 13), reason="needs Queue.shutdown, of Python 3.13")
@pytest.mark.usefixtures("on", "_quick_switches")
@pytest.mark.parametrize("immediate", [False, True])
def test_a_queue_that_is_shut_down_in_the_middle_hands_out_nothing_under_another_key(immediate: bool) -> None:
    items: Any = otelctx.adopting(queue.Queue[Any](5))
    shut_down: Any = vars(queue)["ShutDown"]
    put: list[object] = []
    got: list[tuple[Any, object]] = []
    begun = threading.Event()

    def putting(who: str) -> None:
        for number in range(ITEMS * 20):
            with otelctx.bind(session=who):
                try:
                    items.put((who, number))
                except shut_down:
                    return
            put.append((who, number))

    def getting() -> None:
        while True:
            try:
                item = items.get()
            except shut_down:
                return
            got.append((item, otelctx.get("session")))
            items.task_done()
            begun.set()

    threads = [threading.Thread(target=putting, args=(f"s{n}",)) for n in range(PUTTERS)]
    threads += [threading.Thread(target=getting) for _ in range(GETTERS)]
    for thread in threads:
        thread.start()
    assert begun.wait(TIMEOUT)
    items.shutdown(immediate=immediate)
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    items.join()
    assert [(item, session) for item, session in got if item[0] != session] == []
    if not immediate:
        assert sorted(map(repr, put)) == sorted(repr(item) for item, _ in got)


PUT = st.tuples(st.just("put"), st.sampled_from(["A", "B", None]), st.integers(0, 2))
GET = st.tuples(st.just("get"), st.none(), st.none())
AROUND = st.tuples(st.sampled_from(["clear", "take", "add"]), st.none(), st.integers(0, 2))


def run(kind: type[Any], steps: list[tuple[str, str | None, Any]]) -> None:
    """The same steps with a plain queue of pairs, the model, and with an adopting one."""
    model = kind()
    items = otelctx.adopting(kind())
    has_order = kind is not queue.PriorityQueue
    around = False
    for number, (step, who, item) in enumerate(steps):
        if step == "put":
            model.put((item, who) if has_order else (item, number, who))
            if who is None:
                items.put(item)
            else:
                with otelctx.bind(session=who):
                    items.put(item)
        elif step == "get":
            if model.empty():
                with pytest.raises(queue.Empty):
                    contextvars.copy_context().run(items.get_nowait)
                continue
            expected, *_, owner = model.get()
            got, session = contextvars.copy_context().run(lambda: (items.get_nowait(), otelctx.get("session")))
            assert got == expected
            if has_order:
                assert session in ((owner, None) if around else (owner,))
        elif has_order:
            around = True
            smuggled = [item]  # an object of its own
            for one, new in ((model, (smuggled, None)), (items, smuggled)):
                if step == "clear":
                    one.queue.clear()
                elif step == "take" and one.queue:
                    one.queue.pop()
                elif step == "add":
                    one.queue.append(new)
        assert items.qsize() == model.qsize()


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([queue.Queue, queue.LifoQueue, queue.PriorityQueue]), st.lists(st.one_of(PUT, PUT, GET)))
def test_each_item_is_got_in_the_standard_librarys_order_and_under_its_putters_key(
    kind: type[Any], steps: list[tuple[str, str | None, Any]]
) -> None:
    otelctx.install({})
    run(kind, steps)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([queue.Queue, queue.LifoQueue]), st.lists(st.one_of(PUT, PUT, GET, AROUND)))
def test_whatever_is_done_around_the_queue_no_item_gets_another_ones_key(
    kind: type[Any], steps: list[tuple[str, str | None, Any]]
) -> None:
    otelctx.install({})
    run(kind, steps)
