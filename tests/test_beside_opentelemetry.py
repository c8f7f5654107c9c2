"""OpenTelemetry's own threading instrumentor on as well, installed before otelctx and after it.

By itself it carries the OpenTelemetry Context and no ContextVar, and leaves the context of whoever created a worker in
that worker. Beside otelctx, what a worker sees is what otelctx owes for a declared key, in both kinds of context.
"""

from __future__ import annotations

import _thread
import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from multiprocessing.pool import ThreadPool
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.instrumentation.threading import ThreadingInstrumentor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otelctx
from otelctx import Mismatch, metrics

KEY: ContextVar[str] = ContextVar("key")
app = trace.get_tracer("app")

Order: TypeAlias = Literal["before", "after"]
Told: TypeAlias = tuple[str, str | None, str | None, str | None, str]


class Seen(NamedTuple):
    """What a piece of work sees: the application's variable, otelctx's entry and another's in baggage, and the span."""

    variable: str | None
    entry: object
    baggage: object
    span: int


NOTHING = Seen(None, None, None, 0)


def look() -> Seen:
    span = trace.get_current_span().get_span_context().span_id
    return Seen(KEY.get(None), baggage.get_baggage("otelctx.session"), baggage.get_baggage("who"), span)


class Install(Protocol):
    def __call__(self, **settings: Any) -> None: ...


class Both:
    """otelctx and OpenTelemetry's threading instrumentor, both on."""

    def __init__(self, order: Order, install: Install) -> None:
        self.order = order
        self.install = install

    def on(self, mode: str = "repair", *, spans: str = "never", **settings: Any) -> None:
        keys = {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}], **settings.pop("key", {})}}
        if self.order == "before":
            ThreadingInstrumentor().instrument()
        self.install(mode=mode, spans=spans, keys=keys, **settings)
        if self.order == "after":
            ThreadingInstrumentor().instrument()


@pytest.fixture(params=["before", "after"])
def both(request: pytest.FixtureRequest, install: Install) -> Iterator[Both]:
    originals = attributes()
    yield Both(request.param, install)
    instrumentor = ThreadingInstrumentor()
    if request.param == "before":
        otelctx.uninstall()
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()
    otelctx.uninstall()
    put_back(originals)


Attributes: TypeAlias = dict[tuple[type, str], object]

PATCHED = [
    (threading.Thread, "start"),
    (threading.Thread, "run"),
    (threading.Timer, "start"),
    (threading.Timer, "run"),
    (ThreadPoolExecutor, "submit"),
    (ThreadPoolExecutor, "map"),
    (Future, "add_done_callback"),
    (ThreadPool, "apply_async"),
    (ThreadPool, "imap"),
]


def attributes() -> Attributes:
    """What each attribute is that either of the two replaces."""
    return {(owner, name): getattr(owner, name) for owner, name in PATCHED}


def put_back(originals: Attributes) -> None:
    """Leave nothing to the next test, whatever this one was about; a class that inherited an attribute does again."""
    for (owner, name), original in originals.items():
        if name in vars(owner):
            delattr(owner, name)
        if getattr(owner, name, None) is not original:
            setattr(owner, name, original)


def is_as_it_was(owner: type, name: str, *allowed: Attributes) -> bool:
    return any(_inner(getattr(owner, name)) == _inner(each[owner, name]) for each in allowed)


def _inner(attribute: Any) -> object:
    """A wrapper that is looked up is a new object each time; what it wraps is not."""
    wrapper = getattr(attribute, "_self_wrapper", None)
    return attribute if wrapper is None else (wrapper, _inner(attribute.__wrapped__))


@contextmanager
def turn(key: str) -> Iterator[Seen]:
    """A turn of session `key`: its variable, a span, and somebody's baggage. Gives what work of it should see."""
    token = KEY.set(key)
    otel = otel_context.attach(baggage.set_baggage("who", key))
    try:
        with app.start_as_current_span("turn") as span:
            yield Seen(key, key, key, span.get_span_context().span_id)
    finally:
        otel_context.detach(otel)
        KEY.reset(token)


def in_thread(fn: Callable[[], None]) -> None:
    thread = threading.Thread(target=fn)
    thread.start()
    thread.join()


def told(alerts: list[Mismatch]) -> list[Told]:
    return [(alert.reason, alert.expected, alert.observed, alert.source, alert.action) for alert in alerts]


# --- threads and timers ----------------------------------------------------------------------------------------------


class Overriding(threading.Thread):
    """Its `run` never calls `super().run()`."""

    seen: Seen

    def run(self) -> None:
        self.seen = look()


class OverridingTimer(threading.Timer):
    seen: Seen

    def run(self) -> None:
        self.seen = look()


