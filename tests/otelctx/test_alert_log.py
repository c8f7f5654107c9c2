"""The alert in the log: what the record says, and that each backend gets exactly one, whatever handlers there are."""

from __future__ import annotations

import copy
import json
import logging
import logging.handlers
import pickle
import queue
import subprocess
import sys
import textwrap
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs import LoggingHandler as SdkHandler
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider

from otelctx import alerts, config
from otelctx.mismatch import Action, Mismatch, Place, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HANDLERS: list[type[logging.Handler]] = [SdkHandler]
try:
    from opentelemetry.instrumentation.logging.handler import LoggingHandler as ContribHandler

    HANDLERS.append(ContribHandler)
except ImportError:
    pass

TRACER: Final = TracerProvider(shutdown_on_exit=False).get_tracer("test")

FOREIGN: Final = Mismatch(
    "session",
    "foreign",
    "slack:A",
    "slack:B",
    "env:HERMES_SESSION_KEY",
    "observed",
    "executor",
    ("thread serve @ app.py:7", "executor run_tool @ tools.py:41"),
    Place("handle_message", "gateway.py", 42),
)
ATTRIBUTES: Final = {
    "otelctx.key": "session",
    "otelctx.mismatch.reason": "foreign",
    "otelctx.mismatch.expected": "slack:A",
    "otelctx.mismatch.observed": "slack:B",
    "otelctx.mismatch.source": "env:HERMES_SESSION_KEY",
    "otelctx.mismatch.action": "observed",
    "otelctx.hop.kind": "executor",
    "otelctx.hop.trail": ("thread serve @ app.py:7", "executor run_tool @ tools.py:41"),
    "code.function.name": "handle_message",
    "code.file.path": "gateway.py",
    "code.line.number": 42,
}


class Logs:
    """A log backend: a logger provider of the SDK and what it has exported."""

    def __init__(self) -> None:
        self.exporter: Any = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
        self.provider = LoggerProvider(shutdown_on_exit=False)
        self.provider.add_log_record_processor(SimpleLogRecordProcessor(self.exporter))

    @property
    def records(self) -> list[Any]:
        return [one.log_record for one in self.exporter.get_finished_logs()]

    @property
    def alerts(self) -> list[Any]:
        return [record for record in self.records if record.event_name == "otelctx.mismatch"]


def install(logs: Logs) -> None:
    settings, problems = config.load(None, environ={})
    assert problems == ()
    alerts.configure(settings, logger_provider=logs.provider)


@pytest.fixture
def logs() -> Iterator[Logs]:
    logs = Logs()
    install(logs)
    yield logs
    alerts.configure(None)


@pytest.fixture
def attach_handler() -> Iterator[Callable[[logging.Handler, str], None]]:
    attached: list[tuple[logging.Logger, logging.Handler]] = []

    def attach(handler: logging.Handler, name: str = "otelctx") -> None:
        attached.append((logging.getLogger(name), handler))
        attached[-1][0].addHandler(handler)

    yield attach
    for logger, handler in attached:
        logger.removeHandler(handler)


def otel_handler(handler_class: type[Any], provider: LoggerProvider | None = None) -> logging.Handler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the SDK's: still what most programs have
        handler: logging.Handler = handler_class(logger_provider=provider)
        return handler


