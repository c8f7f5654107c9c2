"""Adopting queues: an item carries the identity of whoever put it, ``get`` adopts it, and nothing else is different."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import importlib
import inspect
import itertools
import multiprocessing
import pickle
import queue
import sys
import threading
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, trace

import otelctx
from otelctx import faults, metrics
from otelctx.marks import Marks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from otelctx import Mismatch
    from tests.conftest import Install

KEY: ContextVar[Any] = ContextVar(f"{__name__}:KEY")
UNDECLARED: ContextVar[Any] = ContextVar(f"{__name__}:UNDECLARED")
KEYS: dict[str, Any] = {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}]}}

TIMEOUT = 20.0

ABSENT = "absent"

KINDS = [queue.Queue, queue.LifoQueue, queue.PriorityQueue]
ALL_KINDS = [*KINDS, queue.SimpleQueue]


@pytest.fixture(params=["carried", "recorded", "enforced"])
def on(request: pytest.FixtureRequest, install: Install) -> Iterator[None]:
    """Otelctx on, for each way that an item can arrive: plainly, with a span, and in enforce."""
    install(mode="enforce" if request.param == "enforced" else "repair", keys=KEYS)
    if request.param == "recorded":
        with trace.get_tracer(__name__).start_as_current_span("turn"):
            yield
    else:
        yield


@contextmanager
def acting_as(who: Any) -> Iterator[None]:
    """A turn of `who`, in the application's own variable; None is nobody's code."""
    if who is None:
        yield
        return
    token = KEY.set(who)
    try:
        yield
    finally:
        KEY.reset(token)


def whose() -> tuple[object, ...]:
    """What code that was handed an item sees: the application's variable, otelctx's answer, and baggage."""
    return KEY.get(ABSENT), otelctx.get("session"), baggage.get_baggage("otelctx.session")


def of(who: str | None) -> tuple[object, ...]:
    return (ABSENT, None, None) if who is None else (who, who, who)


def in_a_worker(work: Callable[[], Any]) -> Any:
    """What `work` returns in a thread that nobody's code has started."""
    answer: list[Any] = []
    thread = threading.Thread(target=lambda: answer.append(work()))
    contextvars.Context().run(thread.start)
    thread.join(TIMEOUT)
    assert answer, "the worker has failed, or is stuck"
    return answer[0]


def got(items: Any) -> Any:
    """The next item, without a trace of it in the test's own context."""
    return contextvars.copy_context().run(items.get)


def got_by_a_worker(items: Any, number: int) -> list[tuple[object, tuple[object, ...]]]:
    return in_a_worker(lambda: [(items.get(timeout=TIMEOUT), whose()) for _ in range(number)])  # type: ignore[no-any-return]


# --- what an item carries --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_each_item_is_got_under_its_putters_key(kind: type[Any]) -> None:
    items = otelctx.adopting(kind())
    for item, who in ((2, "A"), (1, "B"), (3, None), (0, "A")):
        with acting_as(who):
            items.put(item)
    plain = kind()
    for item in (2, 1, 3, 0):
        plain.put(item)
    order = [plain.get() for _ in range(4)]
    putters = {2: "A", 1: "B", 3: None, 0: "A"}
    assert got_by_a_worker(items, 4) == [(item, of(putters[item])) for item in order]


@pytest.mark.usefixtures("on")
def test_an_item_that_nobody_put_after_one_of_as_is_nobodys() -> None:
    items = otelctx.adopting(queue.Queue[str]())
    with acting_as("A"):
        items.put("A's")
    items.put("nobody's")
    assert got_by_a_worker(items, 2) == [("A's", of("A")), ("nobody's", of(None))]


@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("raises", ["at once", "after a while"])
def test_a_get_that_raises_leaves_the_worker_as_it_was(raises: str) -> None:
    items = otelctx.adopting(queue.Queue[str]())
    with acting_as("A"):
        items.put("item")

    def work() -> tuple[object, ...]:
        items.get()
        with pytest.raises(queue.Empty):
            items.get_nowait() if raises == "at once" else items.get(timeout=0.001)
        return whose()

    assert in_a_worker(work) == of("A")


@pytest.mark.usefixtures("on")
def test_what_a_task_leaves_behind_is_gone_with_the_next_item() -> None:
    items = otelctx.adopting(queue.Queue[str]())
    with acting_as("A"):
        items.put("A's")
    items.put("nobody's")

    def work() -> tuple[object, ...]:
        items.get()
        KEY.set("A.sub")
        otelctx.attach(session="A.other")
        items.get()
        return whose()

    assert in_a_worker(work) == of(None)