def test_a_thread_sees_its_starters_key_span_and_baggage(both: Both, alerts: list[Mismatch]) -> None:
    both.on()
    seen = []
    with turn("A"):
        in_thread(lambda: None)
    with turn("B") as expected:
        in_thread(lambda: seen.append(look()))
    in_thread(lambda: seen.append(look()))
    assert seen == [expected, NOTHING]
    assert told(alerts) == []


def test_a_timer_sees_its_starters_key_span_and_baggage(both: Both, alerts: list[Mismatch]) -> None:
    both.on()
    seen = []
    with turn("B") as expected:
        timer = threading.Timer(0.001, lambda: seen.append(look()))
        timer.start()
    timer.join()
    assert seen == [expected]
    assert told(alerts) == []


@pytest.mark.parametrize("make", [Overriding, lambda: OverridingTimer(0.001, look)], ids=["Thread", "Timer"])
def test_a_subclass_that_overrides_run_sees_its_starters_key_span_and_baggage(
    both: Both, alerts: list[Mismatch], make: Callable[[], Overriding]
) -> None:
    both.on()
    with turn("B") as expected:
        thread = make()
        thread.start()
        thread.join()
    assert thread.seen == expected
    assert told(alerts) == []


# --- executors -------------------------------------------------------------------------------------------------------


def test_a_warm_pool_sees_each_submitters_key_span_and_baggage(both: Both, alerts: list[Mismatch]) -> None:
    both.on()
    with ThreadPoolExecutor(1) as pool:
        for key in ("A", "B", "A"):
            with turn(key) as expected:
                assert pool.submit(look).result() == expected
                assert list(pool.map(lambda _: look(), range(2))) == [expected, expected]
            assert pool.submit(look).result() == NOTHING
    assert told(alerts) == []


def test_run_in_executor_sees_each_callers_key_span_and_baggage(both: Both, alerts: list[Mismatch]) -> None:
    both.on()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for key in ("A", "B"):
            with turn(key) as expected:
                assert await loop.run_in_executor(None, look) == expected
            assert await loop.run_in_executor(None, look) == NOTHING

    asyncio.run(main())
    assert told(alerts) == []


def test_an_initializer_sees_no_key_no_span_and_no_baggage(both: Both, alerts: list[Mismatch]) -> None:
    both.on()
    seen = []
    with turn("A"), ThreadPoolExecutor(1, initializer=lambda: seen.append(look())) as pool:
        pool.submit(look).result()
    with turn("A"), ThreadPool(1, initializer=lambda: seen.append(look())) as other:
        other.apply(look)
    assert seen == [NOTHING, NOTHING]
    assert told(alerts) == []


def test_a_wrong_call_gives_the_standard_librarys_own_error(install: Install) -> None:
    both = Both("before", install)
    originals = attributes()
    try:
        with ThreadPoolExecutor(1) as pool:
            with pytest.raises(TypeError) as plain:
                pool.submit(fn=look)  # type: ignore[call-arg]
            both.on()
            with pytest.raises(TypeError) as raised:
                pool.submit(fn=look)  # type: ignore[call-arg]
        assert str(raised.value) == str(plain.value)
    finally:
        otelctx.uninstall()
        ThreadingInstrumentor().uninstrument()
        put_back(originals)


def test_keywords_of_any_name_reach_the_function(both: Both) -> None:
    both.on()
    with turn("A"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda **given: given, fn=3, self=4).result() == {"fn": 3, "self": 4}


# --- callbacks, pools, queues ----------------------------------------------------------------------------------------


def test_a_done_callback_in_a_warm_worker_sees_its_adders_key_span_and_baggage(
    both: Both, alerts: list[Mismatch]
) -> None:
    both.on()
    seen: list[Seen] = []
    called = threading.Event()

    def note(_: object) -> None:
        seen.append(look())
        called.set()

    hold = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with turn("A"):
            pool.submit(look).result()
            future = pool.submit(hold.wait, 10)
        with turn("B") as expected:
            future.add_done_callback(note)
        hold.set()
        assert called.wait(10)
        with turn("C") as after_it_finished:
            future.add_done_callback(note)
    assert seen == [expected, after_it_finished._replace(entry=None)]  # the second is no hop: it runs on the spot
    assert told(alerts) == []


