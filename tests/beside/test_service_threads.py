"""Service threads of libraries that are not installed with the tests: started for real in the middle of a session."""

# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-call"

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pytest

from otelctx_instrumentation.services import SERVICES
from tests import test_service_threads as elsewhere
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
def celery_beat(folder: Path) -> Iterator[None]:
    from celery import Celery
    from celery.beat import EmbeddedService

    app = Celery(broker="memory://", set_as_current=False)
    app.conf.beat_max_loop_interval = 0.01
    beat = EmbeddedService(app, thread=True, remote_control=True, schedule_filename=str(folder / "schedule"))
    beat.start()
    try:
        yield
    finally:
        beat.stop()
        beat.join()


@contextmanager
def dogstatsd_flush(folder: Path) -> Iterator[None]:
    client = _dogstatsd(disable_buffering=False, flush_interval=0.01)
    try:
        yield
    finally:
        client._stop_flush_thread()


@contextmanager
def dogstatsd_sender(folder: Path) -> Iterator[None]:
    _dogstatsd(disable_background_sender=False)  # and nothing stops it
    yield


def _dogstatsd(**settings: Any) -> Any:
    from ddtrace.vendor.dogstatsd.base import DogStatsd

    return DogStatsd("127.0.0.1", 9, **settings)


@contextmanager
def elastic_transport(folder: Path) -> Iterator[None]:
    from elasticapm import Client

    nowhere = {"server_url": "http://127.0.0.1:9", "disable_log_record_factory": True}
    client = Client(service_name="app", metrics_interval="0s", central_config=False, cloud_provider=False, **nowhere)
    client._transport.start_thread()
    try:
        yield
    finally:
        client.close()


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
def graphite_bridge(folder: Path) -> Iterator[None]:
    from prometheus_client.bridge.graphite import GraphiteBridge

    with socket.create_server(("127.0.0.1", 0)) as server:
        GraphiteBridge(server.getsockname()).start(3600)  # and nothing stops it
        yield
        server.accept()[0].close()


@contextmanager
def grpc_channel_cache(folder: Path) -> Iterator[None]:
    import_module("grpc.experimental")  # first: the two import each other
    from grpc._simple_stubs import ChannelCache

    ChannelCache.get()  # the process's one, for good
    yield


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
def logfire_retryer(folder: Path) -> Iterator[None]:
    from logfire._internal.exporters.otlp import DiskRetryer

    retryer = DiskRetryer({})
    retryer.add_task(b"", {"url": NOWHERE})
    try:
        yield
    finally:
        retryer.close()


@contextmanager
def logfire_forwarding(folder: Path) -> Iterator[None]:
    from logfire._internal.exporters.otlp import OTLPExporterHttpSession
    from logfire._internal.forwarding import ForwardingContentType, ForwardingRequest, OTLPForwardingPipeline

    with OTLPExporterHttpSession() as session:
        pipeline = OTLPForwardingPipeline(base_url=NOWHERE, session=session, max_queued_body_bytes=100)
        assert pipeline.enqueue(ForwardingRequest("/v1/traces", b"", ForwardingContentType.PROTOBUF, {}))
        yield


@contextmanager
def sentry_batcher(folder: Path) -> Iterator[None]:
    from sentry_sdk._batcher import Batcher

    batcher: Any = Batcher(lambda envelope: None, lambda *args, **kwargs: None)
    batcher._ensure_thread()
    try:
        yield
    finally:
        batcher.kill()


@contextmanager
def sentry_profiler(folder: Path) -> Iterator[None]:
    from sentry_sdk.profiler.transaction_profiler import ThreadScheduler

    profiler = ThreadScheduler(100)
    profiler.setup()
    profiler.ensure_running()
    try:
        yield
    finally:
        profiler.teardown()


@contextmanager
def sentry_continuous_profiler(folder: Path) -> Iterator[None]:
    from sentry_sdk.profiler.continuous_profiler import ThreadContinuousScheduler

    sdk = {"name": "sentry.python", "version": "2", "packages": []}
    profiler = ThreadContinuousScheduler(100, {}, sdk, lambda envelope: None)
    profiler.ensure_running()
    try:
        yield
    finally:
        profiler.teardown()


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


