"""No key leaves the process by telemetry where `telemetry.values` says so: everything that is exported is searched."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import otelctx
from otelctx.mismatch import Mismatch, MismatchError

if TYPE_CHECKING:
    from tests.conftest import Install

RAW = "raw-key"
"""What every key, task and job in the program below has in it, and nothing else."""

PROGRAM = r"""
import logging, os, sys, threading, warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

folder = Path(sys.argv[1])
os.environ["APP_KEY"] = "raw-key-of-the-process"

from opentelemetry import baggage, context, metrics, propagate, trace
from opentelemetry._logs import set_logger_provider
from opentelemetry.exporter.otlp.json.file import FileMetricExporter, FileSpanExporter
from opentelemetry.exporter.otlp.json.file._log_exporter import FileLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

providers = TracerProvider(), LoggerProvider(), MeterProvider(
    [PeriodicExportingMetricReader(FileMetricExporter(folder / "metrics.json"), 1e9)]
)
providers[0].add_span_processor(SimpleSpanProcessor(FileSpanExporter(folder / "spans.json")))
providers[1].add_log_record_processor(SimpleLogRecordProcessor(FileLogExporter(folder / "logs.json")))
trace.set_tracer_provider(providers[0])
set_logger_provider(providers[1])
metrics.set_meter_provider(providers[2])
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
from opentelemetry.instrumentation.logging import LoggingInstrumentor
LoggingInstrumentor().instrument()

import otelctx

APP = sys.modules["app"] = type(sys)("app")
APP.KEY = ContextVar("KEY")
APP.TENANT = ContextVar("TENANT")
asked = []
def broken_getter():
    asked.append(1)
    raise LookupError("nobody has raw-key-in-getter")
APP.broken_getter = broken_getter

KEYS = {
    "session": {"sources": [{"contextvar": "app:KEY", "empty": [""]}, {"env": "APP_KEY"}]},
    "tenant": {"sources": [{"contextvar": "app:TENANT"}, {"getter": "app:broken_getter"}]},
}
CLAIM = {"env": {"task_id": "APP_TASK"}, "env_prefix": "APP_TASK", "predicate": "app:holds"}
APP.holds = lambda: True
tracer = trace.get_tracer("app")

def turn_on(mode, **more):
    otelctx.install({}, mode=mode, keys=KEYS, claim=CLAIM, scoped_env={"mode": "observe", "names": ["APP_KEY"]}, **more)

def broken_callback(mismatch):
    print(repr(mismatch), file=sys.stderr)
    raise RuntimeError(f"cannot route {mismatch.observed} and {mismatch.expected}")

otelctx.on_mismatch(broken_callback)

def fail():
    raise ValueError(f"no such session: {otelctx.get('session')}")

def work():
    APP.KEY.set("raw-key-left-behind")
    return otelctx.get("session")

def show(*things):
    for thing in things:
        print(repr(thing), str(thing) if isinstance(thing, BaseException) else "", file=sys.stderr)

for mode in ("observe", "repair", "enforce"):
    turn_on(mode)
    with ThreadPoolExecutor(2) as pool, tracer.start_as_current_span("root"):
        with otelctx.bind(session="raw-key-A", tenant="raw-key-T"), tracer.start_as_current_span("turn"):
            for fn in (work, work, fail, work):
                try:
                    pool.submit(fn).result()
                except Exception as exc:
                    if not isinstance(exc, ValueError):
                        show(exc)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            claim = otelctx.Claim("raw-key-task", "raw-key-holder", "raw-key-attempt", "raw-key-token")
            with otelctx.grant_claim(claim):
                show(otelctx.current_claim(), otelctx.capture())
                try:
                    with otelctx.cron_run("nightly"), tracer.start_as_current_span("in cron"):
                        pool.submit(work).result()
                except otelctx.MismatchError as exc:
                    show(exc)
            token = APP.KEY.set("raw-key-app")
            os.environ["APP_KEY"] = "raw-key-app"
            try:
                with otelctx.cron_run("nightly"):
                    pass
            except otelctx.MismatchError as exc:
                show(exc)
            APP.KEY.reset(token)
            os.environ["APP_KEY"] = "raw-key-raced"
            with otelctx.bind(session="raw-key-B"):
                os.environ["APP_KEY"] = "raw-key-raced-too"
                os.environ.get("APP_KEY")
                otelctx.resolve_owner(thread, "raw-key-candidate")
                show(otelctx.owner_of(thread))
            with otelctx.bind(session="x" + "raw-key-" + "y" * 900):
                pass
            try:
                otelctx.bind(session="raw-key-" * 400)
            except ValueError as exc:
                show(exc)
            propagate.inject({})
        stranger = "otelctx.session=raw-key-victim,otelctx.claim=held%3Araw-key-claim,otelctx.raw-key-name=1"
        found = propagate.extract({"baggage": stranger})
        pool.submit(work).result()
    def raises_in_thread():
        raise otelctx.MismatchError(mismatch)
    mismatch = otelctx.Mismatch("session", "foreign", "raw-key-1", "raw-key-2", "env:APP_KEY", "raised")
    with tracer.start_as_current_span("records") as span:
        span.record_exception(otelctx.MismatchError(mismatch))
    uncaught = threading.Thread(target=raises_in_thread)
    uncaught.start()
    uncaught.join()
    show(mismatch, otelctx.MismatchError(mismatch))
    otelctx.uninstall()

