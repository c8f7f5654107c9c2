"""Celery 5.2 to 5.7: tasks arrive as their message departed, beat's ticks are cron runs.

Where a message departs: the signal ``before_task_publish``, which every way to send a task goes through (``delay``,
``send_task``, canvas, callbacks, retries). Our header is always written, so that the one of an earlier message, which
Celery copies into a retry or a chain, never counts. A *retry* keeps its message's key, whatever the task has bound
since. So does what a message brings along (callbacks, the next link of a chain, a chord's body): Celery sends that when
the task is done, and it is known by what sends it. Beat's ticks are known by ``Scheduler.apply_async``, which is
patched: each has a key of its own.

Where a task arrives: `build_tracer` is patched, whose result runs a task with everything around it (the signals
``task_prerun`` and ``task_postrun``, the callbacks, the tasks that it sends when it is done). The signals alone are no
place: a ContextVar that a task sets cannot be unset in the worker's own context again, and prefork's and solo's tasks
run in that. Eager tasks (``apply``, ``task_always_eager``) are the caller's own work, and have a tracer of their own,
which is left alone.

A worker starts neutral (``WorkController.start``), whoever starts it: prefork's children inherit its context. What is
done for a task in the worker's main process, since its own process is gone or it was revoked, is done as the task.

OpenTelemetry's own instrumentation attaches what it finds in the message, which has no baggage of ours; that is brought
in step again.

What escapes: a worker that was running before otelctx was installed; messages that are put on a queue by other means
than Celery's.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

from otelctx import arrival, cron, faults, flow, mode, policy, runtime, tasks, workers
from otelctx import snapshot as snapshots
from otelctx.mismatch import MismatchError
from otelctx_instrumentation.patching import Active, Hook, Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from otelctx.runs import Arrival
    from otelctx.snapshot import Snapshot

RUNNER: Final = "celery"


class _Run(NamedTuple):
    """The task that the current context runs."""

    id: str
    retries: int
    arrived: Snapshot


_RUN: Final[ContextVar[_Run | None]] = ContextVar("otelctx.celery.run", default=None)
_TICK: Final[ContextVar[str | None]] = ContextVar("otelctx.celery.tick", default=None)
"""The entry of beat's schedule that is being sent."""


def _publishing(headers: Any = None, body: Any = None, **_: Any) -> None:
    """Receive ``before_task_publish``: write our header."""
    try:
        if not isinstance(headers, dict):
            return
        headers.pop(tasks.NAME, None)
        said = headers if "id" in headers else body  # protocol 1 says it in the body
        carrier = _carrier(said if isinstance(said, dict) else {})
        if carrier:
            headers[tasks.NAME] = carrier
    except Exception as exc:
        faults.internal_error(RUNNER, exc)


def _carrier(said: Mapping[str, Any]) -> str:
    message = str(said.get("id"))
    run, tick = _RUN.get(), _TICK.get()
    if run is not None and message == run.id and said.get("retries") == run.retries + 1:
        return run.arrived.run(tasks.depart, policy.RETRY, message=message)
    if tick is not None:
        return tasks.depart(policy.CRON, message=message, runner=RUNNER, job=tick)
    kind = policy.DEFERRED if said.get("eta") else policy.TASK
    if run is not None and _is_brought_along():
        return run.arrived.run(tasks.depart, kind, message=message)
    return tasks.depart(kind, message=message)


_SENDERS: Final = ("celery.app.amqp", "celery.canvas", "celery.backends.")
"""What Celery calls when a task is done, to send what its message has brought along."""


def _is_brought_along() -> bool:
    """Whether the current context's task is done, and what is being sent is what its message has brought along."""
    caller: FrameType | None = None
    below: FrameType | None = sys._getframe(1)
    found: FrameType | None = None
    while below is not None and below.f_code is not _within.__code__:
        # Of several, the outermost: a task may run another one within itself.
        if below.f_code.co_name == "trace_task" and below.f_globals.get("__name__") == "celery.app.trace":
            found = caller
        # Functions of the same module between it and what they call are its own.
        if below.f_globals.get("__name__") != "celery.app.trace":
            caller = below
        below = below.f_back
    return found is not None and str(found.f_globals.get("__name__")).startswith(_SENDERS)


