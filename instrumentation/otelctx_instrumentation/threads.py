"""Threads: ``Thread.start``, and ``Timer.start``.

What is patched and why there: ``start`` is where a thread departs, in the context of whoever starts it. It puts an
object in the instance's ``run`` that the new thread calls: that covers subclasses that override ``run`` without
``super().run()``, which a patch of ``Thread.run`` does not, and works on 3.11 to 3.15 alike (3.14 calls
``self._context.run(self.run)``). ``Timer.start`` is patched too, since OpenTelemetry's threading instrumentor gives
``Timer`` a ``start`` of its own that goes around ``Thread``'s.

A ``Timer`` that its own callback sets again, for the same function with the same arguments, is a scheduler: the first
run inherits from whoever set it, each later one is a run of a cron job.

*Service threads* (pool workers, exporters, scheduler loops: see `services`) serve everybody, so they start in a context
without any key or span, whoever starts them.

What escapes: a subclass whose ``start`` never calls ``super().start()``, and ``_thread.start_new_thread``. An explicit
``Thread(context=…)`` (3.14) is its author's, and is left as it is.
"""

from __future__ import annotations

import os
import sys
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from otelctx import adoption, arrival, cron, faults, metrics, mode, place, rearmed, runtime, workers
from otelctx.departure import Departure
from otelctx.policy import NAMES, THREAD
from otelctx.policy import SERVICE as SERVICE_KIND
from otelctx.snapshot import Snapshot, arrive, depart
from otelctx_instrumentation import owners, services
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread

_cleared = metrics.hop_counter(NAMES[SERVICE_KIND], "cleared")
_nothing = metrics.hop_counter(NAMES[THREAD], "empty")

_ABSENT: Final = object()

_FUTURES: Final = os.path.join("concurrent", "futures", "thread.py")


class _Runner:
    """What a starting thread has for its ``run``, until it runs.

    An object, and emptied at entry: a closure would name itself through the thread, in a cycle. It takes an optional
    positional argument, since Sentry's replacement of ``run`` passes one.
    """

    __slots__ = ("carried", "earlier", "thread")

    def __init__(self, thread: Thread, carried: Snapshot | Departure) -> None:
        self.thread: Thread | None = thread
        self.carried: Snapshot | Departure | None = carried
        self.earlier = vars(thread).get("run", _ABSENT)

    def remove(self) -> None:
        """Give the instance back the ``run`` that it had, where ours is still there."""
        thread = self.thread
        if thread is None or vars(thread).get("run") is not self:
            return
        if self.earlier is _ABSENT:
            del thread.__dict__["run"]
        else:
            thread.__dict__["run"] = self.earlier

    def __call__(self, *_: Any) -> None:
        thread, carried = self.thread, self.carried
        if thread is None or carried is None:  # called again, by somebody who kept it
            import threading

            again = threading.current_thread()
            type(again).run(again)
            return
        self.remove()
        # Not what the instance has now: that may be somebody's wrapper of this very object.
        run: Any = type(thread).run.__get__(thread) if self.earlier is _ABSENT else self.earlier
        self.thread = self.carried = self.earlier = None
        try:
            if isinstance(carried, Snapshot):
                arrive(carried, THREAD, _run, (thread, run), {})
            else:
                arrival.in_full(carried, _run, (thread, run), {})
        finally:
            del thread, carried, run


def _is_timer(thread: object) -> bool:
    return isinstance(thread, sys.modules["threading"].Timer)


def _is_rearmed(timer: Any) -> bool:
    """Whether the current context is a run of what `timer` would run."""
    return _is_timer(timer) and rearmed.is_again(timer.function, timer.args, timer.kwargs)


