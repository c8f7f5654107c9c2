"""Adopting queues of `multiprocessing`: what departs goes through the pipe with the item, and the item is the item."""

from __future__ import annotations

import contextvars
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.queues
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import otelctx

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Install

TIMEOUT = 40.0

KINDS = ["Queue", "JoinableQueue", "SimpleQueue"]


class Item:
    """Something that is equal to its copies."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return type(other) is Item and other.name == self.name

    __hash__ = None  # type: ignore[assignment]


def get_three(items: Any, seen: Any) -> None:
    """In the child: what is got, and whose it is there."""
    answer = []
    for _ in range(3):
        item = items.get()
        answer.append((item, otelctx.get("session")))
        if hasattr(items, "task_done"):
            items.task_done()
    seen.put((answer, otelctx.is_installed()))


def sent(items: Any, context: Any) -> tuple[list[tuple[Any, object]], bool]:
    """What a child gets of three items, by A, B and nobody, and whether otelctx is on there."""
    seen = context.Queue()
    child = context.Process(target=get_three, args=(items, seen))
    contextvars.Context().run(child.start)
    try:
        with otelctx.bind(session="A"):
            items.put(Item("A's"))
        with otelctx.bind(session="B"):
            items.put(Item("B's"))
        items.put(None)
        answer: tuple[list[tuple[Any, object]], bool] = seen.get(timeout=TIMEOUT)
        child.join(TIMEOUT)
    finally:
        child.kill()
    if hasattr(items, "join"):
        items.join()
    return answer


def stop_forkserver() -> None:
    """Stop the server from which children are forked, as CPython's own tests do; the next child starts another."""
    from multiprocessing import forkserver

    forkserver._forkserver._stop()  # type: ignore[attr-defined]


METHODS = [
    *((kind, "fork") for kind in KINDS),
    ("Queue", "spawn"),
    ("SimpleQueue", "spawn"),
    ("JoinableQueue", "forkserver"),
]


@pytest.fixture
def own_server() -> Iterator[None]:
    """The server of "forkserver" has the environment in which it was started: it is this test's alone."""
    server: Any = multiprocessing.forkserver._forkserver
    server._stop()
    yield
    server._stop()


@pytest.mark.usefixtures("own_server")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(("kind", "method"), METHODS)
def test_a_child_gets_each_item_under_its_putters_key(
    kind: str, method: str, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    monkeypatch.setenv("OTELCTX_ENABLED", "true")
    stop_forkserver()  # another test's, with another environment
    context: Any = multiprocessing.get_context(method)
    try:
        answer, is_on = sent(otelctx.adopting(getattr(context, kind)()), context)
    finally:
        stop_forkserver()
    assert is_on
    assert answer == [(Item("A's"), "A"), (Item("B's"), "B"), (None, None)]


def test_a_child_in_which_otelctx_is_off_gets_the_items_themselves(install: Install) -> None:
    install()
    context: Any = multiprocessing.get_context("spawn")
    answer, is_on = sent(otelctx.adopting(context.Queue()), context)
    assert not is_on
    assert answer == [(Item("A's"), None), (Item("B's"), None), (None, None)]


def got(items: Any) -> tuple[object, object]:
    return contextvars.copy_context().run(lambda: (items.get(), otelctx.get("session")))


@pytest.mark.parametrize("kind", KINDS)
def test_in_one_process_it_is_the_same_object_and_looks_and_raises_as_before(kind: str, install: Install) -> None:
    install()
    plain: Any = getattr(multiprocessing.get_context("spawn"), kind)()
    items: Any = getattr(multiprocessing.get_context("spawn"), kind)()
    assert otelctx.adopting(items) is items
    assert otelctx.adopting(items) is items
    assert items.__class__ is type(plain)
    assert repr(items).partition(" at ")[0] == repr(plain).partition(" at ")[0]
    for call in ("pickle.dumps(one)", "one.put()", "one.put(1, 2, 3, 4)", "one.get(1, 2, 3)"):
        errors = []
        for one in (plain, items):
            with pytest.raises((TypeError, RuntimeError)) as error:
                eval(call, {"one": one, "pickle": pickle})
            errors.append((type(error.value), str(error.value)))
        assert errors[0] == errors[1], call
    with otelctx.bind(session="A"):
        items.put(1)
    assert got(items) == (1, "A")
    items.put(2)
    assert got(items) == (2, None)


def test_an_item_that_does_not_pickle_is_told_as_the_item_and_the_others_arrive(install: Install) -> None:
    told: list[tuple[str, object]] = []

    base: Any = multiprocessing.queues.Queue  # takes no type arguments on 3.11

    class Telling(base):  # type: ignore[misc]
        @staticmethod
        def _on_queue_feeder_error(exc: Exception, item: object) -> None:
            told.append((str(exc), item))

    install()
    lock = __import__("threading").Lock()
    plain, items = (Telling(ctx=multiprocessing.get_context()) for _ in range(2))
    otelctx.adopting(items)
    for one in (plain, items):
        with otelctx.bind(session="A"):
            one.put(lock)
            one.put("item")
        assert got(one)[0] == "item"
    assert told[0] == told[1]
    assert told[1][1] is lock


def test_a_queue_whose_feeder_runs_already_adopts_too(install: Install) -> None:
    install()
    items: Any = multiprocessing.get_context().Queue()
    items.put("before")
    otelctx.adopting(items)
    with otelctx.bind(session="A"):
        items.put("after")
    assert got(items) == ("before", None)
    assert got(items) == ("after", "A")


def test_a_subclass_that_would_meet_what_is_sent_is_refused(install: Install) -> None:
    class Own(multiprocessing.queues.SimpleQueue[Any]):
        def put(self, obj: Any) -> None:
            super().put(obj)

    install()
    with pytest.raises(TypeError, match="takes a queue"):
        otelctx.adopting(Own(ctx=multiprocessing.get_context()))

    class Other(multiprocessing.queues.Queue):  # type: ignore[type-arg]  # takes none on 3.11
        def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
            super().put((obj.upper(), obj), block, timeout)

    items = Other(ctx=multiprocessing.get_context())
    items.put("one")  # its feeder runs, and has a buffer of its own
    with pytest.raises(TypeError, match="takes a queue"):
        otelctx.adopting(items)
    assert items.get() == ("ONE", "one")
    items.close()
    items.join_thread()
