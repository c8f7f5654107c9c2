"""Threads, timers and service threads: whose work a new thread does, in the cases that people reported."""

from __future__ import annotations

import contextvars
import gc
import json
import multiprocessing.dummy
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import otelctx
from otelctx import metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otelctx import Mismatch
    from tests.conftest import Install

KEY: ContextVar[Any] = ContextVar("KEY")
KEYS = {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}]}}

TIMEOUT = 20.0

needs_3_14 = pytest.mark.skipif(sys.version_info < (3, 14), reason="needs Python 3.14")


@pytest.fixture(params=["carried", "recorded", "enforced"])
def on(request: pytest.FixtureRequest, install: Install) -> Iterator[None]:
    """Otelctx on, for each way that work can arrive: the hot path, a hop with a span, and enforce."""
    install(mode="enforce" if request.param == "enforced" else "repair", keys=KEYS)
    if request.param == "recorded":
        with trace.get_tracer(__name__).start_as_current_span("turn"):
            yield
    else:
        yield


@contextmanager
def acting_as(who: object) -> Iterator[None]:
    """A turn of `who`: bound by otelctx and set in the application's own variable; None is nobody's code."""
    if who is None:
        yield
        return
    token = KEY.set(who)
    try:
        with otelctx.bind(session=str(who)):
            yield
    finally:
        KEY.reset(token)


def whose(*_: object) -> object:
    """Whose work the calling code is; a set where its sources do not agree."""
    answers = {otelctx.get("session"), KEY.get(None), baggage.get_baggage("otelctx.session")}
    return answers.pop() if len(answers) == 1 else answers