def test_what_a_worker_has_set_itself_is_cleared_where_it_cannot_be_unset(install: Install) -> None:
    install(keys=KEYS)
    items = otelctx.adopting(queue.Queue[str]())
    items.put("nobody's")

    def work() -> tuple[object, ...]:
        KEY.set("worker")
        items.get()
        return whose()

    assert in_a_worker(work) == ("", None, None)


WITHOUT_EMPTY: ContextVar[Any] = ContextVar(f"{__name__}:WITHOUT_EMPTY")


def test_where_nothing_can_clear_a_variable_the_key_is_nobodys_for_otelctx(install: Install) -> None:
    install(keys={"session": {"sources": [{"contextvar": f"{__name__}:WITHOUT_EMPTY"}]}})
    items = otelctx.adopting(queue.Queue[str]())
    items.put("nobody's")
    before = metrics.error_counts().get("queue", 0)

    def work() -> tuple[object, ...]:
        WITHOUT_EMPTY.set("worker")
        items.get()
        return WITHOUT_EMPTY.get(), otelctx.get("session"), baggage.get_baggage("otelctx.session")

    assert in_a_worker(work) == ("worker", None, None)
    assert metrics.error_counts()["queue"] == before + 1
    faults.forget()


@pytest.mark.usefixtures("on")
def test_an_undeclared_variable_stays_the_workers() -> None:
    items = otelctx.adopting(queue.Queue[str]())
    UNDECLARED.set("putter")
    with acting_as("A"):
        items.put("item")

    def work() -> object:
        before = UNDECLARED.get(ABSENT)
        UNDECLARED.set("worker")
        items.get()
        return before, UNDECLARED.get(ABSENT)

    assert in_a_worker(work) == (ABSENT, "worker")


def test_a_queue_that_nobody_declared_does_not_adopt(install: Install) -> None:
    install(keys=KEYS)
    items: queue.Queue[str] = queue.Queue()
    otelctx.adopting(queue.Queue())  # another one
    with acting_as("A"):
        items.put("item")
    assert got_by_a_worker(items, 1) == [("item", of(None))]


# --- nothing else is different ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, asyncio.Queue, asyncio.LifoQueue, asyncio.PriorityQueue])
def test_it_is_the_same_object_and_looks_as_before(kind: type[Any]) -> None:
    items = kind(3)
    looks = repr(items), str(items)
    assert otelctx.adopting(items) is items
    assert otelctx.adopting(items) is items
    assert isinstance(items, kind)
    assert items.__class__ is kind
    assert (repr(items), str(items)) == looks
    assert inspect.signature(items.put) == inspect.signature(kind.put).replace(
        parameters=[*inspect.signature(kind.put).parameters.values()][1:]
    )
    for wrong in ({}, {"itme": 1}):
        with pytest.raises(TypeError) as expected:
            kind.put_nowait(kind(), **wrong)
        with pytest.raises(TypeError) as error:
            items.put_nowait(**wrong)
        assert str(error.value) == str(expected.value)


@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("kind", KINDS)
def test_items_are_the_very_objects_that_were_put_for_whoever_looks(kind: type[Any]) -> None:
    items = otelctx.adopting(kind())
    item = (1, "item")
    with acting_as("A"):
        items.put(item)
    assert [one is item for one in items.queue] == [True]
    assert got(items) is item


class Comparing:
    """An item that may be compared with its like only, and counts how often it is."""

    compared = 0

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __lt__(self, other: object) -> bool:
        assert type(other) is Comparing
        Comparing.compared += 1
        return self.rank < other.rank

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("nobody has to ask for equality")


def test_items_are_compared_as_often_as_the_standard_library_does(install: Install) -> None:
    install(keys=KEYS)
    counts = []
    for items in (queue.PriorityQueue[Comparing](), otelctx.adopting(queue.PriorityQueue[Comparing]())):
        Comparing.compared = 0
        for rank in (5, 3, 8, 1, 9, 2):
            items.put(Comparing(rank))
        assert [got(items).rank for _ in range(6)] == [1, 2, 3, 5, 8, 9]
        counts.append(Comparing.compared)
    assert counts[0] == counts[1] > 0


def test_items_that_cannot_be_compared_raise_as_without_otelctx(install: Install) -> None:
    install(keys=KEYS)
    left = []
    for items in (queue.PriorityQueue[Any](), otelctx.adopting(queue.PriorityQueue[Any]())):
        items.put(1)
        with pytest.raises(TypeError, match="not supported"):
            items.put("one")
        left.append((items.qsize(), items.unfinished_tasks))
        assert got(items) == 1
        assert got(items) == "one"  # the standard library leaves it there
    assert left[0] == left[1]


