"""What a forked child has to find: that it is one, its locks free, and no module half imported.

Another thread, which the child does not have, may hold a lock at the fork, or be in the middle of an import.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


_is_child = False


def is_child() -> bool:
    """Whether this process has been made by a fork since otelctx was imported: what was made before is its parent's."""
    return _is_child


def _now_a_child() -> None:
    global _is_child
    _is_child = True


_PATIENCE: Final = 2.0  # seconds: the import of the other thread may itself wait for the one that forks
_AWAITED: Final = sys.stdlib_module_names | {"otelctx", "otelctx_instrumentation", "opentelemetry", "wrapt"}
"""The packages that otelctx imports when something first needs them, in whichever thread that is."""

_imports: Final[dict[str, Any]] = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
"""The module locks of CPython's import system, by weak references: there while a module is being imported."""


def _is_under_way() -> bool:
    """Whether another thread is in the middle of an import that otelctx may have asked for."""
    me = _thread.get_ident()
    for name, reference in list(_imports.items()):
        if name.partition(".")[0] in _AWAITED:
            lock = reference()
            if lock is not None and getattr(lock, "owner", None) not in (None, me):
                return True
    return False


def _let_imports_end() -> None:
    """Wait for imports of other threads, before a fork: the child would wait for ever for what is half imported.

    CPython leaves that to who forks, who knows what his own threads import. He does not know of otelctx's.
    """
    try:
        if not _imports or not _is_under_way():
            return
        pause, end = _thread.allocate_lock(), time.monotonic() + _PATIENCE
        pause.acquire()
        while _is_under_way() and time.monotonic() < end:
            pause.acquire(timeout=0.001)  # not `time.sleep`, which gevent replaces
    except Exception:
        pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_let_imports_end, after_in_child=_now_a_child)


def renew_in_child(module: dict[str, object], name: str, make: Callable[[], object]) -> None:
    """After a fork, give the child's `module` (its ``globals()``) a new lock, made by `make`, under `name`.

    Whoever is inside ``with`` at the fork keeps the one that it took, and gives that one back.
    """

    def renew() -> None:
        module[name] = make()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
