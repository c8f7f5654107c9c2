"""What is patched, by whom and in what order, and whether it works."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from multiprocessing.pool import ThreadPool
from typing import Any, Final

import otelctx
import otelctx_instrumentation
from otelctx.cli.doctor.report import Hop, Patched
from otelctx_instrumentation import patching

PATIENCE: Final = 10.0
"""Seconds that a tried hop may take."""

PROBE: Final = "otelctx-doctor"
"""The value of the key that is bound for a try."""


def patched() -> Iterator[Patched]:
    """Each attribute that is replaced, in the order in which that was done."""
    for module, path, outermost in patching.applied():
        yield Patched(module, path, tuple(_layers(module, path)), outermost)


def wanted() -> Iterator[tuple[str, str]]:
    """Each attribute (module, path) that otelctx patches where its module is imported, whatever the settings."""
    for module in otelctx_instrumentation.modules():
        for patch in module.PATCHES:
            yield patch.module, patch.path


def _layers(module: str, path: str) -> Iterator[str]:
    owner: Any = sys.modules[module]
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    function = vars(owner).get(name)
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield _whose(function)
        function = _inner(function)


def _inner(function: Any) -> Any:
    if isinstance(function, classmethod | staticmethod):
        return function.__func__
    return getattr(function, "__wrapped__", None)


def _whose(function: Any) -> str:
    """The module in which the function was written: `functools.wraps` copies ``__module__``, and not its globals."""
    wrapper = getattr(function, "_self_wrapper", None)  # wrapt's
    plain = wrapper if wrapper is not None else getattr(function, "__func__", function)
    written = getattr(plain, "__globals__", {}).get("__name__") or getattr(plain, "__module__", None)
    name = str(written or type(plain).__module__)
    return "otelctx" if name.partition(".")[0] == "otelctx_instrumentation" else name


def tried() -> Iterator[Hop]:
    """Bind a key and send work through each kind of hop that this process has; nothing is left of it afterwards."""
    for name, hop in _HOPS.items():
        try:
            seen = Context().run(_try, hop)
        except Exception as exc:
            yield Hop(name, False, f"{type(exc).__name__}: {exc}")
            continue
        yield Hop(name, seen == PROBE, "the key" if seen == PROBE else "nothing" if seen is None else "another value")


def _try(hop: Callable[[Callable[[], None]], object]) -> str | None:
    seen: list[str | None] = []
    done = threading.Event()

    def work(*_: object) -> None:
        seen.append(otelctx.get("session"))
        done.set()

    with otelctx.bind(session=PROBE):
        hop(work)
        if not done.wait(PATIENCE):
            raise TimeoutError(f"it did not run within {PATIENCE:.0f} s")
    return seen[0]


def _thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="otelctx-doctor", daemon=True).start()


def _timer(work: Callable[[], None]) -> None:
    timer = threading.Timer(0, work)
    timer.daemon = True
    timer.start()


def _submit(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(PATIENCE)


def _map(work: Callable[..., None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        list(pool.map(work, [None], timeout=PATIENCE))


def _callback(work: Callable[..., None]) -> None:
    future: Future[None] = Future()
    future.add_done_callback(work)
    Context().run(future.set_result, None)


def _thread_pool(work: Callable[[], None]) -> None:
    with ThreadPool(1) as pool:
        pool.apply_async(work).get(PATIENCE)


_HOPS: Final[dict[str, Callable[[Callable[[], None]], object]]] = {
    "Thread.start": _thread,
    "Timer": _timer,
    "ThreadPoolExecutor.submit": _submit,
    "ThreadPoolExecutor.map": _map,
    "Future.add_done_callback": _callback,
    "multiprocessing.pool.ThreadPool": _thread_pool,
}