@pytest.mark.parametrize("call", ["apply", "map", "starmap", "imap", "imap_unordered", "apply_async"])
def test_a_multiprocessing_thread_pool_sees_each_callers_key_span_and_baggage(
    both: Both, alerts: list[Mismatch], call: str
) -> None:
    both.on()
    calls: dict[str, Callable[[ThreadPool], list[Seen]]] = {
        "apply": lambda pool: [pool.apply(look)],
        "map": lambda pool: pool.map(lambda _: look(), range(1)),
        "starmap": lambda pool: pool.starmap(look, [()]),
        "imap": lambda pool: list(pool.imap(lambda _: look(), range(1))),
        "imap_unordered": lambda pool: list(pool.imap_unordered(lambda _: look(), range(1))),
        "apply_async": lambda pool: [pool.apply_async(look).get(10)],
    }
    with turn("A"):
        pool = ThreadPool(1)
    with pool:
        with turn("B") as expected:
            assert calls[call](pool) == [expected]
        assert calls[call](pool) == [NOTHING]
    assert told(alerts) == []


def test_a_hand_written_worker_keeps_what_it_was_started_with(both: Both, alerts: list[Mismatch]) -> None:
    both.on()
    work: queue.Queue[Callable[[], object] | None] = queue.Queue()
    seen: queue.Queue[object] = queue.Queue()

    def serve() -> None:
        while (item := work.get()) is not None:
            seen.put(item())

    with turn("A") as started_in:
        worker = threading.Thread(target=serve, daemon=True)
        worker.start()
    with turn("B"):
        work.put(look)
        assert seen.get(timeout=10) == started_in
    work.put(None)
    worker.join()
    assert told(alerts) == []


# --- hops that keep the context by themselves ------------------------------------------------------------------------


def test_asyncios_own_hops_keep_key_span_and_baggage(both: Both, alerts: list[Mismatch]) -> None:
    both.on()

    async def coroutine() -> Seen:
        return look()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with turn("B") as expected, otelctx.bind(session="B"):
            assert await asyncio.to_thread(look) == expected
            assert await asyncio.create_task(coroutine()) == expected
            called: asyncio.Future[Seen] = loop.create_future()
            loop.call_soon(lambda: called.set_result(look()))
            assert await called == expected
            handed = asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(coroutine(), loop).result(10))
            assert await handed == expected

    asyncio.run(main())
    assert told(alerts) == []


def test_a_thread_that_calls_a_loop_hands_on_key_span_and_baggage(both: Both, alerts: list[Mismatch]) -> None:
    both.on()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        called: asyncio.Future[Seen] = loop.create_future()
        with turn("B") as expected:
            thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(lambda: called.set_result(look())))
            thread.start()
        assert await called == expected
        thread.join()

    asyncio.run(main())
    assert told(alerts) == []


def test_a_thread_below_threading_starts_with_nothing(both: Both) -> None:
    both.on()
    seen: queue.Queue[Seen] = queue.Queue()
    with turn("B"):
        _thread.start_new_thread(lambda: seen.put(look()), ())
        assert seen.get(timeout=10) == NOTHING


# --- arrivals that are cleared, shed or minted -----------------------------------------------------------------------


@pytest.mark.parametrize("timer", [False, True], ids=["thread", "timer"])
def test_a_service_thread_has_neither_the_departed_key_nor_its_span_nor_its_baggage(
    both: Both, alerts: list[Mismatch], timer: bool
) -> None:
    both.on(threads={"service": ["scheduler*"]})
    seen = []

    def serve() -> None:
        seen.append(look())

    with turn("A"):
        thread = threading.Timer(0.001, serve) if timer else threading.Thread(target=serve)
        thread.name = "scheduler-1"
        thread.start()
        thread.join()
    assert seen == [NOTHING]
    assert told(alerts) == []


