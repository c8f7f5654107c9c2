"""Service threads start neutral, whoever starts them: the standard library's, OpenTelemetry's, anyio's and trio's.

Each is the real thing, started in the middle of a session; what counts is the context in which its target runs. The
threads of libraries that are not installed with the tests are in ``tests/beside``.
"""

from __future__ import annotations

import asyncio
import io
import logging.config
import logging.handlers
import multiprocessing
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing.managers import BaseManager
from multiprocessing.pool import ThreadPool
from typing import Any, Protocol
from unittest import mock

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from trio._core._thread_cache import ThreadCache

from otelctx_instrumentation.services import SERVICES
from tests.service_threads import NEUTRAL, look, session, watched


class Install(Protocol):
    def __call__(self, **settings: Any) -> None: ...


@contextmanager
def thread_pool() -> Iterator[None]:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result(20)
        yield


@contextmanager
def process_pool() -> Iterator[None]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(int)
        yield


@contextmanager
def multiprocessing_pool() -> Iterator[None]:
    with ThreadPool(1):
        yield


@contextmanager
def multiprocessing_queue() -> Iterator[None]:
    items: multiprocessing.Queue[int] = multiprocessing.Queue()
    items.put(1)
    try:
        yield
    finally:
        items.close()
        items.join_thread()


@contextmanager
def shared_resource() -> Iterator[None]:
    from multiprocessing import resource_sharer

    ours, other = socket.socketpair()
    with ours, other:
        resource_sharer.DupFd(ours.fileno())
        try:
            yield
        finally:
            resource_sharer.stop(timeout=10)


@contextmanager
def queue_listener() -> Iterator[None]:
    listener = logging.handlers.QueueListener(queue.SimpleQueue())
    listener.start()
    try:
        yield
    finally:
        listener.stop()


@contextmanager
def logging_server() -> Iterator[None]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = logging.config.listen(port)
    server.start()
    try:
        yield
    finally:
        server.ready.wait(20)  # type: ignore[attr-defined]
        logging.config.stopListening()
        server.join(20)


@contextmanager
def loops_end() -> Iterator[None]:
    asyncio.run(asyncio.to_thread(int))
    yield


@contextmanager
def span_processor() -> Iterator[None]:
    processor = BatchSpanProcessor(InMemorySpanExporter())
    try:
        yield
    finally:
        processor.shutdown()  # type: ignore[no-untyped-call]


@contextmanager
def log_processor() -> Iterator[None]:
    nothing_to_export: Any = InMemorySpanExporter()
    processor = BatchLogRecordProcessor(nothing_to_export)
    try:
        yield
    finally:
        processor.shutdown()  # type: ignore[no-untyped-call]


@contextmanager
def metric_reader() -> Iterator[None]:
    reader = PeriodicExportingMetricReader(ConsoleMetricExporter(out=io.StringIO()), 3_600_000)
    provider = MeterProvider([reader])
    try:
        yield
    finally:
        provider.shutdown()


@contextmanager
def anyio_worker() -> Iterator[None]:
    anyio.run(partial(anyio.to_thread.run_sync, int))
    yield


@contextmanager
def anyio_portal() -> Iterator[None]:
    with anyio.from_thread.start_blocking_portal():
        yield


@contextmanager
def anyio_selector() -> Iterator[None]:
    from anyio._core._asyncio_selector_thread import Selector

    selector = Selector()
    with mock.patch("threading._register_atexit"):  # it would be stopped twice
        selector.start()
    try:
        yield
    finally:
        selector._stop()


@contextmanager
def trio_worker() -> Iterator[None]:
    ThreadCache().start_thread_soon(int, lambda _: None)  # its own, which has no idle thread yet
    yield


STARTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "asyncio.base_events:BaseEventLoop._do_shutdown": loops_end,
    "concurrent.futures.thread:_worker": thread_pool,
    "concurrent.futures.process:_ExecutorManagerThread.run": process_pool,
    "logging.handlers:QueueListener._monitor": queue_listener,
    "logging.config:listen.<locals>.Server.run": logging_server,
    "multiprocessing.pool:worker": multiprocessing_pool,
    "multiprocessing.pool:Pool._handle_workers": multiprocessing_pool,
    "multiprocessing.pool:Pool._handle_tasks": multiprocessing_pool,
    "multiprocessing.pool:Pool._handle_results": multiprocessing_pool,
    "multiprocessing.queues:Queue._feed": multiprocessing_queue,
    "multiprocessing.resource_sharer:_ResourceSharer._serve": shared_resource,
    "anyio._backends._asyncio:WorkerThread.run": anyio_worker,
    "anyio._core._asyncio_selector_thread:Selector.run": anyio_selector,
    "anyio.from_thread:start_blocking_portal.<locals>.run_blocking_portal": anyio_portal,
    "trio._core._thread_cache:WorkerThread._work": trio_worker,
    "opentelemetry.sdk._shared_internal:BatchProcessor.worker": span_processor,
    "opentelemetry.sdk.metrics._internal.export:PeriodicExportingMetricReader._ticker": metric_reader,
}

IN_A_PROCESS_OF_ITS_OWN = {"multiprocessing.managers:Server.accepter"}


class Manager(BaseManager): ...


Manager.register("look", look)


@pytest.mark.parametrize("target", STARTS)
def test_a_service_thread_that_a_session_starts_sees_nothing_of_it(install: Install, target: str) -> None:
    install()
    with watched(target) as what_it_sees, session("A"):
        with STARTS[target]():
            assert what_it_sees() == NEUTRAL


def test_a_log_record_processors_thread_sees_nothing_of_the_session_that_starts_it(install: Install) -> None:
    install()
    target = "opentelemetry.sdk._shared_internal:BatchProcessor.worker"
    with watched(target) as what_it_sees, session("A"), log_processor():
        assert what_it_sees() == NEUTRAL


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_manager_that_a_session_forks_serves_everybody_as_nobody(install: Install) -> None:
    install()
    with session("A"):
        manager = Manager(ctx=multiprocessing.get_context("fork"))
        manager.start()
    with manager:
        served: Any = manager.look()  # type: ignore[attr-defined]
        assert served._getvalue() == NEUTRAL


def test_an_ordinary_thread_is_seen_to_inherit_all_of_it(install: Install) -> None:
    install(spans="never")
    with watched(f"{__name__}:ordinary") as what_it_sees, session("A") as expected:
        thread = threading.Thread(target=ordinary)
        thread.start()
        thread.join()
        assert what_it_sees() == expected


def ordinary() -> None: ...


def test_every_service_thread_of_what_is_installed_with_the_tests_is_started_in_one() -> None:
    here = ("anyio", "asyncio", "concurrent.futures", "logging", "multiprocessing", "opentelemetry-sdk", "trio")
    assert {target for name in here for target in SERVICES[name]} == {*STARTS, *IN_A_PROCESS_OF_ITS_OWN}