def _run(thread: Thread, run: Callable[[], None]) -> None:
    # OpenTelemetry's threading instrumentor attaches what it noted when the thread was started, inside of this.
    if "_otel_context" in thread.__dict__ and mode.current() != "observe":
        thread.__dict__["_otel_context"] = runtime.variable.get()
    try:
        if _is_timer(thread):
            timer: Any = thread
            with rearmed.running(timer.function, timer.args, timer.kwargs):
                run()
        else:
            run()
    finally:
        timer = None
        del thread, run


def _called(thread: Any) -> object:
    """What the thread is for, by which its span and its trail are named."""
    if _is_timer(thread):
        return thread.function
    target = getattr(thread, "_target", None)
    return thread.run if target is None else target


_OWN_FRAMES: Final = 2
"""Between `_is_started_by_submit` and the replacement of ``start``: to look at a frame is dear."""


def _is_started_by_submit() -> bool:
    """Whether an executor starts the thread while work is submitted to it: a worker, whatever its target is."""
    frame = sys._getframe(_OWN_FRAMES).f_back
    for _ in range(5):
        if frame is None:
            return False
        code = frame.f_code
        if code.co_name == "submit" and code.co_filename.endswith(_FUTURES):
            return True
        frame = frame.f_back
    return False


def _start(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def start(self: Thread) -> None:
        if not active.on:
            original(self)
            return
        runner: _Runner | None = None
        neutral: Context | None = None
        recorded = False
        try:
            neutral, runner, recorded = _prepare(self)
        except Exception as exc:
            faults.internal_error("thread", exc)
        attributes = vars(self)
        unset = attributes.get("_context", self) is None
        try:
            if neutral is not None:
                neutral.run(original, self)
            else:
                original(self)
        except BaseException:
            if recorded:
                owners.not_spawned(self)
            if runner is not None:
                runner.remove()
            if unset:  # 3.14 fills it in before it starts the thread; the next start is one as good as this one
                attributes["_context"] = None
            raise
        finally:
            del runner, neutral

    return start


def _context_of(thread: Thread) -> Context | None:
    """The context that the author gave the thread (3.14); an attribute of that name may also be a subclass's own."""
    given = getattr(thread, "_context", None)
    return given if isinstance(given, Context) else None


def _prepare(thread: Thread) -> tuple[Context | None, _Runner | None, bool]:
    """How to start `thread`: in a neutral context, or with a runner, or neither; and whether its owner is recorded."""
    adoption.look()
    already = vars(thread).get("run")
    if isinstance(already, _Runner) or _context_of(thread) is not None:
        return None, None, False
    started = getattr(thread, "_started", None)
    if started is None or started.is_set():  # the original says what is wrong
        return None, None, False
    if services.is_service(thread) or _is_started_by_submit():
        _cleared()
        if mode.current() == "observe":
            return None, None, False
        if "_otel_context" in thread.__dict__:
            thread.__dict__["_otel_context"] = runtime.empty
        return workers.neutral(), None, False
    if _is_rearmed(thread):
        runner = _Runner(thread, cron.departure("timer", place.name_of(thread.function), thread.function))  # type: ignore[attr-defined]
        thread.__dict__["run"] = runner
        return None, runner, False
    captured = depart()
    recorded = owners.spawned(thread, captured)
    carried: Snapshot | Departure = captured
    if captured.detailed:
        carried = Departure(captured, THREAD, called=_called(thread))
    elif not captured.size and not _is_timer(thread):
        _nothing()
        return None, None, recorded
    runner = _Runner(thread, carried)
    thread.__dict__["run"] = runner
    return None, runner, recorded


def _start_timer(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    timer = sys.modules["threading"].Timer
    if "start" in vars(timer):
        return _start(original, active)

    def start(self: Thread) -> None:
        # What `Thread` has now: others patch it after us, for timers too.
        super(timer, self).start()

    return start


PATCHES = (
    # Timer first: its original is then `Thread`'s, and a timer is not prepared twice.
    Patch("threading", "Timer.start", _start_timer),
    Patch("threading", "Thread.start", _start),
)
