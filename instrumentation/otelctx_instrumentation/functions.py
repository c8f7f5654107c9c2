"""Declared functions: calling one of ``cron.runners`` is a cron hop.

What is patched and why there: the function itself, in its module, when the module has been imported; hosts inspect such
functions, call them by several names and wrap them again, so the replacement keeps name, docstring, signature and
attributes, and is a coroutine function where the original is one.

What escapes: a reference to the function that was taken while its module was being imported.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from otelctx import arrival, cron, faults, mode, runs
from otelctx.departure import Departure
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def patches(runners: Iterable[str]) -> Iterator[Patch]:
    """The patches for the declared `runners`, ``module:function`` each."""
    for path in runners:
        module, _, name = path.partition(":")
        yield Patch(module, name, _running, is_declared=True)


def _running(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    if isinstance(original, classmethod | staticmethod):
        inner = _running(original.__func__, active)
        return type(original)(inner)
    name = getattr(original, "__qualname__", type(original).__qualname__)
    runner = getattr(original, "__module__", None) or "function"
    # What is called first is the job, and not the scheduler whose method runs it.
    is_method = "." in name.rpartition("<locals>.")[2]

    def depart(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Departure | None:
        if not active.on:
            return None
        try:
            job = cron.name_of_job(name, args[is_method:], kwargs)
            return None if cron.is_within(runner, job) else cron.departure(runner, job, original)
        except Exception as exc:
            faults.internal_error("cron", exc)
            return None

    if cron.is_asynchronous(original):

        @wraps(original)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            departing = depart(args, kwargs)
            if departing is None:
                return await original(*args, **kwargs)
            if mode.current() == "observe":
                with cron.observed(runner, str(departing.name)), arrival.watched(departing, original):
                    return await original(*args, **kwargs)
            return await runs.awaited(departing, original, args, kwargs)

        return run_async

    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        departing = depart(args, kwargs)
        if departing is None:
            return original(*args, **kwargs)
        if mode.current() == "observe":
            with cron.observed(runner, str(departing.name)):
                return arrival.observed(departing, original, args, kwargs)
        return runs.returned(departing, arrival.apart(departing, original, args, kwargs))

    return run