class Asking:
    """Notes whose work it is called in."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def __call__(self, *_: object) -> None:
        self.answers.append(whose())


def finish(thread: threading.Thread) -> None:
    thread.start()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


# --- 6: subclasses, and what else has a `run` of its own --------------------------------------------------------------


class OwnRun(threading.Thread):
    """Overrides ``run`` and never calls ``super().run()``."""

    def __init__(self, ask: Callable[[], None]) -> None:
        super().__init__()
        self.ask = ask

    def run(self) -> None:
        self.ask()


class OwnStart(OwnRun):
    """Overrides ``start`` too, and does something first."""

    def start(self) -> None:
        self.prepared = True
        super().start()


class OwnTimer(threading.Timer):
    """A timer that overrides ``run``, as repeating timers do."""

    def run(self) -> None:
        self.function()


def own_run_attribute(ask: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread()
    thread.run = ask  # type: ignore[method-assign]
    return thread


THREADS: dict[str, Callable[[Callable[..., None]], threading.Thread]] = {
    "Thread": lambda ask: threading.Thread(target=ask),
    "Thread of a partial": lambda ask: threading.Thread(target=partial(ask, 1)),
    "Thread with arguments": lambda ask: threading.Thread(target=ask, args=(1,), daemon=True),
    "a subclass that overrides run": OwnRun,
    "a subclass that overrides start": OwnStart,
    "an instance with a run of its own": own_run_attribute,
    "Timer": lambda ask: threading.Timer(0, ask),
    "a Timer that overrides run": lambda ask: OwnTimer(0, ask),
    "multiprocessing.dummy.Process": lambda ask: multiprocessing.dummy.DummyProcess(target=ask),
}


@pytest.mark.parametrize("kind", THREADS)
@pytest.mark.usefixtures("on")
def test_a_thread_of_any_kind_does_the_work_of_whoever_started_it(kind: str) -> None:
    ask = Asking()
    for who in ("A", None, "B"):
        thread = THREADS[kind](ask)
        with acting_as(who):
            thread.start()
        thread.join(TIMEOUT)
        assert whose() is None
    assert ask.answers == ["A", None, "B"]


@pytest.mark.parametrize("kind", THREADS)
@pytest.mark.usefixtures("on")
def test_a_thread_that_one_made_and_another_started_is_the_starters(kind: str) -> None:
    ask = Asking()
    with acting_as("maker"):
        thread = THREADS[kind](ask)
    with acting_as("starter"):
        finish(thread)
    assert ask.answers == ["starter"]


@pytest.mark.parametrize("kind", THREADS)
@pytest.mark.usefixtures("on")
def test_a_run_without_a_start_runs_where_it_is_called(kind: str) -> None:
    ask = Asking()
    with acting_as("A"):
        THREADS[kind](ask).run()
    assert ask.answers == ["A"]


@pytest.mark.parametrize("kind", THREADS)
@pytest.mark.usefixtures("on")
def test_a_started_thread_has_the_attributes_that_it_would_have_without_otelctx(kind: str) -> None:
    inside: list[dict[str, object]] = []

    def note(*_: object) -> None:
        inside.append(dict(vars(thread)))

    thread = THREADS[kind](note)
    before = vars(thread).get("run")
    with acting_as("A"):
        finish(thread)
    assert inside[0].get("run") is before
    assert vars(thread).get("run") is before


@pytest.mark.usefixtures("on")
def test_a_thread_can_only_be_started_once_and_says_so_as_ever() -> None:
    ask = Asking()
    thread = threading.Thread(target=ask)
    with acting_as("A"):
        finish(thread)
        with pytest.raises(RuntimeError, match="threads can only be started once"):
            thread.start()
    unmade = threading.Thread.__new__(threading.Thread)
    with pytest.raises(RuntimeError, match=r"thread\.__init__\(\) not called"):
        unmade.start()
    assert ask.answers == ["A"]
    assert "run" not in vars(thread)


@pytest.mark.usefixtures("on")
def test_what_a_thread_raises_reaches_the_excepthook_with_that_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    caught: list[tuple[object, object, object]] = []

    def hook(arguments: threading.ExceptHookArgs) -> None:
        caught.append((arguments.exc_type, str(arguments.exc_value), arguments.thread))

    def fail() -> None:
        raise ValueError("as planned")

    monkeypatch.setattr(threading, "excepthook", hook)
    thread = threading.Thread(target=fail)
    with acting_as("A"):
        finish(thread)
    assert caught == [(ValueError, "as planned", thread)]


@pytest.mark.usefixtures("on")
def test_a_thread_started_in_a_thread_is_that_threads_work() -> None:
    ask = Asking()

    def outer() -> None:
        finish(threading.Thread(target=ask))
        with otelctx.bind(session="A.sub"):
            token = KEY.set("A.sub")
            finish(threading.Thread(target=ask))
            KEY.reset(token)
        ask()

    with acting_as("A"):
        finish(threading.Thread(target=outer))
    assert ask.answers == ["A", "A.sub", "A"]


@pytest.mark.usefixtures("on")
def test_the_starter_can_move_on_before_the_thread_runs() -> None:
    release, ask = threading.Event(), Asking()

    def late() -> None:
        release.wait(TIMEOUT)
        ask()

    with acting_as("A"):
        thread = threading.Thread(target=late)
        thread.start()
    with acting_as("B"):
        release.set()
        thread.join(TIMEOUT)
        assert whose() == "B"
    assert ask.answers == ["A"]


def test_a_thread_is_one_hop_also_if_it_is_a_timer(install: Install) -> None:
    install(keys=KEYS)

    def hops() -> int:
        return sum(count for (kind, _), count in metrics.hop_counts().items() if kind == "thread")

    for kind in THREADS:
        before = hops()
        with acting_as("A"):
            finish(THREADS[kind](lambda *_: None))
        assert hops() - before == 1, kind


def test_a_thread_is_one_span_also_if_it_is_a_timer(install: Install, spans: Any) -> None:
    install(keys=KEYS)
    for kind in THREADS:
        with trace.get_tracer(__name__).start_as_current_span("turn"), acting_as("A"):
            finish(THREADS[kind](lambda *_: None))
        hops = [span for span in spans.get_finished_spans() if span.name != "turn"]
        assert [span.attributes["otelctx.hop.kind"] for span in hops] == ["thread"], kind
        spans.clear()


# --- 7: a context that the author gives -------------------------------------------------------------------------------


@needs_3_14
@pytest.mark.usefixtures("on")
def test_a_thread_with_a_context_of_its_own_has_that_context() -> None:
    ask = Asking()
    with acting_as("B"):
        brought = contextvars.copy_context()
    with acting_as("A"):
        finish(threading.Thread(target=ask, context=contextvars.Context()))  # type: ignore[call-arg,unused-ignore]
        finish(threading.Thread(target=ask, context=brought))  # type: ignore[call-arg,unused-ignore]
        finish(threading.Thread(target=ask, context=None))  # type: ignore[call-arg,unused-ignore]
    assert ask.answers == [None, "B", "A"]


@needs_3_14
@pytest.mark.usefixtures("on")
def test_what_a_thread_sets_in_the_context_that_it_was_given_is_there_afterwards() -> None:
    context = contextvars.Context()
    with acting_as("A"):
        make: Any = threading.Thread
        finish(make(target=KEY.set, args=("kept",), context=context))
    assert context[KEY] == "kept"


class OwnContext(OwnRun):
    """Has an attribute that 3.14 gave a meaning to."""

    def __init__(self, ask: Callable[[], None]) -> None:
        super().__init__(ask)
        self._context = "messaging context"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="`_context` is the thread's own from Python 3.14 on")
@pytest.mark.usefixtures("on")
def test_a_thread_with_an_attribute_that_is_called_context_by_chance_is_the_starters() -> None:
    ask = Asking()
    with acting_as("A"):
        finish(OwnContext(ask))
    assert ask.answers == ["A"]


# --- 8: a start that fails --------------------------------------------------------------------------------------------


@contextmanager
def no_more_threads() -> Iterator[None]:
    """The operating system refuses to start a thread."""

    def refuse(*_: object, **__: object) -> object:
        raise RuntimeError("can't start new thread")

    name = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, name, refuse)
        yield


@pytest.mark.parametrize("kind", THREADS)
@pytest.mark.usefixtures("on")
def test_a_start_that_fails_leaves_nothing_behind_and_the_next_one_carries(kind: str) -> None:
    ask = Asking()
    thread = THREADS[kind](ask)
    before = vars(thread).get("run")
    with acting_as("A"), no_more_threads(), pytest.raises(RuntimeError, match="can't start new thread"):
        thread.start()
    assert vars(thread).get("run") is before
    with acting_as("B"):
        if kind == "multiprocessing.dummy.Process":
            thread._start_called = False  # type: ignore[attr-defined]
        finish(thread)
    assert ask.answers == ["B"]


class Value(str):
    """A key's value that can be watched."""


