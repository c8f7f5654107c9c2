"""anyio's processes: ``anyio.to_process.run_sync``, of anyio 3 and 4. Its other hops carry the context by themselves.

What is patched and why there: ``run_sync`` is where the work departs. What it pickles is an importable callable of
otelctx's (`otelctx.carrier`) with the function, as for ``ProcessPoolExecutor``. A worker process is kept for whoever
needs one next, so it is started in a context without key and span. A claim that is shed there stays shed: what runs
in a worker without otelctx must not find one in its environment.

What escapes: ``anyio.to_interpreter``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otelctx import binding, carrier, faults, ownership, runs
from otelctx.claim import SHED
from otelctx.policy import PROCESS
from otelctx.snapshot import depart
from otelctx_instrumentation.brought import context_of
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable


def _sending(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    async def run_sync(*args: Any, **kwargs: Any) -> Any:
        if not active.on or not args:
            return await original(*args, **kwargs)
        is_shed = binding.claim() == SHED
        return await runs.served(_serve, is_shed, original, _carried(args[0]), *args[1:], **kwargs)

    return run_sync


async def _serve(is_shed: bool, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    token = ownership.attach_shed() if is_shed else None
    try:
        return await original(*args, **kwargs)
    finally:
        binding.detach(token)


def _carried(fn: Any) -> Any:
    try:
        if context_of(fn) is None and carrier.can_arrive("spawn"):
            return carrier.Carried(*carrier.packed(carrier.departing(depart(), PROCESS, fn), PROCESS), fn)
    except Exception as exc:
        faults.internal_error("process", exc)
    return fn


PATCHES = (Patch("anyio.to_process", "run_sync", _sending),)
