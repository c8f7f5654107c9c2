"""Service threads: which threads serve everybody, whoever starts them.

A pool's worker, an exporter, a scheduler's loop is started by whoever happens to need it first, often inside a session,
and works for all of them afterwards. It starts neutral: no key, no span, the process's own claim.

`SERVICES` names the well-known ones by what such a thread runs, ``module:function`` or ``module:Class.method``: its
target, or its class's ``run``. A class counts for its subclasses that do not override the method. Each is started in a
test. Names of threads are not used, nor patterns, which could catch an application's own.
``threads.service`` of the configuration adds to them.

Not here: what a library starts for one piece of work (a request's stream, a process's reader) is that work's.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otelctx import place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.process import BaseProcess
    from threading import Thread

SERVICES: Final = {
    # The standard library.
    "asyncio": ("asyncio.base_events:BaseEventLoop._do_shutdown",),
    "concurrent.futures": (
        "concurrent.futures.thread:_worker",
        "concurrent.futures.process:_ExecutorManagerThread.run",
    ),
    "logging": (
        "logging.handlers:QueueListener._monitor",
        "logging.config:listen.<locals>.Server.run",
    ),
    "multiprocessing": (
        "multiprocessing.pool:worker",
        "multiprocessing.pool:Pool._handle_workers",
        "multiprocessing.pool:Pool._handle_tasks",
        "multiprocessing.pool:Pool._handle_results",
        "multiprocessing.queues:Queue._feed",
        "multiprocessing.managers:Server.accepter",
        "multiprocessing.resource_sharer:_ResourceSharer._serve",
    ),
    # Worker threads that are kept for whoever needs one next, and loops that run what others hand to them.
    "anyio": (
        "anyio._backends._asyncio:WorkerThread.run",
        "anyio._core._asyncio_selector_thread:Selector.run",
        "anyio.from_thread:start_blocking_portal.<locals>.run_blocking_portal",
    ),
    "trio": ("trio._core._thread_cache:WorkerThread._work",),
    # Telemetry.
    "ddtrace": (
        "ddtrace.vendor.dogstatsd.base:DogStatsd._start_flush_thread.<locals>._flush_thread_loop",
        "ddtrace.vendor.dogstatsd.base:DogStatsd._sender_main_loop",
    ),
    "elastic-apm": (
        "elasticapm.transport.http:Transport._process_queue",
        "elasticapm.utils.threading:IntervalTimer.run",
    ),
    "logfire": (
        "logfire._internal.exporters.otlp:DiskRetryer._run",
        "logfire._internal.forwarding:OTLPForwardingPipeline._run",
    ),
    "opentelemetry-sdk": (
        "opentelemetry.sdk._shared_internal:BatchProcessor.worker",
        "opentelemetry.sdk.metrics._internal.export:PeriodicExportingMetricReader._ticker",
    ),
    "prometheus-client": (
        "prometheus_client.bridge.graphite:_RegularPush.run",
        "prometheus_client.exposition:start_wsgi_server.<locals>.TmpServer.serve_forever",
    ),
    "sentry-sdk": (
        "sentry_sdk._batcher:Batcher._flush_loop",
        "sentry_sdk.monitor:Monitor._ensure_running.<locals>._thread",
        "sentry_sdk.profiler.continuous_profiler:ContinuousScheduler.run",
        "sentry_sdk.profiler.transaction_profiler:ThreadScheduler.run",
        "sentry_sdk.sessions:SessionFlusher._ensure_running.<locals>._thread",
        "sentry_sdk.worker:BackgroundWorker._target",
    ),
    # Schedulers, and loops that tell of events.
    "apscheduler": ("apscheduler.schedulers.blocking:BlockingScheduler._main_loop",),
    "celery": (
        "celery.beat:BeatPidbox._loop",
        "celery.beat:_Threaded.run",
        "celery.utils.threads:bgThread.run",
        "celery.utils.timer2:Timer.run",
    ),
    "dramatiq": (
        "dramatiq.asyncio:EventLoopThread.run",
        "dramatiq.middleware.time_limit:TimeLimit._timer",
        "dramatiq.middleware.time_limit:_CtypesTimeoutManager.run",
        "dramatiq.worker:ConsumerThread.run",
        "dramatiq.worker:WorkerThread.run",
        "dramatiq.worker:_ConsumerThread.run",
        "dramatiq.worker:_WorkerThread.run",
    ),
    "grpcio": (
        "grpc._server:_serve",
        "grpc._simple_stubs:ChannelCache._perform_evictions",
    ),
    "watchdog": (
        "watchdog.observers.api:EventDispatcher.run",
        "watchdog.observers.api:EventEmitter.run",
        "watchdog.observers.inotify_c:InotifyFD.run",
        "watchdog.utils.event_debouncer:EventDebouncer.run",
    ),
}
"""By distribution, what the threads run that serve everybody."""

_built_in: Final = frozenset(target for targets in SERVICES.values() for target in targets)
_declared_targets: re.Pattern[str] | None = None
_declared_names: re.Pattern[str] | None = None


def configure(declared: Iterable[str]) -> None:
    """Take `declared` for service threads as well: globs on threads' names, or on ``module:function``."""
    global _declared_targets, _declared_names
    given = tuple(declared)
    _declared_targets = _any_of([glob for glob in given if ":" in glob])
    _declared_names = _any_of([glob for glob in given if ":" not in glob])


def _any_of(globs: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(translate, globs))) if globs else None


def is_service(thread: Thread | BaseProcess) -> bool:
    """Whether `thread`, which is about to start, is one; a process may be declared as well."""
    for target in _targets(thread):
        if target in _built_in or (_declared_targets is not None and _declared_targets.match(target)):
            return True
    return _declared_names is not None and _declared_names.match(thread.name) is not None


def _targets(thread: Thread | BaseProcess) -> Iterator[str]:
    """What `thread` runs, as it is written down; a method by the class that has it and by the object's own."""
    target: Any = getattr(thread, "_target", None)
    owner: Any = type(thread)
    if target is None:
        target = type(thread).run
    else:
        while issubclass(type(target), partial):
            target = target.func
        owner = place.attribute(target, "__self__")
        if owner is not None and not issubclass(type(owner), type):
            owner = type(owner)
    name = place.attribute(target, "__qualname__")
    if type(name) is not str:
        name = type(target).__qualname__
    yield f"{place.attribute(target, '__module__')}:{name}"
    if owner is not None:
        yield f"{owner.__module__}:{owner.__qualname__}.{name.rpartition('.')[2]}"