@pytest.mark.usefixtures("on")
def test_a_full_queue_and_its_join_are_as_ever() -> None:
    items = otelctx.adopting(queue.Queue[int](1))
    with acting_as("A"):
        items.put(1)
    assert items.full()
    with acting_as("B"), pytest.raises(queue.Full):
        items.put(2, timeout=0.001)
    assert got(items) == 1
    assert items.unfinished_tasks == 1
    items.task_done()
    items.join()
    with pytest.raises(ValueError, match="called too many times"):
        items.task_done()
    assert items.empty()


@pytest.mark.skipif(sys.version_info < (3, 13), reason="needs Queue.shutdown, of Python 3.13")
@pytest.mark.usefixtures("on")
def test_shutting_down_gives_nobody_an_identity_and_wakes_those_who_wait() -> None:
    items: Any = otelctx.adopting(queue.Queue[int]())
    shut_down: Any = vars(queue)["ShutDown"]
    with acting_as("A"):
        items.put(1)
    before = whose()
    items.shutdown(immediate=True)
    assert whose() == before
    items.join()
    with pytest.raises(shut_down):
        got(items)
    with pytest.raises(shut_down):
        items.put(2)


# --- whose an item is, where somebody goes around the queue ----------------------------------------------------------


@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_one_object_put_by_two_is_got_once_under_each(kind: type[Any]) -> None:
    items = otelctx.adopting(kind())
    for who in ("A", "B", None, "B"):
        with acting_as(who):
            items.put("tick")
    expected = [of(who) for who in ("A", "B", None, "B")]
    if kind is queue.LifoQueue:
        expected.reverse()
    assert [seen for _, seen in got_by_a_worker(items, 4)] == expected


@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_items_from_before_are_nobodys_and_are_not_lost(kind: type[Any]) -> None:
    items = kind()
    with acting_as("A"):
        items.put(1)
        items = otelctx.adopting(items)
        items.put(1)
    assert sorted(map(repr, got_by_a_worker(items, 2))) == sorted(map(repr, [(1, of(None)), (1, of("A"))]))


@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("again", ["the same object", "another"])
def test_after_the_container_was_cleared_no_item_gets_an_earlier_ones_key(again: str) -> None:
    items = otelctx.adopting(queue.Queue[str]())
    with acting_as("A"):
        items.put("tick")
        items.put("tick")
    items.queue.clear()
    item = "tick" if again == "the same object" else "tock"
    with acting_as("B"):
        items.put(item)
    items.put(item)
    assert got_by_a_worker(items, 2) == [(item, of("B")), (item, of(None))]


@pytest.mark.usefixtures("on")
def test_an_item_that_was_put_around_us_is_nobodys() -> None:
    items = otelctx.adopting(queue.Queue[str]())
    with acting_as("A"):
        items.put("A's")
        items.queue.append("smuggled")
        items.put("A's again")
    assert got_by_a_worker(items, 3) == [("A's", of("A")), ("smuggled", of(None)), ("A's again", of("A"))]


@pytest.mark.usefixtures("on")
def test_after_somebody_took_one_of_two_equal_items_around_us_the_other_is_nobodys_but_never_another_ones() -> None:
    items = otelctx.adopting(queue.Queue[str]())
    for who in ("A", "B"):
        with acting_as(who):
            items.put("tick")
    assert items.queue.popleft() == "tick"
    assert got_by_a_worker(items, 1) == [("tick", of(None))]


@pytest.mark.usefixtures("on")
def test_after_the_container_was_sorted_each_item_has_its_own_key() -> None:
    items = otelctx.adopting(queue.Queue[int]())
    for item, who in ((3, "A"), (1, "B"), (2, None)):
        with acting_as(who):
            items.put(item)
    ordered = sorted(items.queue)
    items.queue.clear()
    items.queue.extend(ordered)
    assert got_by_a_worker(items, 3) == [(1, of("B")), (2, of(None)), (3, of("A"))]


def test_an_item_that_was_cleared_is_garbage_at_the_next_put(install: Install) -> None:
    install(keys=KEYS)

    class Item:
        pass

    items = otelctx.adopting(queue.Queue[Any]())
    item = Item()
    alive = weakref.ref(item)
    items.put(item)
    items.queue.clear()
    del item
    items.put(1)
    assert alive() is None


