"""OpenTelemetry's own threading instrumentation, beside ours.

It attaches the departed OpenTelemetry Context *inside* our replay where it is the outer one: for executors by a
closure around the submitted function, for threads by ``_otel_context``, which ``Thread.run`` attaches. After a mint,
a shed or a clear that would bring the departed span and baggage back. What works whatever the order of installation:
take the closure off when the work is submitted, and write the arrival's own Context to ``_otel_context``.
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_module: Any = None
submitted: CodeType | None = None
"""The code of the closure that it puts around submitted functions; None where it is not imported."""


def found(module: Any) -> None:
    """Remember what ``opentelemetry.instrumentation.threading`` does; called when it has been imported."""
    global submitted, _module
    _module = module
    wrapper = getattr(module.ThreadingInstrumentor, "_ThreadingInstrumentor__wrap_thread_pool_submit", None)
    constants = getattr(getattr(wrapper, "__code__", None), "co_consts", ())
    closures = [code for code in constants if isinstance(code, CodeType) and "original_func" in code.co_freevars]
    submitted = closures[0] if closures else None


def without_left_over(wrapper: Any) -> Any:
    """`wrapper` without what their instrumentor left there when it was turned off under ours.

    It takes off only a wrapper that it finds outermost.
    """
    if _module is None or _module.ThreadingInstrumentor().is_instrumented_by_opentelemetry:
        return wrapper
    while getattr(getattr(wrapper, "_self_wrapper", None), "__module__", None) == _module.__name__:
        wrapper = wrapper.__wrapped__
    return wrapper


def unwrap(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` without the closure of OpenTelemetry's threading instrumentation."""
    while type(fn) is FunctionType and submitted is not None and fn.__code__ is submitted:
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        fn = cells["original_func"].cell_contents
    return fn
