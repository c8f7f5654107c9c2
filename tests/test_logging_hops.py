"""Logging through a queue: what is asked in the listener's thread is answered for whoever logged."""

from __future__ import annotations

import json
import logging
import logging.handlers
import queue
import threading
import warnings
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs import LoggingHandler as SdkHandler
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

import otelctx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otelctx import Mismatch
    from tests.conftest import Install

HANDLERS: list[type[logging.Handler]] = [SdkHandler]
try:
    from opentelemetry.instrumentation.logging.handler import LoggingHandler as ContribHandler

    HANDLERS.append(ContribHandler)
except ImportError:
    pass

KEY: ContextVar[Any] = ContextVar(f"{__name__}:KEY")
KEYS = {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}]}}

LOGGER = logging.getLogger(__name__)


@contextmanager
def acting_as(who: str | None) -> Iterator[None]:
    if who is None:
        yield
        return
    token = KEY.set(who)
    try:
        yield
    finally:
        KEY.reset(token)


class Asking(logging.Handler):
    """A handler that asks whose the record is, in its filter, its formatter and by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, tuple[object, ...]] = {}
        self.threads: set[int] = set()
        self.addFilter(self._filtered)

    @staticmethod
    def _whose() -> object:
        return otelctx.get("session"), KEY.get(None), baggage.get_baggage("otelctx.session")

    def _filtered(self, record: logging.LogRecord) -> bool:
        record.filtered = self._whose()
        return True

    def format(self, record: logging.LogRecord) -> str:
        record.formatted = self._whose()
        return super().format(record)

    def emit(self, record: logging.LogRecord) -> None:
        name = self.format(record)
        self.threads.add(threading.get_ident())
        self.seen[name] = (record.__dict__["filtered"], record.__dict__["formatted"], self._whose())


@contextmanager
def logging_through(
    records: Any, *handlers: logging.Handler, handler: type[logging.handlers.QueueHandler] | None = None
) -> Iterator[logging.handlers.QueueListener]:
    """The logger's records go through a queue to `handlers`, in the thread of a listener that A's code has started."""
    entry = (handler or logging.handlers.QueueHandler)(records)
    listener = logging.handlers.QueueListener(records, *handlers)
    LOGGER.addHandler(entry)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    with acting_as("A"):
        listener.start()
    try:
        yield listener
    finally:
        listener.stop()
        LOGGER.removeHandler(entry)
        LOGGER.propagate = True


def three_log() -> None:
    for who in ("A", "B", None, "A"):
        with acting_as(who):
            LOGGER.info("by %s", who)


def of(who: str | None) -> tuple[object, ...]:
    return ((who, who, who),) * 3


QUEUES: list[Callable[[], Any]] = [
    queue.Queue,
    queue.SimpleQueue,
    lambda: otelctx.adopting(queue.Queue()),
    lambda: otelctx.adopting(queue.SimpleQueue()),
]


@pytest.mark.parametrize("made", QUEUES, ids=["queue", "simple queue", "adopting queue", "adopting simple queue"])
@pytest.mark.parametrize("mode", ["repair", "enforce"])
def test_a_record_is_whoevers_logged_it(
    mode: str, made: Callable[[], Any], install: Install, alerts: list[Mismatch]
) -> None:
    install(mode=mode, keys=KEYS)
    asking = Asking()
    with logging_through(made(), asking):
        three_log()
    assert asking.seen == {"by A": of("A"), "by B": of("B"), "by None": of(None)}
    assert threading.get_ident() not in asking.threads
    assert alerts == []


def test_in_observe_nothing_is_changed_and_nothing_is_said(install: Install, alerts: list[Mismatch]) -> None:
    install(mode="observe", keys=KEYS)
    asking = Asking()
    with logging_through(queue.Queue(), asking):
        three_log()
    assert asking.seen == {"by A": of(None), "by B": of(None), "by None": of(None)}
    assert alerts == []


def test_an_adopting_queue_is_enough_for_a_handler_with_an_enqueue_of_its_own(install: Install) -> None:
    class Own(logging.handlers.QueueHandler):
        def enqueue(self, record: logging.LogRecord) -> None:
            self.queue.put_nowait(record)

    install(keys=KEYS)
    asking = Asking()
    with logging_through(otelctx.adopting(queue.Queue[Any]()), asking, handler=Own):
        three_log()
    assert asking.seen == {"by A": of("A"), "by B": of("B"), "by None": of(None)}


def test_a_record_has_no_trace_of_us_and_one_that_is_a_string_is_handled(install: Install) -> None:
    class Textual(logging.handlers.QueueHandler):
        def prepare(self, record: logging.LogRecord) -> Any:
            return json.dumps({"msg": record.getMessage()})

    class Listener(logging.handlers.QueueListener):
        def prepare(self, record: Any) -> logging.LogRecord:
            return logging.makeLogRecord(json.loads(record))

    install(keys=KEYS)
    records: queue.Queue[Any] = queue.Queue()
    plain = logging.LogRecord("name", logging.INFO, "path", 1, "msg", (), None)
    with acting_as("A"):
        logging.handlers.QueueHandler(records).emit(plain)
    assert vars(records.get_nowait()).keys() == vars(plain).keys() | {"message"}
    with acting_as("A"):
        Textual(records).emit(plain)
    asking = Asking()
    Listener(records, asking).handle(records.get_nowait())
    assert asking.seen == {"msg": of(None)}


def test_a_record_that_was_handled_keeps_nothing_of_whoever_logged(install: Install) -> None:
    class Value:
        pass

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    install(keys=KEYS)
    kept: list[logging.LogRecord] = []
    value = Value()
    alive = weakref.ref(value)
    with logging_through(queue.Queue(), Keeping()):
        token = KEY.set(value)
        LOGGER.info("message")
        KEY.reset(token)
        del token, value
        with acting_as("B"):
            LOGGER.info("another")
    assert len(kept) == 2
    assert alive() is None


@pytest.mark.parametrize("handler_class", HANDLERS, ids=lambda handler_class: handler_class.__module__)
def test_opentelemetrys_handler_behind_a_listener_emits_the_trace_and_the_key_of_whoever_logged(
    handler_class: type[logging.Handler], install: Install
) -> None:
    def with_its_session(record: logging.LogRecord) -> bool:
        record.session = otelctx.get("session")
        return True

    install(keys=KEYS)
    exporter: Any = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK's own is deprecated
        handler: logging.Handler = handler_class(logger_provider=provider)  # type: ignore[call-arg]
    handler.addFilter(with_its_session)
    tracer = trace.get_tracer(__name__)
    contexts = {}
    with logging_through(queue.Queue(), handler):
        for who in ("A", "B"):
            with acting_as(who), tracer.start_as_current_span(who) as span:
                contexts[who] = span.get_span_context()
                LOGGER.info("by %s", who)
        LOGGER.info("by nobody")
    records = [one.log_record for one in exporter.get_finished_logs()]
    told = {one.body: (one.trace_id, one.span_id, dict(one.attributes or {}).get("session")) for one in records}
    assert told["by A"] == (contexts["A"].trace_id, contexts["A"].span_id, "A")
    assert told["by B"] == (contexts["B"].trace_id, contexts["B"].span_id, "B")
    assert told["by nobody"] == (0, 0, None)


def test_after_uninstall_a_record_in_the_queue_is_handled_plainly(install: Install) -> None:
    install(keys=KEYS)
    records: queue.Queue[Any] = queue.Queue()
    with acting_as("A"):
        logging.handlers.QueueHandler(records).emit(logging.makeLogRecord({"msg": "message"}))
    otelctx.uninstall()
    asking = Asking()
    logging.handlers.QueueListener(records, asking).handle(records.get_nowait())
    assert asking.seen == {"message": of(None)}
