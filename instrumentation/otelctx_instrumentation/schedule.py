"""The package ``schedule``, 0.6 to 1.2.

What is patched and why there: ``Job.run`` is where ``run_pending`` and ``run_all`` run a job, in the thread and the
context of whoever calls them. Each run is a cron run. ``Job.do`` is where an application sets a job up; nothing of its
context is kept, but that the run's span has a Link to the span there.

What escapes: nothing is known to. A job that returns ``CancelJob`` after its first run is a cron job like the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otelctx import cron, faults, place
from otelctx.runs import Arrival
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import SpanContext

RUNNER: Final = "schedule"

_caused: WeakKeyDictionary[Any, SpanContext | None] = WeakKeyDictionary()


def _run(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def run(self: Any) -> Any:
        if not active.on:
            return original(self)
        try:
            function = self.job_func
            departing = cron.departure(RUNNER, place.name_of(function), function, cause=_caused.get(self))
        except Exception as exc:
            faults.internal_error("schedule", exc)
            return original(self)
        return Arrival(departing, function).run(original, self)

    return run


def _do(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def do(self: Any, *args: Any, **kwargs: Any) -> Any:
        job = original(self, *args, **kwargs)
        if active.on:
            try:
                _caused[self] = cron.cause()
            except Exception as exc:
                faults.internal_error("schedule", exc)
        return job

    return do


PATCHES = (
    Patch("schedule", "Job.run", _run),
    Patch("schedule", "Job.do", _do),
)