def _ticking(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def apply_async(self: Any, entry: Any, *args: Any, **kwargs: Any) -> Any:
        if not active.on:
            return original(self, entry, *args, **kwargs)
        name = str(getattr(entry, "name", ""))
        if self.app.conf.task_always_eager and mode.current() != "observe":
            return arrival.apart(cron.departure(RUNNER, name), original, (self, entry, *args), kwargs)
        token = _TICK.set(name)
        try:
            return original(self, entry, *args, **kwargs)
        finally:
            _TICK.reset(token)

    return apply_async


def _arrival(task: Any, message: object, request: Mapping[str, Any], *, is_told: bool = False) -> Arrival:
    # Under protocol 1, custom headers are one of the request's entries.
    headers = request.get("headers")
    carrier = request.get(tasks.NAME)
    if carrier is None and isinstance(headers, dict):
        carrier = headers.get(tasks.NAME)
    return tasks.arrival(
        carrier,
        runner=RUNNER,
        job=task.name,
        message=str(message),
        attempt=_retries(request) + 1,
        is_cron=carrier is None and request.get("celery_beat_task") is True,  # sent by a beat without otelctx
        called=task.run,
        is_told=is_told,
    )


def _without_ours(request: Any) -> Any:
    """`request` without our header: an application may send on what it finds in ``task.request.headers``."""
    if not request:
        return request
    headers = request.get("headers")
    is_among = isinstance(headers, dict) and tasks.NAME in headers
    if not is_among and tasks.NAME not in request:
        return request
    plain = {name: value for name, value in request.items() if name != tasks.NAME}
    if is_among:
        plain["headers"] = {name: value for name, value in headers.items() if name != tasks.NAME}
    return plain


def _retries(request: Mapping[str, Any]) -> int:
    retries = request.get("retries")
    return retries if isinstance(retries, int) else 0


def _within(run: _Run, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `fn` as what `run` does."""
    token = _RUN.set(run)
    try:
        return fn(*args, **kwargs)
    finally:
        _RUN.reset(token)


class _Trace:
    """What runs a task for Celery, in place of the function that `build_tracer` has made."""

    __slots__ = ("__wrapped__", "_active", "_task")

    def __init__(self, trace: Callable[..., Any], task: Any, active: Active) -> None:
        self.__wrapped__ = trace
        self._task = task
        self._active = active

    def __call__(self, uuid: Any, args: Any, kwargs: Any, request: Any = None) -> Any:
        try:
            run = _RUN.get()
            if not self._active.on or (request and request.get("is_eager")) or (run is not None and run.id == uuid):
                arriving = None
            else:
                arriving = _arrival(self._task, uuid, request or {})
                request = _without_ours(request)
        except Exception as exc:
            faults.internal_error(RUNNER, exc)
            arriving = None
        if arriving is None:
            return self.__wrapped__(uuid, args, kwargs, request)
        try:
            return arriving.run(self._arrived, arriving, uuid, args, kwargs, request)
        except MismatchError as exc:  # of the arrival: what a task raises, Celery keeps to itself
            run = _Run(str(uuid), _retries(request or {}), arriving.departure.snapshot)
            return run.arrived.run(_within, run, self._refused, exc, args, kwargs, request)

    def _arrived(self, arriving: Arrival, uuid: Any, args: Any, kwargs: Any, request: Any) -> Any:
        run = _Run(str(uuid), _retries(request or {}), arriving.departs())
        return _within(run, self.__wrapped__, uuid, args, kwargs, request)

    def _refused(self, exc: MismatchError, args: Any, kwargs: Any, request: Any) -> Any:
        """Let the task fail as one does that has raised `exc`: Celery loses what is raised around a task."""
        from celery.app import trace  # type: ignore[import-not-found]  # only where Celery calls this
        from celery.app.task import Context  # type: ignore[import-not-found]

        said, info = Context(request or {}, args=args, called_directly=False, kwargs=kwargs), None
        self._task.request_stack.push(said)
        try:
            info = trace.TraceInfo(trace.FAILURE, exc)
            return trace.trace_ok_t(info.handle_error_state(self._task, said), info, 0.0, None)
        finally:
            self._task.request_stack.pop()
            del info


_traced: Final[WeakSet[Any]] = WeakSet()
"""The tasks that have had a trace of ours."""


def _trace_of(trace: Callable[..., Any], task: Any, active: Active) -> _Trace:
    _traced.add(task)
    return _Trace(trace, task, active)


def _untrace(module: Any) -> None:
    """Give tasks that are running in a worker back the trace that they would have had."""
    while _traced:
        task = _traced.pop()
        while isinstance(trace := getattr(task, "__trace__", None), _Trace):
            task.__trace__ = trace.__wrapped__


def _building(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def build_tracer(name: str, task: Any, *args: Any, **kwargs: Any) -> Any:
        trace = original(name, task, *args, **kwargs)
        return _trace_of(trace, task, active) if active.on else trace

    return build_tracer


def _updating(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def update_strategies(self: Any) -> Any:
        result = original(self)
        if active.on:
            # The module may have got hold of `build_tracer` before it was patched.
            for task in self.app.tasks.values():
                trace = getattr(task, "__trace__", None)
                if trace is not None and not isinstance(trace, _Trace):
                    task.__trace__ = _trace_of(trace, task, active)
        return result

    return update_strategies


def _handling(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """The replacement of what the main process does for a task whose own process is gone, or that was revoked."""

    def handle(self: Any, *args: Any, **kwargs: Any) -> Any:
        run, current = None, _RUN.get()
        if active.on and mode.current() != "observe" and (current is None or current.id != str(self.id)):
            try:
                is_told = not original.__name__.startswith("_announce")
                arriving = _arrival(self.task, self.id, self.request_dict, is_told=is_told)
                run = _Run(str(self.id), _retries(self.request_dict), arriving.departure.snapshot)
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        if run is None:
            return original(self, *args, **kwargs)
        return run.arrived.run(_within, run, original, self, *args, **kwargs)

    return handle


def _calling_back(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """The replacement of what calls error callbacks, or sends them: the failed task's message has brought them."""

    def _call_task_errbacks(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        run = _RUN.get()
        is_eager = getattr(request, "is_eager", False)  # the work of the task that runs it
        if run is None or is_eager or not active.on or mode.current() == "observe":
            return original(self, request, *args, **kwargs)
        return run.arrived.run(original, self, request, *args, **kwargs)

    return _call_task_errbacks


def _starting(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def start(self: Any) -> Any:
        return workers.serving(original, self) if active.on else original(self)

    return start


def _tracing(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def _trace_prerun(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if active.on and mode.current() != "observe":
            try:
                otel = runtime.variable.get()
                inner = snapshots.in_step(otel, flow.peek())
                if inner is not otel:
                    runtime.variable.set(inner)  # what it attached is taken back by its own token
            except Exception as exc:
                faults.internal_error(RUNNER, exc)

    return _trace_prerun


def _connect(signals: Any) -> None:
    signals.before_task_publish.connect(_publishing, weak=False, dispatch_uid=__name__)


def _disconnect(signals: Any) -> None:
    signals.before_task_publish.disconnect(dispatch_uid=__name__)


HOOKS = (
    Hook("celery.signals", _connect, _disconnect),
    Hook("celery.app.trace", lambda module: None, _untrace),
)
PATCHES = (
    Patch("celery.beat", "Scheduler.apply_async", _ticking),
    Patch("celery.app.trace", "build_tracer", _building),
    Patch("celery.worker.consumer.consumer", "Consumer.update_strategies", _updating),
    Patch("celery.worker.request", "Request.on_failure", _handling),
    Patch("celery.worker.request", "Request.on_timeout", _handling),
    Patch("celery.worker.request", "Request._announce_revoked", _handling),
    Patch("celery.worker.request", "Request._announce_cancelled", _handling),
    Patch("celery.backends.base", "Backend._call_task_errbacks", _calling_back),
    Patch("celery.worker.worker", "WorkController.start", _starting),
    Patch("opentelemetry.instrumentation.celery", "CeleryInstrumentor._trace_prerun", _tracing),
)