def by_submit(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def by_timer(work: Callable[[], None]) -> None:
    timer = threading.Timer(0.001, work)
    timer.start()
    timer.join()


each_hop = pytest.mark.parametrize("hop", [by_submit, in_thread, by_timer])
Hop: TypeAlias = Callable[[Callable[[], None]], None]


@each_hop
def test_a_shed_key_is_in_no_baggage_that_arrives(both: Both, alerts: list[Mismatch], hop: Hop) -> None:
    both.on(key={"policy": {"executor": "shed", "thread": "shed"}})
    seen: list[Seen] = []
    with turn("A"):
        hop(lambda: seen.append(look()))
    assert [(one.variable or None, one.entry) for one in seen] == [(None, None)]
    assert told(alerts) == []


# --- nothing twice ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
@each_hop
def test_a_hop_has_one_span_and_is_counted_once(
    both: Both, alerts: list[Mismatch], spans: InMemorySpanExporter, mode: str, hop: Hop
) -> None:
    both.on(mode, spans="auto")
    before = dict(metrics.hop_counts())
    with turn("A"):
        hop(lambda: app.start_span("tool").end())
    counted = {label: n - before.get(label, 0) for label, n in metrics.hop_counts().items() if label[0] != "service"}
    assert sum(counted.values()) == 1
    (departed,) = [span for span in spans.get_finished_spans() if span.name == "turn"]
    (hop_span,) = [span for span in spans.get_finished_spans() if span.name.split(" ")[0] in ("executor", "thread")]
    (tool,) = [span for span in spans.get_finished_spans() if span.name == "tool"]
    assert hop_span.parent is not None
    assert tool.parent is not None
    assert hop_span.parent.span_id == departed.context.span_id
    # In observe the instrumentor carries the span, and otelctx leaves its own span out of the application's sight.
    assert tool.parent.span_id == (departed if mode == "observe" else hop_span).context.span_id
    assert told(alerts) == ([("lost", "A", None, None, "observed")] if mode == "observe" else [])


@pytest.mark.parametrize("mode", ["observe", "repair"])
def test_one_executor_hop_of_a_loop_is_one_hop(both: Both, mode: str) -> None:
    both.on(mode)
    before = dict(metrics.hop_counts())

    async def main() -> None:
        with turn("A"):
            await asyncio.get_running_loop().run_in_executor(None, look)

    asyncio.run(main())
    hops = {label: n - before.get(label, 0) for label, n in metrics.hop_counts().items() if label[0] != "service"}
    # Closing the loop starts a thread that shuts the executor down; the turn is over by then.
    assert sum(n for (kind, _), n in hops.items() if kind != "thread") == 1


def test_what_a_worker_that_the_instrumentor_filled_shows_is_told_of_once(both: Both, alerts: list[Mismatch]) -> None:
    """Observe: the worker's variable does not travel, the departed span does: spans under it start without a key."""
    both.on("observe")

    def work() -> None:
        for _ in range(2):
            with app.start_as_current_span("tool"):
                app.start_span("part").end()

    with turn("A"), ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert told(alerts) == [("lost", "A", None, None, "observed")]


def test_observe_leaves_the_instrumentors_work_alone(both: Both) -> None:
    both.on("observe")
    seen: list[Seen] = []
    with ThreadPoolExecutor(1) as pool, turn("A") as expected:
        seen.append(pool.submit(look).result())
        in_thread(lambda: seen.append(look()))
        by_timer(lambda: seen.append(look()))
    assert [one._replace(entry=None) for one in seen] == [Seen(None, None, "A", expected.span)] * 3


# --- undoing, in any order -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_off", ["otelctx", "instrumentor"])
def test_uninstalling_in_any_order_leaves_the_originals(both: Both, first_off: str) -> None:
    instrumentor = ThreadingInstrumentor()
    untouched = attributes()
    instrumentor.instrument()
    instrumentor.uninstrument()
    originals = attributes()  # as the instrumentor by itself leaves them: `Timer` with a `start` of its own
    put_back(untouched)
    both.on()
    with turn("A"):
        in_thread(lambda: None)
    offs = [otelctx.uninstall, ThreadingInstrumentor().uninstrument]
    for off in offs if first_off == "otelctx" else reversed(offs):
        off()
    left = {
        f"{owner.__name__}.{name}" for (owner, name) in originals if not is_as_it_was(owner, name, originals, untouched)
    }
    assert left == set()


@pytest.mark.parametrize("first_off", ["otelctx", "instrumentor"])
def test_after_uninstalling_in_any_order_nothing_is_carried(both: Both, first_off: str) -> None:
    both.on()
    offs = [otelctx.uninstall, ThreadingInstrumentor().uninstrument]
    for off in offs if first_off == "otelctx" else reversed(offs):
        off()
    before = dict(metrics.hop_counts())
    seen: list[Seen] = []
    with turn("A"):
        for hop in (by_submit, in_thread, by_timer):
            hop(lambda: seen.append(look()))
    assert seen == [NOTHING] * 3
    assert metrics.hop_counts() == before


def test_the_instrumentor_that_stays_works_as_without_otelctx(both: Both) -> None:
    both.on()
    otelctx.uninstall()
    seen: list[Seen] = []
    with turn("A") as expected:
        for hop in (by_submit, in_thread, by_timer):
            hop(lambda: seen.append(look()))
    assert seen == [Seen(None, None, "A", expected.span)] * 3


# --- a context that is brought ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
def test_a_context_that_is_brought_is_its_authors_under_their_closure_as_well(
    both: Both, alerts: list[Mismatch], mode: str
) -> None:
    both.on(mode)
    with ThreadPoolExecutor(1) as pool, turn("A"):
        assert pool.submit(copy_context().run, KEY.get).result(10) == "A"
    with turn("A"):
        assert asyncio.run(asyncio.to_thread(KEY.get)) == "A"
    assert told(alerts) == []