for provider in providers:
    provider.shutdown()
assert asked
"""


def everything(folder: Path, values: str) -> str:
    """What the program exports and prints with the setting."""
    names = ("OTEL", "COV", "PYTHON")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={**environ, "OTELCTX_TELEMETRY__VALUES": values, "APP_TASK": "raw-key-in-environment"},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return "\n".join(
        [done.stdout, done.stderr, *((folder / f"{kind}.json").read_text() for kind in ("spans", "logs", "metrics"))]
    )


SEEN = [
    '"otelctx.mismatch.reason"',
    "otelctx.mismatches",
    "a callback of on_mismatch raised",
    "MismatchError(Mismatch(",
    "Claim(task_id=",
    "Owner(keys=",
    '"exception.type"',
    *(f'"{reason}"' for reason in ("lost", "foreign", "leaked", "forged", "raced")),
]
"""What shows that the program did what it is for."""


@pytest.mark.parametrize("values", ["hash", "omit"])
def test_nothing_that_a_process_exports_or_prints_has_a_raw_key(values: str, tmp_path: Path) -> None:
    text = everything(tmp_path, values)
    assert [what for what in SEEN if what not in text] == []
    assert [line for line in text.splitlines() if RAW in line] == []
    assert ("hash:" in text) is (values == "hash")


def test_in_plain_the_same_search_finds_the_keys(tmp_path: Path) -> None:
    text = everything(tmp_path, "plain")
    for value in ("A", "T", "victim", "task", "left-behind", "candidate"):
        assert f"{RAW}-{value}" in text
    assert f"{RAW}-token" not in text  # the dispatcher's secret, whatever the setting
    metrics = (tmp_path / "metrics.json").read_text()
    assert "otelctx.mismatches" in metrics
    assert RAW not in metrics


@pytest.mark.parametrize("values", ["plain", "hash", "omit"])
def test_a_mismatch_is_as_it_is_in_process_and_pickled_as_the_setting_allows(values: str, install: Install) -> None:
    install(telemetry={"values": values})
    mismatch = Mismatch("session", "foreign", "raw-key-1", None, "env:APP_KEY", "raised", detail="why")
    assert copy.copy(mismatch) is copy.deepcopy(mismatch) is mismatch
    error = MismatchError(mismatch)
    text = f"{error} {error!r} {error.args} {mismatch} {mismatch!r}"
    pickled = pickle.dumps(error)
    assert (RAW in text) is (RAW.encode() in pickled) is (values == "plain")
    read = pickle.loads(pickled).mismatch
    assert (read.key, read.reason, read.observed, read.detail) == ("session", "foreign", None, "why")
    assert (read == mismatch) is (values == "plain")
    assert mismatch.expected == "raw-key-1"


def test_of_what_a_task_queue_keeps_of_a_refusal_an_error_can_be_made_again(install: Install) -> None:
    install(telemetry={"values": "hash"})
    error = MismatchError(Mismatch("session", "foreign", "raw-key-1", "raw-key-2", "env:APP_KEY", "raised"))
    kept = [repr(argument) for argument in error.args]  # as Celery does for its results
    assert RAW not in f"{kept}"
    again = type(error)(*kept)  # type: ignore[arg-type]
    assert str(again) == str(pickle.loads(pickle.dumps(again))) == kept[0]


@pytest.mark.parametrize("values", ["plain", "hash", "omit"])
def test_a_refusal_is_stored_as_the_setting_allows_by_serializers_that_ask_for_its_state(
    values: str, install: Install
) -> None:
    install(telemetry={"values": values})
    error = MismatchError(Mismatch("session", "foreign", "raw-key-1", None, "env:APP_KEY", "raised"))
    state = error.__getstate__()["mismatch"].__getstate__()  # type: ignore[index]  # an exception's is its dictionary
    assert (RAW in repr(state)) is (values == "plain")
    read, read_mismatch = MismatchError.__new__(MismatchError), Mismatch.__new__(Mismatch)
    read_mismatch.__setstate__(state)  # type: ignore[attr-defined]
    read.__setstate__({"mismatch": read_mismatch})
    assert str(read) == str(error)


def test_a_claims_repr_never_has_its_token(install: Install) -> None:
    install()
    assert repr(otelctx.Claim("t1", token="raw-key")) == (
        "Claim(task_id='t1', holder=None, attempt=None, pid=None, token=…)"
    )
