"""Service threads of libraries that are not installed with the tests: started for real in the middle of a session."""

# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-call"

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.service_threads import NEUTRAL, session, watched


class Install(Protocol):
    def __call__(self, **settings: Any) -> None: ...


@contextmanager
def apscheduler(folder: Path) -> Iterator[None]:
    from apscheduler.schedulers.background import BackgroundScheduler

    scheduler = BackgroundScheduler()
    scheduler.start()
    try:
        yield
    finally:
        scheduler.shutdown()


@contextmanager
def celery_timer(folder: Path) -> Iterator[None]:
    from celery.utils.timer2 import Timer

    timer = Timer()
    timer.start()
    try:
        yield
    finally:
        timer.stop()


@contextmanager
def celery_autoscaler(folder: Path) -> Iterator[None]:
    from celery.utils.threads import bgThread

    over = threading.Event()

    class Idle(bgThread):  # type: ignore[misc]
        def body(self) -> None:
            over.wait(0.01)

    thread = Idle()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.stop()


@contextmanager
def elastic_timer(folder: Path) -> Iterator[None]:
    from elasticapm.utils.threading import IntervalTimer

    timer = IntervalTimer(int, 3600, daemon=True)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@contextmanager
def prometheus_server(folder: Path) -> Iterator[None]:
    from prometheus_client import start_http_server

    server, thread = start_http_server(0, "127.0.0.1")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_server(folder: Path) -> Iterator[None]:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait()


@contextmanager
def sentry_worker(folder: Path) -> Iterator[None]:
    from sentry_sdk.worker import BackgroundWorker

    worker = BackgroundWorker()
    worker.start()
    try:
        yield
    finally:
        worker.kill()


@contextmanager
def sentry_monitor(folder: Path) -> Iterator[None]:
    from sentry_sdk.monitor import Monitor

    class Healthy:
        def is_healthy(self) -> bool:
            return True

    monitor = Monitor(Healthy(), interval=0.01)
    monitor._ensure_running()
    try:
        yield
    finally:
        monitor.kill()


@contextmanager
def sentry_sessions(folder: Path) -> Iterator[None]:
    from sentry_sdk.sessions import SessionFlusher

    flusher = SessionFlusher(lambda envelope: None, flush_interval=0.01)
    flusher._ensure_running()
    try:
        yield
    finally:
        flusher.kill()


@contextmanager
def watchdog(folder: Path) -> Iterator[None]:
    from watchdog.events import FileSystemEventHandler
    from watchdog.observers import Observer

    observer = Observer()
    observer.schedule(FileSystemEventHandler(), str(folder))
    observer.start()
    try:
        yield
    finally:
        observer.stop()
        observer.join()


STARTS: dict[str, Callable[[Path], AbstractContextManager[None]]] = {
    "apscheduler.schedulers.blocking:BlockingScheduler._main_loop": apscheduler,
    "celery.utils.threads:bgThread.run": celery_autoscaler,
    "celery.utils.timer2:Timer.run": celery_timer,
    "elasticapm.utils.threading:IntervalTimer.run": elastic_timer,
    "grpc._server:_serve": grpc_server,
    "sentry_sdk.monitor:Monitor._ensure_running.<locals>._thread": sentry_monitor,
    "sentry_sdk.sessions:SessionFlusher._ensure_running.<locals>._thread": sentry_sessions,
    "sentry_sdk.worker:BackgroundWorker._target": sentry_worker,
    "watchdog.observers.api:EventDispatcher.run": watchdog,
    "watchdog.observers.api:EventEmitter.run": watchdog,
    # Its own class is local to a function; what runs is the method that it inherits.
    "socketserver:BaseServer.serve_forever": prometheus_server,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", STARTS)
def test_a_service_thread_that_a_session_starts_sees_nothing_of_it(
    install: Install, target: str, tmp_path: Path
) -> None:
    install()
    with watched(target) as what_it_sees, session("A"), STARTS[target](tmp_path):
        assert what_it_sees() == NEUTRAL