@contextmanager
def watchdog_debouncer(folder: Path) -> Iterator[None]:
    from watchdog.utils.event_debouncer import EventDebouncer

    debouncer = EventDebouncer(0.01, lambda events: None)
    debouncer.start()
    try:
        yield
    finally:
        debouncer.stop()
        debouncer.join()


NOWHERE = "http://127.0.0.1:9"

STARTS: dict[str, Callable[[Path], AbstractContextManager[None]]] = {
    "apscheduler.schedulers.blocking:BlockingScheduler._main_loop": apscheduler,
    "celery.beat:BeatPidbox._loop": celery_beat,
    "celery.beat:_Threaded.run": celery_beat,
    "celery.utils.threads:bgThread.run": celery_autoscaler,
    "celery.utils.timer2:Timer.run": celery_timer,
    "ddtrace.vendor.dogstatsd.base:DogStatsd._sender_main_loop": dogstatsd_sender,
    "ddtrace.vendor.dogstatsd.base:DogStatsd._start_flush_thread.<locals>._flush_thread_loop": dogstatsd_flush,
    "elasticapm.transport.http:Transport._process_queue": elastic_transport,
    "elasticapm.utils.threading:IntervalTimer.run": elastic_timer,
    "grpc._server:_serve": grpc_server,
    "grpc._simple_stubs:ChannelCache._perform_evictions": grpc_channel_cache,
    "logfire._internal.exporters.otlp:DiskRetryer._run": logfire_retryer,
    "logfire._internal.forwarding:OTLPForwardingPipeline._run": logfire_forwarding,
    "prometheus_client.bridge.graphite:_RegularPush.run": graphite_bridge,
    "sentry_sdk._batcher:Batcher._flush_loop": sentry_batcher,
    "sentry_sdk.monitor:Monitor._ensure_running.<locals>._thread": sentry_monitor,
    "sentry_sdk.profiler.continuous_profiler:ContinuousScheduler.run": sentry_continuous_profiler,
    "sentry_sdk.profiler.transaction_profiler:ThreadScheduler.run": sentry_profiler,
    "sentry_sdk.sessions:SessionFlusher._ensure_running.<locals>._thread": sentry_sessions,
    "sentry_sdk.worker:BackgroundWorker._target": sentry_worker,
    "watchdog.observers.api:EventDispatcher.run": watchdog,
    "watchdog.observers.api:EventEmitter.run": watchdog,
    "watchdog.observers.inotify_c:InotifyFD.run": watchdog,
    "watchdog.utils.event_debouncer:EventDebouncer.run": watchdog_debouncer,
    # Its own class is local to a function; what runs is the method that it inherits.
    "socketserver:BaseServer.serve_forever": prometheus_server,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", STARTS)
def test_a_service_thread_that_a_session_starts_sees_nothing_of_it(
    install: Install, target: str, tmp_path: Path
) -> None:
    if target.startswith("ddtrace") and importlib.util.find_spec("ddtrace") is None:
        pytest.skip("ddtrace has no wheel for this Python")
    if "inotify" in target and sys.platform != "linux":
        pytest.skip("inotify is Linux's")
    install()
    with watched(target) as what_it_sees, session("A"), STARTS[target](tmp_path):
        assert what_it_sees() == NEUTRAL


def test_every_service_thread_that_is_listed_is_started_in_a_test() -> None:
    by_the_runners = {"dramatiq"}
    listed = {target for name, targets in SERVICES.items() if name not in by_the_runners for target in targets}
    inherited = {"prometheus_client.exposition:start_wsgi_server.<locals>.TmpServer.serve_forever"}
    assert {*STARTS, *elsewhere.STARTS, *elsewhere.IN_A_PROCESS_OF_ITS_OWN} ^ listed == {
        "socketserver:BaseServer.serve_forever",
        *inherited,
    }
