"""Locks and fork: a child never waits for a thread that it does not have."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import wrapt.importer  # type: ignore[import-untyped]

from otelctx import activation, flow, forks, installation, scoped_env
from otelctx_instrumentation import patching

if TYPE_CHECKING:
    from types import ModuleType

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


class _Slow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module that takes as long as the main thread takes to wait for it."""

    name = "opentelemetry.slow_for_a_test"

    def __init__(self) -> None:
        self.begun = threading.Event()

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        self.begun.set()
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            frame = sys._current_frames()[threading.main_thread().ident or 0]
            if frame.f_code is forks._let_imports_end.__code__ or frame.f_code is forks._is_under_way.__code__:
                return
            os.sched_yield()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_in_the_middle_of_an_import_can_import_that_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = _Slow()
    monkeypatch.setattr(sys, "meta_path", [slow, *sys.meta_path])
    importing = threading.Thread(target=importlib.import_module, args=[slow.name])
    importing.start()
    assert slow.begun.wait(10)
    pid = os.fork()
    if pid == 0:
        importlib.import_module(slow.name)
        os._exit(0)
    importing.join(10)
    sys.modules.pop(slow.name, None)
    deadline = time.monotonic() + 10
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        os.sched_yield()
    if ended[0] == 0:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert ended == (pid, 0)
