"""What Dramatiq's own tests ask for and its source distribution leaves out: the fixtures, and the names of ``common``.

For a Redis server at its usual port. What wants RabbitMQ is skipped, what wants memcached has the other two backends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dramatiq
import pika
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.rate_limits import backends as limits
from dramatiq.results import backends as results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RABBITMQ_CREDENTIALS = pika.PlainCredentials("guest", "guest")
skip_in_ci = skip_on_pypy = pytest.mark.skipif(False, reason="this is neither")
skip_on_windows = pytest.mark.skipif(os.name == "nt", reason="Windows")


@contextmanager
def worker(*arguments: Any, **options: Any) -> Iterator[dramatiq.Worker]:
    started = dramatiq.Worker(*arguments, **options)
    started.start()
    try:
        yield started
    finally:
        started.stop()


def in_use(broker: dramatiq.Broker) -> Iterator[dramatiq.Broker]:
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture
def stub_broker() -> Iterator[dramatiq.Broker]:
    yield from in_use(StubBroker())


@pytest.fixture
def redis_broker() -> Iterator[dramatiq.Broker]:
    broker = RedisBroker()
    broker.client.flushall()
    yield from in_use(broker)


@pytest.fixture
def rabbitmq_broker() -> dramatiq.Broker:
    pytest.skip("there is no RabbitMQ")


@pytest.fixture
def stub_worker(stub_broker: dramatiq.Broker) -> Iterator[dramatiq.Worker]:
    with worker(stub_broker, worker_timeout=100, worker_threads=32) as started:
        yield started


@pytest.fixture
def redis_worker(redis_broker: dramatiq.Broker) -> Iterator[dramatiq.Worker]:
    with worker(redis_broker, worker_threads=32) as started:
        yield started


@pytest.fixture
def rabbitmq_worker(rabbitmq_broker: dramatiq.Broker) -> None:
    raise AssertionError("its broker skips")


@pytest.fixture
def redis_result_backend() -> results.RedisBackend:
    backend = results.RedisBackend()
    backend.client.flushall()
    return backend


@pytest.fixture(params=["redis", "stub"])
def result_backend(request: pytest.FixtureRequest, redis_result_backend: results.RedisBackend) -> Any:
    return redis_result_backend if request.param == "redis" else results.StubBackend()


@pytest.fixture(params=["redis", "stub"])
def rate_limiter_backend(request: pytest.FixtureRequest) -> Any:
    if request.param == "stub":
        return limits.StubBackend()
    backend = limits.RedisBackend()
    backend.client.flushall()
    return backend


@pytest.fixture
def start_cli() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start ``dramatiq`` for a module that has a broker; it is ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        module: str, *, extra_args: list[str] | None = None, bufsize: int = 0, **options: Any
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dramatiq", module, *(extra_args or [])]
        started.append(subprocess.Popen(command, bufsize=bufsize, **options))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
