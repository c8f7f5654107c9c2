"""The cron boundary: a recurring job is its own session, and nobody's worker.

Where a job runs, its key is minted (``cron:<runner>:<job>:<run>``), the application's own sources of the key are
cleared, the claim is shed, and its span is a root with a Link to whatever caused the run. When it has run, the caller's
own bindings are what they were.
"""

from __future__ import annotations

import itertools
import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from otelctx import arrival, flow, policy, runs, runtime, snapshot
from otelctx.departure import Departure
from otelctx.interruption import pass_on
from otelctx.tokens import give_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from opentelemetry.trace import SpanContext

P = ParamSpec("P")
R = TypeVar("R")

_runs: Final = itertools.count(1)

_OBSERVED: Final[ContextVar[tuple[str, ...]]] = ContextVar("otelctx.cron", default=())
"""In observe, where no key is minted to tell it by: the runs that the current context is in."""

_under_way: Final[WeakValueDictionary[str, Departure]] = WeakValueDictionary()
"""The runs that are not over: what one of them schedules for later inherits its key, and is no part of it."""


def key_of_run(runner: str, job: str) -> str:
    """A key for one run of `job`, unlike that of any other run, of this process or of another."""
    return f"{_prefix(runner, job)}{os.getpid():x}-{os.urandom(3).hex()}-{next(_runs)}"


def _prefix(runner: str, job: str) -> str:
    # A colon in a name would make the key of one job that of another.
    return ":".join(("cron", *(part.replace(":", "_")[:200] for part in (runner, job)), ""))


def is_within(runner: str, job: str) -> bool:
    """Whether the current context is a run of `job` already: hosts run a job through several functions."""
    state = flow.STATE.get()
    prefix = _prefix(runner, job)
    if prefix in _OBSERVED.get():
        return True
    return state is not None and any(
        binding.minted
        and binding.value is not None
        and binding.value.startswith(prefix)
        and binding.value in _under_way
        for binding in state.bound.values()
    )


@contextmanager
def observed(runner: str, job: str) -> Iterator[None]:
    """Within the block, which is a run of `job` in observe, `is_within` says so."""
    token = _OBSERVED.set((*_OBSERVED.get(), _prefix(runner, job)))
    try:
        yield
    finally:
        give_back(token)


def departure(runner: str, job: str, called: object = None, *, cause: SpanContext | None = None) -> Departure:
    """A hop of the current context into one run of `job`, which is the function `called`.

    `cause`: whose doing the run is, where that is not the current span.
    """
    key = key_of_run(runner, job)
    departing = Departure(snapshot.depart_as(policy.CRON, key), policy.CRON, called=called, name=job)
    departing.cause = cause
    _under_way[key] = departing
    return departing


def cause() -> SpanContext | None:
    """The current span, as the cause of runs to come: by its context only, which keeps nothing alive."""
    span = runtime.span_of(runtime.variable.get()) if runtime.is_adopted() else None
    if span is None:
        return None
    found = span.get_span_context()
    return found if found.is_valid else None


def is_asynchronous(fn: object) -> bool:
    """Whether calling `fn` gives a coroutine: a coroutine function, or an object with an ``async __call__``."""
    import inspect

    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004


def name_of_job(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What a job is called: its function's `name`, or the first argument's ``id`` or ``name`` where it has one."""
    first = args[0] if args else next(iter(kwargs.values()), None)
    for attribute in ("id", "name"):
        try:
            found = first.get(attribute) if isinstance(first, dict) else getattr(first, attribute, None)
        except Exception as exc:  # a property of the application's; the run is one all the same
            pass_on(exc)
            continue
        if isinstance(found, str) and found:
            return found
    return name


class cron_run:  # noqa: N801 - used as a function, like contextlib.suppress
    """Run a ``with`` block (or ``async with``) as one run of the cron job `job`.

    For hand-written schedulers; `runner` names them in the key. The block has a key of its own
    (``cron:<runner>:<job>:<run>``), no claim, and a root span with a Link to the current one. One object is entered by
    one context at a time.

    A block runs in the context that is there, in which an application's variable that is set cannot be unset: it is
    cleared where its source names an ``empty`` value. `cron_job` has no such limit.
    """

    __slots__ = ("_block", "_job", "_runner")

    def __init__(self, job: str, *, runner: str = "cron") -> None:
        if not isinstance(job, str):
            raise TypeError(f"otelctx: the name of a cron job must be a str, not {type(job).__name__}")
        self._job = job
        self._runner = runner
        self._block: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        self._block = arrival.entered(departure(self._runner, self._job), self)
        self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(kind, exc, traceback)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, exc, traceback)


def cron_job(job: str, *, runner: str = "cron") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make each call of the decorated function, sync or async, one run of the cron job `job`; see `cron_run`.

    The function keeps its name, docstring and signature.
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        import inspect
        from functools import wraps

        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError("otelctx: a generator function is no job: its body runs in whoever iterates over it")
        if is_asynchronous(fn):

            @wraps(fn)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                return await runs.awaited(departure(runner, job, fn), fn, args, kwargs)

            return run_async  # type: ignore[return-value]

        @wraps(fn)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            departing = departure(runner, job, fn)
            return runs.returned(departing, arrival.replayed(departing, fn, args, kwargs))

        return run

    return decorate
