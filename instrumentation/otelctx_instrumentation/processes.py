"""Processes: ``ProcessPoolExecutor.submit`` and ``map``, and ``multiprocessing.Process.start``.

What is patched and why there: ``submit`` is where a task departs. What is sent is an importable callable of otelctx's
and strings (`otelctx.carrier`), with the function and its arguments as they are: what does not pickle fails where it
fails without otelctx, and as it does there. ``map`` is patched as well, so that all items of its chunks depart as the
``map`` did, whoever submits them and when (``buffersize=``, 3.14). ``BaseProcess.start`` is where a process departs,
whatever its start method: it puts an object in the instance's ``run`` that the child calls, by a fork or by a pickle.

*Workers* (of executors and pools, and managers' servers; `WORKERS`, and ``threads.service``) serve everybody, so they
are started in a context without any key or span, whoever starts them: neither what a fork copies nor the environment of
a spawn is the first submitter's. A claim that is shed there stays shed: what runs in a worker without otelctx must not
find one in its environment.

What escapes: ``os.fork`` keeps the context of the thread that forks, by itself. A child that cannot import otelctx
could not run what is sent, so its work is sent as it is and arrives without a key: one that is spawned by another
interpreter (``multiprocessing.set_executable``), or where ``sys.path``, which the child is given, does not lead to it.
A spawned process whose ``run`` is a property of its class runs that one: an instance's own does not come before it.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otelctx import arrival, binding, carrier, faults, metrics, mode, ownership, place, workers
from otelctx.carrier import Carried, Run
from otelctx.claim import SHED
from otelctx.policy import NAMES, PROCESS, SERVICE
from otelctx.snapshot import Snapshot, arrive, depart
from otelctx_instrumentation import owners, services
from otelctx_instrumentation.brought import context_of
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context
    from multiprocessing.process import BaseProcess

    from otelctx.departure import Departure
    from otelctx.owners import Owner

WORKERS: Final = frozenset(
    {
        "concurrent.futures.process:_process_worker",
        "multiprocessing.pool:worker",
        "multiprocessing.managers:BaseManager._run_server",
        # Pools of other libraries: their tasks do not depart, and must not be the first submitter's for ever.
        "joblib.externals.loky.process_executor:_process_worker",
        "loky.process_executor:_process_worker",
        "pebble.pool.process:worker_process",
    }
)
"""``module:function`` of the targets of processes that serve everybody."""

_cleared: Final = metrics.hop_counter(NAMES[SERVICE], "cleared")


# --- executors -------------------------------------------------------------------------------------------------------


def _submit(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not active.on:
            return original(self, fn, *args, **kwargs)
        fn, owner = _carried(self, fn)
        future = original(self, fn, *args, **kwargs)
        if owner is not None:
            owners.note(future, owner)
        return future

    return submit


def _map(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def map_(self: Any, fn: Callable[..., Any], *iterables: Any, **kwargs: Any) -> Any:
        if active.on:
            fn, _ = _carried(self, fn)
        return original(self, fn, *iterables, **kwargs)

    return map_


def _carried(executor: Any, fn: Callable[..., Any]) -> tuple[Callable[..., Any], Owner | None]:
    """What to submit for `fn`, and whose it is."""
    try:
        chunk = fn.args[0] if type(fn) is partial and fn.args else fn
        if type(chunk) is Carried:  # of a `map`, which has departed
            return fn, chunk.owner
        departing = carrier.departing(depart(), PROCESS, fn)
        owner = (departing if isinstance(departing, Snapshot) else departing.snapshot).owner
        if context_of(fn) is None and carrier.can_arrive(executor._mp_context.get_start_method()):
            fn = Carried(*carrier.packed(departing, PROCESS), fn, owner)
        return fn, owner
    except Exception as exc:
        faults.internal_error("process", exc)
    return fn, None


# --- processes -------------------------------------------------------------------------------------------------------


class _Runner:
    """What a process that starts by a fork has for its ``run``, until it runs: with all that no pickle takes along."""

    __slots__ = ("departing", "earlier")

    def __init__(self, departing: Snapshot | Departure, earlier: Any) -> None:
        self.departing = departing
        self.earlier = earlier
        """The ``run`` that the instance had of its own, or None."""

    def __call__(self) -> None:
        run, _ = carrier.own_run(self.earlier)
        if isinstance(self.departing, Snapshot):
            arrive(self.departing, PROCESS, run, (), {})
        else:
            arrival.in_full(self.departing, run, (), {})


def _remove(runner: _Runner | Run, process: BaseProcess) -> None:
    """Give `process` back the ``run`` that it had before it had `runner`."""
    if vars(process).get("run") is runner:
        del process.__dict__["run"]
        if runner.earlier is not None:
            process.__dict__["run"] = runner.earlier


def _start(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def start(self: BaseProcess) -> None:
        if not active.on:
            original(self)
            return
        neutral: Context | None = None
        captured: Snapshot | None = None
        runner: _Runner | Run | None = None
        try:
            if _is_worker(self) or services.is_service(self):
                _cleared()
                if mode.current() != "observe":
                    neutral = workers.neutral()
                    if binding.claim() == SHED:
                        # The environment of a spawn is the process's, but for a claim that is shed where it starts.
                        neutral.run(ownership.attach_shed)
            else:
                captured = depart()
                runner = _prepare(self, captured)
        except Exception as exc:
            faults.internal_error("process", exc)
        try:
            if neutral is not None:
                neutral.run(original, self)
            else:
                original(self)
        finally:
            if runner is not None:
                _remove(runner, self)
        if captured is not None:
            owners.spawned(self, captured)

    return start


def _is_worker(process: BaseProcess) -> bool:
    target = getattr(process, "_target", None)
    return f"{place.attribute(target, '__module__')}:{place.attribute(target, '__qualname__')}" in WORKERS


def _prepare(process: BaseProcess, captured: Snapshot) -> _Runner | Run | None:
    """Give `process`, which is to be started, a runner; None where it is to have none."""
    method = getattr(process, "_start_method", None)
    if method is None:
        chosen = sys.modules["multiprocessing.context"]._default_context
        # To ask for it would be to choose it, and this start may fail.
        method = chosen.get_start_method(allow_none=True) or chosen._default_context.get_start_method()
    if getattr(process, "_popen", None) is not None or not carrier.can_arrive(
        method
    ):  # started already: the original says so
        return None
    called = getattr(process, "_target", None) or type(process).run
    attributes = vars(process)
    departing, earlier = carrier.departing(captured, PROCESS, called), attributes.get("run")
    # Packed here, and not when it is pickled: what fails there is the application's.
    runner = _Runner(departing, earlier) if method == "fork" else Run(*carrier.packed(departing, PROCESS), earlier)
    attributes["run"] = runner
    return runner


PATCHES = (
    Patch("concurrent.futures.process", "ProcessPoolExecutor.submit", _submit),
    Patch("concurrent.futures.process", "ProcessPoolExecutor.map", _map),
    Patch("multiprocessing.process", "BaseProcess.start", _start),
)
