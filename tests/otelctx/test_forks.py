"""Locks and fork: a child never waits for a thread that it does not have."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import wrapt.importer  # type: ignore[import-untyped]

from otelctx import activation, flow, installation, scoped_env
from otelctx_instrumentation import patching

if TYPE_CHECKING:
    from tests.conftest import Install


def locks() -> list[Any]:
    ours = [flow._discovering, installation._lock, scoped_env._lock, patching._lock, activation._activation._guard]
    return [*ours, wrapt.importer._post_import_hooks_lock]  # which every import takes where wrapt watches for one


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_while_another_thread_holds_every_lock_finds_them_free(install: Install) -> None:
    install()
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks():
                stack.enter_context(lock)
            held.set()
            go_on.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if all(lock.acquire(False) for lock in locks()) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    go_on.set()
    holder.join(10)
    assert all(lock.acquire(False) for lock in locks())
    for lock in locks():
        lock.release()