def is_garbage(ref: weakref.ref[Any]) -> bool:
    otelctx.capture()  # this context departs once more, as what it is now
    gc.collect()
    return ref() is None


@pytest.mark.usefixtures("on")
def test_a_thread_whose_start_failed_keeps_nothing_of_the_departure() -> None:
    thread = threading.Thread(target=whose)
    value = Value("A")
    ref = weakref.ref(value)
    with acting_as(value), no_more_threads(), pytest.raises(RuntimeError):
        thread.start()
    del value
    assert is_garbage(ref)


@pytest.mark.usefixtures("on")
def test_a_task_that_was_queued_while_no_worker_could_be_started_is_still_its_callers() -> None:
    with ThreadPoolExecutor(1) as pool:
        seen: Future[object] = Future()
        with acting_as("A"), no_more_threads(), pytest.raises(RuntimeError, match="can't start new thread"):
            pool.submit(lambda: seen.set_result(whose()))
        with acting_as("B"):
            assert pool.submit(whose).result(TIMEOUT) == "B"
        assert seen.result(TIMEOUT) == "A"


# --- 10: what a finished thread keeps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", THREADS)
@pytest.mark.usefixtures("on")
def test_a_finished_thread_keeps_nothing_of_its_departure(kind: str) -> None:
    ask = Asking()
    thread = THREADS[kind](ask)
    value = Value("A")
    ref = weakref.ref(value)
    with acting_as(value):
        finish(thread)
    del value
    ask.answers.clear()
    assert is_garbage(ref)


@pytest.mark.parametrize("kind", THREADS)
@pytest.mark.usefixtures("on")
def test_a_finished_thread_is_freed_without_the_garbage_collector(kind: str) -> None:
    gc.collect()
    gc.disable()
    try:
        thread = THREADS[kind](Asking())
        ref = weakref.ref(thread)
        with acting_as("A"):
            finish(thread)
        del thread
        assert ref() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("on")
def test_the_target_and_arguments_of_a_finished_thread_are_freed_while_the_thread_is_kept() -> None:
    target = Asking()
    ref = weakref.ref(target)
    thread = threading.Thread(target=target, args=(object(),))
    with acting_as("A"):
        finish(thread)
    target.answers.clear()
    del target
    assert ref() is None


# --- 14: timers -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on")
def test_a_timer_set_from_ordinary_code_runs_once_as_whoever_set_it(alerts: list[Mismatch]) -> None:
    ask = Asking()
    timers = []
    for who in ("A", "B", None):
        with acting_as(who):
            timers.append(threading.Timer(0, ask))
            timers[-1].start()
            timers[-1].join(TIMEOUT)
    assert ask.answers == ["A", "B", None]
    assert alerts == []


