"""What a signal handler raises comes out of the call that it interrupted, whichever of otelctx's lines that was.

Time limits are raised so, in the main thread: those of task queues and of test runners, and `signal.alarm` by hand.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

import otelctx
import otelctx_instrumentation
from otelctx import alerts, ambient, metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from tests.conftest import Install

KEY: ContextVar[str] = ContextVar("KEY")
KEYS: Final = {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}, {"env": "SIGNALS_SESSION"}]}}
TIMEOUT: Final = 20.0
OURS: Final = tuple(os.path.join(*package.__path__, "") for package in (otelctx, otelctx_instrumentation))


class TimeLimitError(Exception):
    """What a task queue ends a task with."""


def function(signum: int, frame: FrameType | None) -> None:
    raise TimeLimitError


def function_of_anything(*args: object, **more: object) -> None:
    raise TimeLimitError


class Handler:
    def __call__(self, signum: int, frame: FrameType | None) -> None:
        raise TimeLimitError

    def once(self, signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # no more this handler's by the time that it raises
        raise TimeLimitError


class Interruption:
    """A signal at the `line`-th line of otelctx's that the thread comes to."""

    def __init__(self, line: int) -> None:
        self.left = line
        self.at: str | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.at = f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}"
                del frame  # else this function is one, too, that was given the frame that it interrupted
                signal.raise_signal(signal.SIGALRM)
        return self


def interrupted(work: Callable[[], object], line: int) -> tuple[str | None, BaseException | None]:
    """Do `work`, and interrupt it at a line; where that was (None: the work has fewer lines), and what came out."""
    interruption, before = Interruption(line), sys.gettrace()
    raised = None
    sys.settrace(interruption)
    try:
        work()
    except TimeLimitError as exc:
        raised = exc
    finally:
        sys.settrace(before)
    return interruption.at, raised


@pytest.fixture
def handle() -> Iterator[Callable[[Any], None]]:
    before = signal.getsignal(signal.SIGALRM)

    def handle(handler: Any) -> None:
        signal.signal(signal.SIGALRM, handler)

    yield handle
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result(TIMEOUT)
        yield pool


def submit(pool: ThreadPoolExecutor) -> None:
    pool.submit(KEY.get, None).result(TIMEOUT)


def map_(pool: ThreadPoolExecutor) -> None:
    assert [*pool.map(abs, [1, -1])] == [1, 1]


def thread(_: object) -> None:
    started = threading.Thread(target=int)
    started.start()
    started.join(TIMEOUT)


def environment(_: object) -> None:
    os.environ["SIGNALS_SESSION"] = "B"
    assert os.environ["SIGNALS_SESSION"] == "B"
    assert "SIGNALS_SESSION" in [*os.environ]
    del os.environ["SIGNALS_SESSION"]


def adopting(_: object) -> None:
    items: queue.Queue[str] = otelctx.adopting(queue.Queue())
    items.put("it")
    assert items.get(timeout=TIMEOUT) == "it"


def done_callback(_: object) -> None:
    future: Future[None] = Future()
    future.add_done_callback(repr)


def here(_: object) -> None:
    captured = otelctx.capture()
    captured.run(KEY.get, None)
    with captured.attached():
        pass


HOPS: Final = (submit, map_, thread, environment, adopting, done_callback, here)


@pytest.mark.parametrize("mode", ["repair", "enforce", "observe"])
@pytest.mark.parametrize("hop", HOPS)
def test_what_a_signal_handler_raises_in_a_line_of_otelctx_reaches_the_application(
    hop: Callable[[object], None],
    mode: str,
    install: Install,
    handle: Callable[[Any], None],
    pool: ThreadPoolExecutor,
) -> None:
    install(keys=KEYS, mode=mode, spans="never" if mode == "observe" else "always", scoped_env={"mode": "scope"})
    handle(function)
    token, faults = KEY.set("A"), metrics.error_counts()
    lost, line = [], 0
    try:
        while True:
            line += 1
            at, raised = interrupted(partial(hop, pool), line)
            if at is None:
                break
            if raised is None:
                lost.append(at)
        assert line > 3, "otelctx had nothing to do with it"
        assert lost == []
        assert metrics.error_counts() == faults
        assert (KEY.get(), otelctx.get("session"), alerts.delivering(), ambient.is_asking()) == ("A", "A", False, False)
        hop(pool)
        assert pool.submit(KEY.get, None).result(TIMEOUT) == (None if mode == "observe" else "A")
    finally:
        KEY.reset(token)


@pytest.mark.parametrize(
    "handler",
    [function, function_of_anything, Handler(), Handler().once, partial(lambda _, *given: function(*given), 1)],
)
def test_any_callable_may_be_the_handler(
    handler: Any, install: Install, handle: Callable[[Any], None], pool: ThreadPoolExecutor
) -> None:
    install(keys=KEYS)
    for line in range(1, 20):
        handle(handler)
        at, raised = interrupted(partial(submit, pool), line)
        assert at is None or raised is not None, at
