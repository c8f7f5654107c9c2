"""aiocron 1.8 to 2.1 (older ones are for Pythons before 3.10): each call of a cron's function is a cron run.

What is patched and why there: ``Cron.call_func`` is what calls the function, in a task, at its time and for whoever
waits for ``Cron.next``. While it does, the function is one whose call is a run; a call by hand is no hop.
``Cron.start`` arms the timer, which arms itself again from then on: it does so without a key and a span, so that
neither is kept from whoever has started it. The run's span has a Link to the span there.

What escapes: nothing is known to. Whoever waits for ``next`` of a cron without a function runs no job.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otelctx import cron, faults, place, runs, workers
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import SpanContext

    from otelctx.departure import Departure

RUNNER: Final = "aiocron"

_caused: WeakKeyDictionary[Any, SpanContext | None] = WeakKeyDictionary()


def _start(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def start(self: Any) -> Any:
        if not active.on:
            return original(self)
        try:
            _caused[self] = cron.cause()
        except Exception as exc:
            faults.internal_error(RUNNER, exc)
        return workers.serving(original, self)

    return start


def _call(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def call_func(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = each = self.cron
        if active.on:
            try:
                if self.func is not sys.modules[RUNNER].null_callback:
                    each = self.cron = runs.each_call(plain, partial(_departed, self), is_asynchronous=True)
            except Exception as exc:
                faults.internal_error(RUNNER, exc)
        try:
            return original(self, *args, **kwargs)
        finally:
            if self.cron is each:
                self.cron = plain

    return call_func


def _departed(job: Any) -> Departure:
    function = job.func
    while isinstance(function, partial):
        function = function.func
    return cron.departure(RUNNER, place.name_of(function), function, cause=cron.cause() or _caused.get(job))


PATCHES = (
    Patch("aiocron", "Cron.start", _start),
    Patch("aiocron", "Cron.call_func", _call),
)