class Rearming:
    """A timer loop: each run sets the next timer, with the same function and arguments."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.seen: list[tuple[str | None, object, str | None]] = []
        self.finished = threading.Event()

    def __call__(self, *arguments: object) -> None:
        entry = baggage.get_baggage("otelctx.session")
        self.seen.append((otelctx.get("session"), KEY.get(None), entry if isinstance(entry, str) else None))
        if len(self.seen) == self.runs:
            self.finished.set()
        else:
            threading.Timer(0, self, arguments).start()


@pytest.mark.parametrize("arguments", [(), ("same", 1)])
@pytest.mark.usefixtures("on")
def test_a_timer_that_rearms_itself_is_the_setters_once_and_then_its_own(
    arguments: tuple[object, ...], alerts: list[Mismatch]
) -> None:
    loop = Rearming(4)
    with acting_as("A"):
        threading.Timer(0, loop, arguments).start()
    assert loop.finished.wait(TIMEOUT)
    (first, variable, entry), *later = loop.seen
    assert (first, variable, entry) == ("A", "A", "A")
    minted = [session for session, _, _ in later]
    assert all(session is not None and session.startswith("cron:timer:") for session in minted)
    assert len(set(minted)) == 3
    assert [variable for _, variable, _ in later] == [""] * 3  # cleared, so that no fallback applies
    assert [entry for _, _, entry in later] == minted
    assert alerts == []


@pytest.mark.usefixtures("on")
def test_a_timer_that_sets_a_timer_for_something_else_hands_its_key_on() -> None:
    ask, done = Asking(), threading.Event()

    def outer() -> None:
        timer = threading.Timer(0, ask)
        timer.start()
        timer.join(TIMEOUT)
        done.set()

    with acting_as("A"):
        threading.Timer(0, outer).start()
    assert done.wait(TIMEOUT)
    assert ask.answers == ["A"]


@pytest.mark.usefixtures("on")
def test_a_cancelled_timer_does_not_run_and_keeps_nothing() -> None:
    ask = Asking()
    value = Value("A")
    ref = weakref.ref(value)
    timer = threading.Timer(TIMEOUT * 3, ask)
    with acting_as(value):
        timer.start()
    del value
    timer.cancel()
    timer.join(TIMEOUT)
    assert ask.answers == []
    assert is_garbage(ref)


# --- 20, its threads: what serves everybody is nobody's ---------------------------------------------------------------


class NotingExporter(SpanExporter):
    """Notes whose work the exporter's thread is."""

    def __init__(self) -> None:
        self.seen: Future[tuple[object, object, str]] = Future()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if not self.seen.done():
            self.seen.set_result((whose(), trace.get_current_span(), threading.current_thread().name))
        return SpanExportResult.SUCCESS


@pytest.mark.usefixtures("on")
def test_an_exporters_thread_that_a_started_is_nobodys() -> None:
    exporter = NotingExporter()
    with trace.get_tracer(__name__).start_as_current_span("turn"), acting_as("A"):
        processor = BatchSpanProcessor(exporter, schedule_delay_millis=10)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(processor)
        provider.get_tracer(__name__).start_span("work").end()
        who, span, thread = exporter.seen.result(TIMEOUT)
    provider.shutdown()
    assert (who, span) == (None, trace.INVALID_SPAN)
    assert thread != threading.current_thread().name


@pytest.mark.parametrize("named", ["by its name", "by its target", "by its run"])
@pytest.mark.parametrize("mode", ["repair", "enforce"])
def test_a_thread_that_the_configuration_calls_a_service_is_nobodys(install: Install, named: str, mode: str) -> None:
    service = {"by its name": "mem-sync*", "by its target": f"{__name__}:serve", "by its run": f"{__name__}:OwnRun.run"}
    install(mode=mode, keys=KEYS, threads={"service": [service[named]]})
    ask = Asking()
    with acting_as("A"):
        if named == "by its name":
            finish(threading.Thread(target=ask, name="mem-sync-1"))
        elif named == "by its target":
            finish(threading.Thread(target=serve, args=(ask,)))
        else:
            finish(OwnRun(ask))
        finish(threading.Thread(target=ask, name="another"))
    assert ask.answers == [None, "A"]


def serve(ask: Callable[[], None]) -> None:
    ask()


FORKING = """
import json, os, sys, threading
from contextvars import ContextVar
import otelctx
from opentelemetry import baggage
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

KEY = ContextVar("KEY")
otelctx.install({}, keys={"session": {"sources": [{"contextvar": "__main__:KEY"}]}})

def whose():
    return [KEY.get(None), otelctx.get("session"), baggage.get_baggage("otelctx.session")]

class Exporter(SpanExporter):
    def export(self, spans):
        self.seen, self.pid = whose(), os.getpid()
        noted.set()
        return SpanExportResult.SUCCESS

noted, exporter = threading.Event(), Exporter()
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=10))
KEY.set("A")
reader, writer = os.pipe()
with otelctx.bind(session="A"):
    child = os.fork()
    if child == 0:
        provider.get_tracer("child").start_span("work").end()
        noted.wait(10)
        thread_sees = []
        thread = threading.Thread(target=lambda: thread_sees.append(whose()))
        thread.start()
        thread.join()
        found = {"child": whose(), "thread": thread_sees[0], "exporter": exporter.seen}
        found["own"] = exporter.pid == os.getpid()
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
os.close(writer)
with os.fdopen(reader) as answers:
    print(answers.read())
os.waitpid(child, 0)
provider.shutdown()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_forked_in_a_session_keeps_the_key_and_its_exporters_thread_does_not() -> None:
    # Warnings of forking beside the exporter's thread are what this program is about.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", textwrap.dedent(FORKING)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "child": ["A", "A", "A"],
        "thread": ["A", "A", "A"],
        "exporter": [None, None, None],
        "own": True,
    }