def python(script: str, *options: str) -> str:
    """Run a program of its own, where nothing is imported or set yet; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.stdout.strip()


def test_the_log_record_is_an_event_with_the_same_attributes_and_a_sentence(logs: Logs) -> None:
    with TRACER.start_as_current_span("work") as span:
        alerts.deliver(FOREIGN, span)
    (record,) = logs.alerts
    assert dict(record.attributes) == ATTRIBUTES
    assert (record.trace_id, record.span_id) == (span.get_span_context().trace_id, span.get_span_context().span_id)
    assert record.body == (
        "otelctx: session is another's at an executor hop: expected 'slack:A', found 'slack:B' in "
        "env:HERMES_SESSION_KEY; nothing was changed. It departed from handle_message (gateway.py:42)."
    )


def test_the_standard_librarys_record_has_the_attributes_and_the_place_of_the_departure(
    logs: Logs, caplog: pytest.LogCaptureFixture
) -> None:
    alerts.deliver(FOREIGN)
    (record,) = caplog.records
    assert (record.name, record.levelname, record.lineno, record.funcName) == (
        "otelctx",
        "WARNING",
        42,
        "handle_message",
    )
    for name, value in ATTRIBUTES.items():
        assert vars(record)[name.replace(".", "_")] == value
    for style, text in (("%", "%(otelctx_key)s"), ("{", "{otelctx_key}"), ("$", "$otelctx_key")):
        assert logging.Formatter(text, style=style).format(record) == "session"  # type: ignore[arg-type]


def test_a_json_formatter_can_write_the_whole_record(logs: Logs, caplog: pytest.LogCaptureFixture) -> None:
    alerts.deliver(FOREIGN)
    written = json.loads(json.dumps(vars(caplog.records[0])))
    assert written["otel.event.name"] == "otelctx.mismatch"


@pytest.mark.parametrize("reason", ["lost", "foreign", "leaked", "split", "forged", "raced", "undeclared"])
@pytest.mark.parametrize("action", ["observed", "repaired", "raised", "rerouted", "dropped"])
def test_every_reason_and_action_has_a_sentence(
    logs: Logs, caplog: pytest.LogCaptureFixture, reason: Reason, action: Action
) -> None:
    alerts.deliver(Mismatch("tenant", reason, None, "x", None, action))
    message = caplog.records[0].getMessage()
    assert message.startswith("otelctx: tenant ")
    assert "expected none, found 'x'" in message


def test_a_value_cannot_begin_a_new_line_in_the_log(logs: Logs, caplog: pytest.LogCaptureFixture) -> None:
    alerts.deliver(replace(FOREIGN, observed="x\nERROR root: all is lost", source="env:A\u2028B"))
    assert len(caplog.records[0].getMessage().splitlines()) == 1


@pytest.mark.parametrize("where", [["root"], ["otelctx"], ["root", "otelctx"]], ids=" and ".join)
@pytest.mark.parametrize("handler_class", HANDLERS, ids=lambda handler_class: handler_class.__module__)
def test_a_handler_of_opentelemetrys_adds_no_second_record(
    logs: Logs, attach_handler: Any, handler_class: type[logging.Handler], where: list[str]
) -> None:
    for name in where:
        attach_handler(otel_handler(handler_class, logs.provider), "" if name == "root" else name)
    alerts.deliver(FOREIGN)
    assert len(logs.records) == len(logs.alerts) == 1


@pytest.mark.parametrize("handler_class", HANDLERS, ids=lambda handler_class: handler_class.__module__)
def test_a_handler_with_a_provider_of_its_own_gets_one_event_too(
    logs: Logs, attach_handler: Any, handler_class: type[logging.Handler]
) -> None:
    own = Logs()
    attach_handler(otel_handler(handler_class, own.provider), "")
    attach_handler(otel_handler(handler_class, own.provider), "otelctx")
    with TRACER.start_as_current_span("work") as span:
        alerts.deliver(FOREIGN, span)
    assert len(logs.records) == 1
    (record,) = own.records
    assert (record.event_name, record.trace_id) == ("otelctx.mismatch", span.get_span_context().trace_id)
    assert (dict(record.attributes), record.severity_text) == (ATTRIBUTES, "WARN")


@pytest.mark.parametrize("handler_class", HANDLERS, ids=lambda handler_class: handler_class.__module__)
def test_a_filter_of_a_handler_with_its_own_provider_is_obeyed(
    logs: Logs, attach_handler: Any, handler_class: type[logging.Handler]
) -> None:
    own = Logs()
    handler = otel_handler(handler_class, own.provider)
    handler.addFilter(lambda record: record.name != "otelctx")
    attach_handler(handler, "")
    alerts.deliver(FOREIGN)
    assert own.records == []


@pytest.mark.parametrize("handler_class", HANDLERS, ids=lambda handler_class: handler_class.__module__)
def test_a_handler_behind_a_queue_adds_no_second_record(
    logs: Logs, attach_handler: Any, handler_class: type[logging.Handler]
) -> None:
    own = Logs()
    records: queue.Queue[logging.LogRecord] = queue.Queue()
    attach_handler(logging.handlers.QueueHandler(records), "")
    listener = logging.handlers.QueueListener(
        records, otel_handler(handler_class, logs.provider), otel_handler(handler_class, own.provider)
    )
    listener.start()
    try:
        with TRACER.start_as_current_span("work") as span:
            alerts.deliver(FOREIGN, span)
    finally:
        listener.stop()
    assert len(logs.records) == 1
    assert [(one.event_name, one.trace_id) for one in own.records] == [
        ("otelctx.mismatch", span.get_span_context().trace_id)
    ]


@pytest.mark.parametrize("handler_class", HANDLERS, ids=lambda handler_class: handler_class.__module__)
def test_a_subclass_with_an_emit_of_its_own_adds_no_second_record(
    logs: Logs, attach_handler: Any, handler_class: type[Any]
) -> None:
    class Own(handler_class):  # type: ignore[misc]
        def emit(self, record: logging.LogRecord) -> None:
            super().emit(record)

    attach_handler(otel_handler(Own, logs.provider), "")
    alerts.deliver(FOREIGN)
    assert len(logs.records) == 1


@pytest.mark.parametrize("handler_class", HANDLERS, ids=lambda handler_class: handler_class.__module__)
def test_every_other_record_goes_through_the_handler_as_ever(
    logs: Logs, attach_handler: Any, handler_class: type[logging.Handler]
) -> None:
    attach_handler(otel_handler(handler_class, logs.provider), "")
    alerts.deliver(FOREIGN)
    logging.getLogger("otelctx").warning("something else")
    logging.getLogger("app").error("an application's")
    assert [record.body for record in logs.records][1:] == ["something else", "an application's"]


def test_the_backend_has_the_alert_where_the_logger_is_silenced_and_the_handlers_level_is_higher(
    logs: Logs, attach_handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    handler = otel_handler(SdkHandler, logs.provider)
    handler.setLevel(logging.CRITICAL)
    attach_handler(handler, "")
    logger = logging.getLogger("otelctx")
    logger.disabled = True
    try:
        alerts.deliver(FOREIGN)
    finally:
        logger.disabled = False
    assert (len(logs.records), caplog.records) == (1, [])


@pytest.mark.parametrize("handler_class", HANDLERS, ids=lambda handler_class: handler_class.__module__)
def test_uninstalling_leaves_the_handler_classes_as_they_were(logs: Logs, handler_class: type[logging.Handler]) -> None:
    alerts.configure(None)
    before = dict(vars(handler_class))
    install(logs)
    alerts.deliver(FOREIGN)
    assert "handle" in vars(handler_class)
    alerts.configure(None)
    assert dict(vars(handler_class)) == before
    assert handler_class.handle is logging.Handler.handle


def test_where_someone_has_wrapped_us_since_ours_goes_inert_and_is_of_use_again_later(
    logs: Logs, attach_handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    own = Logs()
    attach_handler(otel_handler(SdkHandler, own.provider), "")
    alerts.deliver(FOREIGN)
    ours = SdkHandler.handle

    def theirs(self: logging.Handler, record: logging.LogRecord) -> bool:
        return ours(self, record)

    SdkHandler.handle = theirs  # type: ignore[method-assign]
    try:
        alerts.configure(None)
        assert vars(SdkHandler)["handle"] is theirs
        logging.getLogger().handle(caplog.records[0])  # the alert's, as a queue may bring it later
        assert len(own.records) == 2
        install(logs)
        alerts.deliver(FOREIGN)
        assert [record.event_name for record in own.records[2:]] == ["otelctx.mismatch"]
    finally:
        SdkHandler.handle = ours  # type: ignore[method-assign]
        alerts.configure(None)
    assert "handle" not in vars(SdkHandler)


def test_a_record_that_crosses_to_another_process_is_readable_without_otelctx(
    logs: Logs, caplog: pytest.LogCaptureFixture
) -> None:
    alerts.deliver(FOREIGN)
    crossed = pickle.loads(pickle.dumps(caplog.records[0]))
    assert type(vars(crossed)["otel.event.name"]) is str
    assert b"otelctx.alert_log" not in pickle.dumps(caplog.records[0])
    assert vars(crossed)["otelctx_key"] == "session"


def test_a_deep_copy_of_the_record_is_still_the_same_alert(
    logs: Logs, caplog: pytest.LogCaptureFixture, attach_handler: Any
) -> None:
    alerts.deliver(FOREIGN)
    otel_handler(SdkHandler, logs.provider).handle(copy.deepcopy(caplog.records[0]))
    assert len(logs.records) == 1


def test_a_log_processor_that_raises_keeps_the_record_from_no_handler(
    logs: Logs, caplog: pytest.LogCaptureFixture
) -> None:
    class Raising(SimpleLogRecordProcessor):
        def on_emit(self, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("no export today")

    logs.provider.add_log_record_processor(Raising(logs.exporter))
    alerts.deliver(FOREIGN)
    assert [record.levelname for record in caplog.records if "otelctx_key" in vars(record)] == ["WARNING"]


GLOBAL_LOGS = """
    import logging, os, sys, warnings
    from opentelemetry._logs import set_logger_provider
    from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
    from otelctx import alerts
    from otelctx.mismatch import Mismatch
    warnings.simplefilter("ignore", DeprecationWarning)
    exporter = InMemoryLogRecordExporter()
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    {scene}
    alerts.deliver(Mismatch("session", "lost", "A", None, None, "observed"))
    print([one.log_record.event_name for one in exporter.get_finished_logs()], flush=True)
    os._exit(0)  # the SDK's handler starts a thread as it is flushed, which is too late at the end of an interpreter