@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("broken", ["_add", "_take", "recount"])
def test_a_fault_of_ours_loses_no_item_and_gives_nobody_a_key(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("for the test")

    items = otelctx.adopting(queue.Queue[str]())
    before = metrics.error_counts().get("queue", 0)
    with acting_as("A"):
        items.put("one")
        with monkeypatch.context() as patch:
            patch.setattr(Marks, broken, fail)
            items.queue.append("around")
            items.put("two")
            assert got(items) == "one"
    assert got_by_a_worker(items, 2) == [("around", of(None)), ("two", of(None))]
    with acting_as("B"):
        items.put("three")
    assert got_by_a_worker(items, 1) == [("three", of("B"))]
    assert metrics.error_counts()["queue"] > before
    faults.forget()


class Ranked(queue.PriorityQueue[Any]):
    """Keeps something else than the items that it is given, as many do."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self.number = 0

    def _put(self, item: Any) -> None:
        self.number += 1
        super()._put((-len(item), self.number, item))

    def _get(self) -> Any:
        return super()._get()[2]


class Unique(queue.Queue[Any]):
    """Takes an item once."""

    def _init(self, maxsize: int) -> None:
        self.queue: Any = {}

    def _put(self, item: Any) -> None:
        self.queue[item] = None

    def _get(self) -> Any:
        item = next(iter(self.queue))
        del self.queue[item]
        return item


class Batched(queue.Queue[Any]):
    """Puts many at once, under its own lock, and gets them one by one."""

    def put_many(self, items: list[Any]) -> None:
        with self.mutex:
            for item in items:
                self._put(item)
                self.unfinished_tasks += 1
            self.not_empty.notify(len(items))

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(("wrapped", item), block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)
        return item[1] if isinstance(item, tuple) else item


class Prefetching(queue.Queue[Any]):
    """Takes all that is there at once, and hands it out one by one."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self.fetched: deque[Any] = deque()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self.fetched:
            first = super().get(block, timeout)
            self.fetched = deque([first, *(super(Prefetching, self).get() for _ in range(self.qsize()))])
        return self.fetched.popleft()


class Patient(queue.Queue[Any]):
    """Waits as long as it likes, by calling itself; returns None for nothing; passes over what is crossed out."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if timeout != 0:
            try:
                return self.get(block, 0)
            except queue.Empty:
                return None
        while True:
            _, item = super().get(block, timeout)
            if item != "crossed out":
                return item


@pytest.mark.usefixtures("on")
def test_of_items_that_were_taken_at_once_none_is_got_under_another_ones_key() -> None:
    items = otelctx.adopting(Prefetching())
    for item, who in (("one", "A"), ("two", "B"), ("three", "B")):
        with acting_as(who):
            items.put(item)
    assert got_by_a_worker(items, 3) == [("one", of("A")), ("two", of(None)), ("three", of(None))]


@pytest.mark.usefixtures("on")
def test_a_get_that_takes_several_adopts_the_one_that_it_returns_once(spans: InMemorySpanExporter) -> None:
    items = otelctx.adopting(Patient())
    for item, who in (("crossed out", "A"), ("one", "B"), ("crossed out", "C"), ("two", "A")):
        with acting_as(who):
            items.put((0, item))
    before = metrics.hop_counts()
    assert got_by_a_worker(items, 2) == [("one", of("B")), ("two", of("A"))]
    after = metrics.hop_counts()
    assert sum(count - before.get(hop, 0) for hop, count in after.items() if hop[0] == "queue") == 2


@pytest.mark.usefixtures("on")
def test_what_was_not_in_the_queue_is_nobodys() -> None:
    items = otelctx.adopting(Patient())
    with acting_as("A"):
        items.put((0, "one"))
    assert got_by_a_worker(items, 2) == [("one", of("A")), (None, of(None))]


@pytest.mark.usefixtures("on")
def test_a_subclass_that_keeps_something_else_than_its_items_is_adopting_too() -> None:
    items = Ranked()
    items.put("before")
    otelctx.adopting(items)
    for item, who in (("a", "A"), ("bbbbbbbb", "B"), ("ccc", None)):
        with acting_as(who):
            items.put(item)
    seen = got_by_a_worker(items, 4)
    assert seen == [("bbbbbbbb", of("B")), ("before", of(None)), ("ccc", of(None)), ("a", of("A"))]


@pytest.mark.usefixtures("on")
def test_an_item_that_a_subclass_takes_once_is_the_last_ones_who_put_it() -> None:
    items = otelctx.adopting(Unique())
    for item, who in (("one", "A"), ("two", "A"), ("one", "B")):
        with acting_as(who):
            items.put(item)
    assert items.qsize() == 2
    assert got_by_a_worker(items, 2) == [("one", of("B")), ("two", of("A"))]


@pytest.mark.usefixtures("on")
def test_a_subclass_with_ways_of_its_own_is_adopting_and_keeps_them() -> None:
    items = otelctx.adopting(Batched())
    with acting_as("A"):
        items.put_many([1, 2])
    with acting_as("B"):
        items.put(3)
    assert list(items.queue) == [1, 2, ("wrapped", 3)]
    assert got_by_a_worker(items, 3) == [(1, of("A")), (2, of("A")), (3, of("B"))]


# --- its life --------------------------------------------------------------------------------------------------------


def test_a_copy_is_a_plain_queue_on_the_same_items(install: Install) -> None:
    install(keys=KEYS)
    items = otelctx.adopting(queue.Queue[int]())
    with acting_as("A"):
        items.put(1)
    copied = copy.copy(items)
    assert type(copied) is queue.Queue
    assert vars(copied).keys() == vars(items).keys() - {"_otelctx_marks"}
    with acting_as("B"):
        copied.put(2)
    assert got_by_a_worker(items, 2) == [(1, of("A")), (2, of(None))]


@pytest.mark.parametrize("kind", [*ALL_KINDS, asyncio.Queue, multiprocessing.Queue, multiprocessing.SimpleQueue])
def test_a_queue_made_by_the_class_of_an_adopting_one_is_a_plain_one_until_it_is_adopting(
    kind: Callable[[], Any], install: Install
) -> None:
    install(keys=KEYS)
    first = otelctx.adopting(kind())
    second = type(first)(**({"ctx": multiprocessing.get_context()} if "multiprocessing" in repr(kind) else {}))
    put, get = ("put_nowait", "get_nowait") if kind is asyncio.Queue else ("put", "get")

    def got() -> list[object]:
        with acting_as("A"):
            getattr(second, put)("item")
        return contextvars.Context().run(lambda: [getattr(second, get)(), KEY.get(ABSENT)])

    assert got() == ["item", ABSENT]
    second = otelctx.adopting(second)
    assert got() == ["item", "A"]
    for one in (first, second):
        if hasattr(one, "cancel_join_thread"):
            one.close()
            one.join_thread()


def test_a_class_is_not_told_of_a_subclass_that_nobody_has_written(install: Install) -> None:
    install(keys=KEYS)
    written: list[str] = []

    class Registered(queue.Queue[Any]):
        def __init_subclass__(cls, *, name: str) -> None:
            written.append(name)

    class Named(Registered, name="named"): ...

    items = otelctx.adopting(Named())
    with acting_as("A"):
        items.put("one")
    assert got_by_a_worker(items, 1) == [("one", of("A"))]
    assert written == ["named"]


def test_an_item_that_puts_something_as_it_goes_does_not_wait_for_its_own_queue(install: Install) -> None:
    install(keys=KEYS)
    items: Any = otelctx.adopting(queue.Queue())

    class Leaving:
        def __del__(self) -> None:
            items.put("gone")

    items.put(Leaving())
    items.queue.clear()  # its mark has it still
    put = threading.Thread(target=items.put, args=("one",), daemon=True)
    put.start()
    put.join(TIMEOUT)
    assert not put.is_alive()
    assert list(items.queue) == ["one", "gone"]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_queue_goes_with_its_last_reference(kind: type[Any], install: Install) -> None:
    install(keys=KEYS)
    gc.collect()
    gc.disable()
    try:
        items = otelctx.adopting(kind())
        items.put(1)
        alive = weakref.ref(items)
        del items
        assert alive() is None
    finally:
        gc.enable()


def test_a_queue_is_a_plain_one_while_otelctx_is_off_and_adopts_again_when_it_is_on(install: Install) -> None:
    items = otelctx.adopting(queue.Queue[str]())
    with acting_as("A"):
        items.put("off")
        install(keys=KEYS)
        items.put("on")
    assert got_by_a_worker(items, 2) == [("off", of(None)), ("on", of("A"))]
    with acting_as("A"):
        items.put("on")
        otelctx.uninstall()
        items.put("off")
    assert [(item, seen[0]) for item, seen in got_by_a_worker(items, 2)] == [("on", ABSENT), ("off", ABSENT)]
    with acting_as("B"):
        items.put("off")
        install(keys=KEYS)
        items.put("on")
    assert got_by_a_worker(items, 2) == [("off", of(None)), ("on", of("B"))]


@pytest.mark.parametrize("wrong", [[], object(), None, queue.Queue])
def test_what_is_no_queue_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="takes a queue"):
        otelctx.adopting(wrong)


def test_a_worker_of_a_pool_is_nobodys_after_a_task_that_got_an_item(install: Install) -> None:
    install(keys=KEYS)
    items = otelctx.adopting(queue.Queue[str]())
    with acting_as("A"):
        items.put("item")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: (items.get(), whose())[1]).result(TIMEOUT) == of("A")
        assert pool.submit(whose).result(TIMEOUT) == of(None)
        otelctx.uninstall()
        left = pool.submit(contextvars.copy_context).result(TIMEOUT)
    assert {var.name for var in left} <= {"otelctx.here", "otelctx.home"}


# --- a SimpleQueue, which is written in C ----------------------------------------------------------------------------


def test_what_stands_in_front_of_a_simple_queue_looks_like_it(install: Install) -> None:
    install(keys=KEYS)
    plain: queue.SimpleQueue[Any] = queue.SimpleQueue()
    items = otelctx.adopting(plain)
    assert isinstance(items, queue.SimpleQueue)
    assert items.__class__ is queue.SimpleQueue
    assert otelctx.adopting(items) is items
    assert repr(items).partition(" at ")[0] == repr(plain).partition(" at ")[0]
    for name in ("put", "get", "put_nowait", "get_nowait", "empty", "qsize"):
        assert inspect.signature(getattr(items, name)) == inspect.signature(getattr(plain, name)), name
        assert getattr(items, name).__doc__ == getattr(queue.SimpleQueue, name).__doc__
    for call in ("copy.copy(one)", "copy.deepcopy(one)", "pickle.dumps(one)", "one.put()", "one.get(1, 2, 3)"):
        errors = []
        for one in (plain, items):
            with pytest.raises(TypeError) as error:
                eval(call, {"one": one, "copy": copy, "pickle": pickle})
            errors.append(str(error.value))
        assert errors[0] == errors[1], call


@pytest.mark.usefixtures("on")
def test_a_simple_queue_and_what_stands_in_front_of_it_are_one_queue() -> None:
    plain: queue.SimpleQueue[Any] = queue.SimpleQueue()
    items = otelctx.adopting(plain)
    item = object()
    with acting_as("A"):
        items.put(item)
        plain.put("around")
    assert (items.qsize(), plain.qsize(), items.empty()) == (2, 2, False)
    assert plain.get() is item
    assert got_by_a_worker(items, 1) == [("around", of(None))]
    with pytest.raises(queue.Empty):
        items.get_nowait()


def test_whatever_line_of_a_put_or_a_get_a_signal_handler_puts_something_in_each_item_has_its_own_key(
    install: Install, request: pytest.FixtureRequest
) -> None:
    install(keys=KEYS)
    request.addfinalizer(partial(sys.settrace, sys.gettrace()))

    def interrupted_at(line: int) -> tuple[bool, list[tuple[str, object]]]:
        items = otelctx.adopting(queue.SimpleQueue[str]())
        left = line

        def trace(frame: Any, event: str, _: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename.endswith(("marks.py", "queues.py")) and event == "line":
                left -= 1
                if left == 0:  # as a signal handler, in the thread that is in the middle of it
                    sys.settrace(None)
                    with acting_as("handler"):
                        items.put("handler")
            return trace

        def put() -> None:
            with acting_as("main"):
                items.put("main")

        sys.settrace(trace)
        contextvars.copy_context().run(put)
        seen = [contextvars.copy_context().run(lambda: (items.get(), KEY.get(ABSENT)))]
        sys.settrace(None)
        while not items.empty():
            seen.append(contextvars.copy_context().run(lambda: (items.get(), KEY.get(ABSENT))))
        return left <= 0, seen

    for line in itertools.count(1):
        was_interrupted, seen = interrupted_at(line)
        assert [item for item, who in seen if item != who] == []
        assert len(seen) == 1 + was_interrupted
        if not was_interrupted:
            break
    assert line > 20


@pytest.mark.usefixtures("on")
def test_after_somebody_took_an_item_behind_it_no_item_gets_an_earlier_ones_key() -> None:
    plain: queue.SimpleQueue[Any] = queue.SimpleQueue()
    items = otelctx.adopting(plain)
    with acting_as("A"):
        items.put("tick")
    assert plain.get() == "tick"
    with acting_as("B"):
        items.put("tick")
    items.put("tock")
    seen = got_by_a_worker(items, 2)
    assert {who[0] for _, who in seen} <= {"B", ABSENT}
    with acting_as("B"):
        items.put("tick")
    assert got_by_a_worker(items, 1) == [("tick", of("B"))]


# --- declared queues -------------------------------------------------------------------------------------------------


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Import a module of the application, with this text."""
    names = (f"application_{number}" for number in itertools.count())
    monkeypatch.syspath_prepend(str(tmp_path))
    NAME.clear()
    NAME.append(next(names))

    def imported(text: str) -> Any:
        (tmp_path / f"{NAME[0]}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(NAME[0])

    yield imported
    sys.modules.pop(NAME[0], None)


NAME: list[str] = []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["Queue", "LifoQueue", "PriorityQueue", "SimpleQueue"])
def test_a_declared_queue_adopts_until_otelctx_is_uninstalled(
    kind: str, when: str, module: Callable[[str], Any], install: Install
) -> None:
    text = f"import queue\nitems = queue.{kind}()\nkept = items\n"
    if when == "before":
        application = module(text)
    install(keys=KEYS, queues={"adopt": [f"{NAME[0]}:items"]})
    if when == "after":
        application = module(text)
    with acting_as("A"):
        application.items.put(1)
    assert got_by_a_worker(application.items, 1) == [(1, of("A"))]
    with acting_as("A"):
        application.items.put(1)
    otelctx.uninstall()
    assert application.items is application.kept
    assert got_by_a_worker(application.items, 1) == [(1, of(None))]
    install(keys=KEYS)
    with acting_as("A"):
        application.items.put(1)
    assert got_by_a_worker(application.items, 1) == [(1, of(None))]
    install(keys=KEYS, queues={"adopt": [f"{NAME[0]}:items"]})
    with acting_as("A"):
        application.items.put(1)
    assert got_by_a_worker(application.items, 1) == [(1, of("A"))]


def test_a_declared_queue_may_be_an_attribute_of_an_object(module: Callable[[str], Any], install: Install) -> None:
    install(keys=KEYS, queues={"adopt": [f"{NAME[0]}:registry.items"]})
    application = module(
        "import queue\nclass Registry:\n    items = None\nregistry = Registry()\nregistry.items = queue.Queue()\n"
    )
    with acting_as("A"):
        application.registry.items.put(1)
    assert got_by_a_worker(application.registry.items, 1) == [(1, of("A"))]


@pytest.mark.parametrize("first", ["None", "queue.Queue()"])
def test_a_declared_queue_that_is_made_later_adopts_once_a_thread_is_started(
    first: str, module: Callable[[str], Any], install: Install
) -> None:
    install(keys=KEYS, queues={"adopt": [f"{NAME[0]}:items"]})
    application = module(f"import queue\nitems = {first}\n")
    application.items = queue.Queue()
    in_a_worker(lambda: True)
    with acting_as("A"):
        application.items.put(1)
    assert got_by_a_worker(application.items, 1) == [(1, of("A"))]


def test_a_thread_that_is_started_under_the_lock_of_a_declared_queue_does_not_wait_for_it(
    module: Callable[[str], Any], install: Install
) -> None:
    install(keys=KEYS, queues={"adopt": [f"{NAME[0]}:items"]})
    application = module("items = None\n")

    def start() -> None:
        application.items = queue.Queue()
        with application.items.mutex:
            threading.Thread(target=int).start()

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    starting.join(TIMEOUT)
    assert not starting.is_alive()


@pytest.mark.parametrize(
    ("text", "told"), [("other = 1", "is declared, and is not there"), ("items = []", "is declared, and is a list")]
)
def test_a_declared_queue_that_is_none_is_reported_once(
    text: str, told: str, module: Callable[[str], Any], install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    faults.forget()
    install(keys=KEYS, queues={"adopt": [f"{NAME[0]}:items"]})
    module(text)
    in_a_worker(lambda: True)
    assert [record.getMessage() for record in caplog.records if f"{NAME[0]}:items {told}" in record.getMessage()]
    assert len(caplog.records) == 1
    faults.forget()


# --- what is said of it ----------------------------------------------------------------------------------------------


def counted() -> dict[tuple[str, str], int]:
    return {key: number for key, number in metrics.hop_counts().items() if key[0] == "queue"}


def since(before: dict[tuple[str, str], int]) -> dict[str, int]:
    more = {outcome: number - before.get((kind, outcome), 0) for (kind, outcome), number in counted().items()}
    return {outcome: number for outcome, number in more.items() if number}


@pytest.mark.usefixtures("on")
def test_each_item_that_is_got_is_a_hop_of_its_kind() -> None:
    items = otelctx.adopting(queue.Queue[int]())
    for who in ("A", None, "B"):
        with acting_as(who):
            items.put(1)
    before = counted()
    got_by_a_worker(items, 3)
    assert since(before) == {"carried": 2, "empty": 1}


def test_a_recorded_item_has_a_span_of_its_time_in_the_queue_under_its_putters(
    install: Install, spans: InMemorySpanExporter
) -> None:
    install(keys=KEYS)
    items = otelctx.adopting(queue.Queue[int]())
    tracer = trace.get_tracer(__name__)
    with acting_as("A"), tracer.start_as_current_span("turn"):
        items.put(1)

        def work() -> bool:
            items.get()
            with tracer.start_as_current_span("work"):
                return True

        in_a_worker(work)
    by_name = {span.name: span for span in spans.get_finished_spans()}
    hop, turn, inside = by_name["queue Queue"], by_name["turn"], by_name["work"]
    assert hop.parent is not None
    assert inside.parent is not None
    assert hop.parent.span_id == inside.parent.span_id == turn.context.span_id
    attributes = dict(hop.attributes or {})
    assert attributes["otelctx.hop.kind"] == "queue"
    assert attributes["session.id"] == dict(inside.attributes or {})["session.id"] == "A"
    lasted = ((hop.end_time or 0) - (hop.start_time or 0)) / 1e9
    assert lasted >= attributes["otelctx.hop.wait"] > 0  # type: ignore[operator]


def test_in_observe_nothing_is_changed_and_what_is_lost_or_foreign_is_said(
    install: Install, alerts: list[Mismatch]
) -> None:
    install(mode="observe", keys=KEYS)
    items = otelctx.adopting(queue.Queue[int]())
    for who in ("A", "B", None):
        with acting_as(who):
            items.put(1)

    def work() -> list[object]:
        seen = [(items.get(), KEY.get(ABSENT))[1]]
        KEY.set("W")
        return [*seen, *((items.get(), KEY.get(ABSENT))[1] for _ in range(2))]

    assert in_a_worker(work) == [ABSENT, "W", "W"]
    assert [(one.reason, one.expected, one.observed, one.action, one.hop_kind) for one in alerts] == [
        ("lost", "A", None, "observed", "queue"),
        ("foreign", "B", "W", "observed", "queue"),
        ("leaked", None, "W", "observed", "queue"),
    ]


def answer() -> str:
    return "somebody"


def test_in_enforce_a_source_that_says_something_else_is_told_and_no_item_is_lost(
    install: Install, alerts: list[Mismatch]
) -> None:
    sources = [*KEYS["session"]["sources"], {"getter": f"{__name__}:answer"}]
    install(mode="enforce", keys={"session": {"sources": sources}})
    items = otelctx.adopting(queue.Queue[int]())
    with acting_as("A"):
        items.put(1)
    assert got_by_a_worker(items, 1) == [(1, of("A"))]
    items.task_done()
    items.join()
    told = [(one.reason, one.expected, one.observed, one.action) for one in alerts if one.hop_kind == "queue"]
    assert told == [("foreign", "A", "somebody", "observed")]


@pytest.mark.parametrize(("policy", "seen"), [("shed", None), ("mint", "queue:")])
def test_an_operators_policy_counts(policy: str, seen: str | None, install: Install, alerts: list[Mismatch]) -> None:
    install(keys={"session": {**KEYS["session"], "policy": {"queue": policy}}})
    items = otelctx.adopting(queue.Queue[int]())
    with acting_as("A"):
        items.put(1)
        items.put(2)
    keys = [who[1] for _, who in got_by_a_worker(items, 2)]
    if seen is None:
        assert keys == [None, None]
    else:
        assert len(set(keys)) == 2
        assert all(str(key).startswith(seen) for key in keys)
    assert alerts == []


@pytest.mark.usefixtures("on")
def test_the_claim_goes_with_the_item() -> None:
    items = otelctx.adopting(queue.Queue[int]())
    with otelctx.grant_claim(otelctx.Claim("task")):
        items.put(1)
        with otelctx.shed_claim():
            items.put(2)
    items.put(3)
    assert in_a_worker(lambda: [(items.get(), otelctx.claim_state())[1] for _ in range(3)]) == ["held", "shed", "none"]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_shed_claim_is_not_regained_by_an_item_of_nobodys(
    kind: type[Any], install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUES_TASK", "task")
    install(claim={"env": {"task_id": "QUEUES_TASK"}})
    items = kind()
    items.put(1)
    items.put(2)
    items = otelctx.adopting(items)
    assert in_a_worker(lambda: (items.get(), otelctx.claim_state())[1]) == "held"
    with otelctx.shed_claim():
        assert contextvars.copy_context().run(lambda: (items.get(), otelctx.claim_state())[1]) == "shed"


@pytest.mark.usefixtures("on")
def test_the_span_of_an_earlier_item_is_not_current_for_the_next() -> None:
    items = otelctx.adopting(queue.Queue[int]())
    with trace.get_tracer(__name__).start_as_current_span("A's") as span:
        items.put(1)
    contextvars.Context().run(items.put, 2)
    first, then = in_a_worker(lambda: [(items.get(), trace.get_current_span())[1] for _ in range(2)])
    assert first.get_span_context() == span.get_span_context()
    assert not then.get_span_context().is_valid