"""


@pytest.mark.parametrize(
    "scene",
    [
        "set_logger_provider(provider)",
        "set_logger_provider(provider); logging.getLogger().addHandler(LoggingHandler())",
        "set_logger_provider(provider); logging.getLogger().addHandler(LoggingHandler(logger_provider=provider))",
        "logging.getLogger().addHandler(LoggingHandler()); set_logger_provider(provider)",
        "logging.getLogger('otelctx').addHandler(LoggingHandler()); set_logger_provider(provider)",
        "logging.getLogger().addHandler(LoggingHandler(logger_provider=provider))",
        "logging.getLogger('otelctx').addHandler(LoggingHandler(logger_provider=provider))",
    ],
)
def test_exactly_one_record_reaches_the_backend_however_a_program_sets_it_up(scene: str) -> None:
    assert python(textwrap.dedent(GLOBAL_LOGS).format(scene=scene)) == "['otelctx.mismatch']"


def test_the_logging_instrumentor_adds_no_second_record() -> None:
    pytest.importorskip("opentelemetry.instrumentation.logging.handler")
    for order in ("set_logger_provider(provider); {}", "{}; set_logger_provider(provider)"):
        instrument = "__import__('opentelemetry.instrumentation.logging').instrumentation.logging.LoggingInstrumentor()"
        scene = order.format(instrument + ".instrument()")
        assert python(textwrap.dedent(GLOBAL_LOGS).format(scene=scene)) == "['otelctx.mismatch']"
