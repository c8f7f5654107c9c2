"""`otelctx doctor`: what it finds right, and what it finds wrong."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCTOR = (sys.executable, "-c", "from otelctx.cli import main; main()", "doctor")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An application's directory, which is the current one."""
    (tmp_path / "doctor_app.py").write_text(
        "from contextvars import ContextVar\nSESSION = ContextVar('SESSION')\ndef key(): return 'secret-key-1'\n"
    )
    return tmp_path


def doctor(project: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTELCTX_", "OTEL_"))}
    return subprocess.run(
        [*DOCTOR, *arguments],
        cwd=project,
        env={**clean, "OTELCTX_ENABLED": "true", **environ},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=50,
        check=False,
    )


def examined(project: Path, *arguments: str, **environ: str) -> dict[str, Any]:
    done = doctor(project, "--json", *arguments, **environ)
    assert done.stderr == ""
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if report["problems"] else 0)
    return report


def sources(text: str) -> dict[str, str]:
    return {"OTELCTX_KEYS__SESSION__SOURCES": text}


def test_nothing_is_wrong_in_this_environment(project: Path) -> None:
    report = examined(project)
    assert report["problems"] == []
    assert report["enabled"] is True
    assert report["versions"]["wrapt"]
    assert {hop["name"] for hop in report["hops"] if hop["carried"]} >= {"Thread.start", "ThreadPoolExecutor.submit"}


def test_it_says_so_in_words(project: Path) -> None:
    done = doctor(project)
    assert done.returncode == 0
    assert "nothing is wrong" in done.stdout
    assert "threading.Thread.start" in done.stdout


def test_a_package_that_is_in_no_site_packages_is_a_problem(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An interpreter that reads no .pth file, as none is read that lies in a directory of PYTHONPATH.
    program = project / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    program.chmod(0o755)
    monkeypatch.setitem(
        globals(),
        "DOCTOR",
        (*DOCTOR[:2], f"import sys; sys.executable = {str(program)!r}; from otelctx.cli import main; main()", "doctor"),
    )
    operators = "/autoinstrumentation/opentelemetry/instrumentation/auto_instrumentation"
    assert examined(project, PYTHONPATH=operators)["problems"] == []
    (problem,) = examined(project)["problems"]
    assert problem.startswith(
        "OTELCTX_ENABLED has no effect here: otelctx.pth is not in this environment's site-packages"
    )


def test_a_wrong_setting_is_a_problem_with_its_place(project: Path) -> None:
    done = doctor(project, OTELCTX_MOD="observe")
    assert done.returncode == 1
    assert "• OTELCTX_MOD: unknown name; did you mean OTELCTX_MODE?" in done.stdout


def test_in_observe_nothing_is_carried_and_nothing_is_wrong(project: Path) -> None:
    report = examined(project, OTELCTX_MODE="observe")
    assert report["problems"] == []
    assert report["hops"] == []


def test_sources_are_found_and_their_values_are_not_shown(project: Path) -> None:
    declared = sources(
        '[{contextvar="doctor_app:SESSION"}, {getter="doctor_app:key"}, {env="DOCTOR_KEY"}, {env="DOCTOR_UNSET"}]'
    )
    environ = {**declared, "DOCTOR_KEY": "secret-key-2"}
    report = examined(project, "--module", "doctor_app", **environ)
    assert [(found["source"], found["state"]) for found in report["sources"]] == [
        ("contextvar:doctor_app:SESSION", "absent"),
        ("getter:doctor_app:key", "value"),
        ("env:DOCTOR_KEY", "value"),
        ("env:DOCTOR_UNSET", "absent"),
    ]
    assert "secret-key" not in json.dumps(report)
    assert "secret-key" not in doctor(project, "--module", "doctor_app", **environ).stdout


def test_keys_without_a_source_are_worth_a_note(project: Path) -> None:
    note = "no key has a source: what travels is what otelctx.bind binds, and nothing else"
    assert note in examined(project)["notes"]
    assert note not in examined(project, **sources('[{env = "DOCTOR_KEY"}]'))["notes"]


def test_a_source_whose_module_nothing_imports_is_no_problem_yet(project: Path) -> None:
    report = examined(project, PYTHONPATH=str(project), **sources('[{contextvar="doctor_app:SESSION"}]'))
    assert report["problems"] == []
    assert report["sources"][0]["state"] == "not imported"


@pytest.mark.parametrize(
    "path, why",
    [
        ("doctor_app:SESION", "has no attribute 'SESION'"),
        ("doctor_app:key", "is a function, not a ContextVar"),
        ("doctor_gone:SESSION", "there is no module doctor_gone"),
    ],
)
def test_a_source_that_is_not_there_is_a_problem(project: Path, path: str, why: str) -> None:
    report = examined(project, "--module", "doctor_app", **sources(f'[{{contextvar="{path}"}}]'))
    assert any(path in problem and why in problem for problem in report["problems"]), report["problems"]
    assert report["sources"][0]["state"] == "not there"


def test_a_module_that_cannot_be_imported_is_a_problem(project: Path) -> None:
    (project / "broken_app.py").write_text("raise RuntimeError('no database')\n")
    report = examined(project, "--module", "broken_app:app")
    assert report["problems"] == ["--module broken_app: cannot be imported: RuntimeError: no database"]


def test_a_module_that_ends_the_process_is_a_problem(project: Path) -> None:
    (project / "ending_app.py").write_text("raise SystemExit(3)\n")
    assert "SystemExit: 3" in examined(project, "--module", "ending_app")["problems"][0]


def test_whoever_has_wrapped_a_hop_since_is_named_in_order(project: Path) -> None:
    (project / "wrapping_app.py").write_text(
        "import threading, functools\n"
        "original = threading.Thread.start\n"
        "@functools.wraps(original)\n"
        "def start(self): return original(self)\n"
        "threading.Thread.start = start\n"
    )
    report = examined(project, "--module", "wrapping_app")
    layers = {f"{one['module']}.{one['attribute']}": one["layers"] for one in report["patches"]}
    assert layers["threading.Thread.start"] == ["wrapping_app", "otelctx", "threading"]
    assert report["problems"] == []


def test_a_hop_that_does_not_carry_any_more_is_a_problem(project: Path) -> None:
    (project / "replacing_app.py").write_text(
        "import threading, contextvars\n"
        "start = threading.Thread.start\n"
        "def replaced(self): return contextvars.Context().run(start, self)\n"
        "threading.Thread.start = replaced\n"
    )
    problems = examined(project, "--module", "replacing_app")["problems"]
    assert "Thread.start does not carry the key: the work saw nothing" in problems


def test_a_declared_runner_that_is_not_there_is_a_problem(project: Path) -> None:
    problems = examined(project, "--module", "doctor_app", OTELCTX_CRON__RUNNERS="doctor_app:tick")["problems"]
    assert any("doctor_app:tick is declared, and is not there" in problem for problem in problems)


DECLARED = {
    "cron.runners": "OTELCTX_CRON__RUNNERS",
    "dispatch.spawners": "OTELCTX_DISPATCH__SPAWNERS",
    "queues.adopt": "OTELCTX_QUEUES__ADOPT",
    "claim.predicate": "OTELCTX_CLAIM__PREDICATE",
    "threads.service": "OTELCTX_THREADS__SERVICE",
}


def test_what_is_declared_in_a_module_that_does_not_exist_is_a_problem(project: Path) -> None:
    problems = examined(project, **dict.fromkeys(DECLARED.values(), "doctr_app:tick"))["problems"]
    why = "doctr_app:tick is not there: there is no module doctr_app in this environment"
    assert problems == [f"{setting}: {why}" for setting in DECLARED]
    there = dict.fromkeys(DECLARED.values(), "doctor_app:key")
    assert examined(project, PYTHONPATH=str(project), **there)["problems"] == []


def test_a_function_that_its_module_does_not_have_is_a_problem(project: Path) -> None:
    declared = dict.fromkeys((DECLARED["claim.predicate"], DECLARED["threads.service"]), "doctor_app:kay")
    problems = examined(project, "--module", "doctor_app", **declared)["problems"]
    why = "doctor_app:kay is not there: module 'doctor_app' has no attribute 'kay'; did you mean 'key'?"
    assert problems == [f"claim.predicate: {why}", f"threads.service: {why}"]


def test_a_service_threads_own_name_and_a_glob_are_no_functions(project: Path) -> None:
    declared = "mem-sync*,json,doctor_app:Poller.*,doctor_app:make.<locals>.poll,doctor_app:key"
    assert examined(project, "--module", "doctor_app", OTELCTX_THREADS__SERVICE=declared)["problems"] == []


def test_a_version_that_does_not_fit_is_a_problem(project: Path) -> None:
    info = project / "site" / "opentelemetry_instrumentation_doctor-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: opentelemetry-instrumentation-doctor\nVersion: 1.0\n"
        "Requires-Dist: wrapt<1\nRequires-Dist: doctor-no-such\nRequires-Dist: never; extra == 'instruments'\n"
    )
    problems = examined(project, PYTHONPATH=str(project / "site"))["problems"]
    assert any("1.0 needs wrapt<1, and" in problem for problem in problems)
    assert "opentelemetry-instrumentation-doctor 1.0 needs doctor-no-such, which is not installed" in problems
    assert len(problems) == 2


def test_a_logger_that_is_off_is_a_problem(project: Path) -> None:
    (project / "quiet_app.py").write_text("import logging\nlogging.getLogger('otelctx').disabled = True\n")
    assert "the logger otelctx is off" in examined(project, "--module", "quiet_app")["problems"][0]


@contextmanager
def collector(status: int) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """An HTTP endpoint that answers every request with `status`, and what it was asked."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append((self.path, self.headers.get("authorization")))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_endpoint_that_takes_what_is_sent_answers(project: Path) -> None:
    with collector(200) as (url, asked):
        report = examined(
            project,
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20x",
        )
    assert report["problems"] == []
    assert asked == [(f"/v1/{signal}", "Bearer x") for signal in ("traces", "metrics", "logs")]


@pytest.mark.parametrize("status", [401, 404, 503])
def test_an_endpoint_that_refuses_is_a_problem(project: Path, status: int) -> None:
    with collector(status) as (url, _):
        report = examined(
            project, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{url}/x", OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf"
        )
    assert len(report["problems"]) == 1
    assert f"traces: {url}/x does not answer: refuses what is sent: HTTP {status}" in report["problems"][0]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_an_endpoint_where_nobody_listens_is_a_problem_that_names_no_password(project: Path, protocol: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://me:hidden@127.0.0.1:{port}"}
    report = examined(project, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, **environ)
    assert len(report["problems"]) == 3
    assert "hidden" not in json.dumps(report)


def test_a_port_that_accepts_answers_to_grpc(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        report = examined(project, OTEL_EXPORTER_OTLP_ENDPOINT=url)
    assert report["problems"] == []
    assert [one["detail"] for one in report["exporters"]] == ["accepts connections"] * 3


def test_a_test_alert_reaches_the_span_the_log_and_the_callbacks(project: Path) -> None:
    (project / "traced_app.py").write_text(
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor\n"
        "import sys\n"
        "provider = TracerProvider()\n"
        "provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=open('spans.json', 'w'))))\n"
        "trace.set_tracer_provider(provider)\n"
    )
    report = examined(project, "--module", "traced_app", "--test-alert")
    assert report["problems"] == []
    span = json.loads((project / "spans.json").read_text())
    assert span["name"] == "otelctx doctor"
    assert span["attributes"]["otelctx.mismatch"] is True
    assert span["events"][0]["attributes"]["otelctx.mismatch.expected"] == "otelctx-doctor"
    assert report["test_alert"]["span"] == f"trace {span['context']['trace_id'].removeprefix('0x')}"
    assert report["test_alert"]["log"] == "logger otelctx"
    assert report["test_alert"]["callbacks"] == "called"


def test_a_test_alert_without_an_sdk_reaches_the_log(project: Path) -> None:
    report = examined(project, "--test-alert", OTEL_SDK_DISABLED="true")
    assert report["test_alert"]["log"] == "logger otelctx"
    assert report["test_alert"]["span"].startswith("nowhere")


def test_nothing_of_an_alert_is_sent_unasked(project: Path) -> None:
    assert examined(project)["test_alert"] is None


def test_a_test_alert_is_sent_where_the_environment_says(project: Path) -> None:
    (project / "to_file-1.dist-info").mkdir()
    (project / "to_file-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: to-file\nVersion: 1\n")
    (project / "to_file-1.dist-info" / "entry_points.txt").write_text(
        "[opentelemetry_traces_exporter]\notlp_proto_grpc = to_file:Exporter\n"
    )
    (project / "to_file.py").write_text(
        "from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult\n"
        "class Exporter(SpanExporter):\n"
        "    def export(self, spans):\n"
        "        with open('spans.json', 'a') as file:\n"
        "            file.writelines(span.to_json() for span in spans)\n"
        "        return SpanExportResult.SUCCESS\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "PYTHONPATH": str(project),
        }
        report = examined(project, "--test-alert", **environ)
    assert report["problems"] == []
    assert report["test_alert"]["span"].removeprefix("trace ") in (project / "spans.json").read_text()


def test_a_test_alert_that_an_exporter_could_not_send_is_a_problem(project: Path) -> None:
    (project / "traced_app.py").write_text(
        "import logging\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter\n"
        "class Refused(SpanExporter):\n"
        "    def export(self, spans):\n"
        "        logging.getLogger('opentelemetry.exporter.any').error('Failed to export: %s', 'refused')\n"
        "provider = TracerProvider()\n"
        "provider.add_span_processor(BatchSpanProcessor(Refused()))\n"
        "trace.set_tracer_provider(provider)\n"
    )
    done = doctor(project, "--json", "--module", "traced_app", "--test-alert")
    problems = json.loads(done.stdout)["problems"]
    assert len(problems) == 1
    assert problems[0].startswith("test alert: span: trace ")
    assert problems[0].endswith("but it was not sent: Failed to export: refused")


def test_a_test_alert_with_an_exporter_that_is_not_installed_is_a_problem(project: Path) -> None:
    report = examined(project, "--test-alert", OTEL_TRACES_EXPORTER="nobodys")
    assert len(report["problems"]) == 1
    assert "test alert: span: nowhere: the SDK cannot be set up as the environment says" in report["problems"][0]


def test_what_auto_instrumentation_sends_by_default_is_examined(project: Path) -> None:
    auto = {"OTELCTX_AUTO_INSTRUMENT": "true", "OTELCTX_AUTO_INSTRUMENT_PROGRAMS": "another"}
    report = examined(project, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf", **auto)
    assert [one["endpoint"] for one in report["exporters"]] == [
        f"http://localhost:4318/v1/{signal}" for signal in ("traces", "metrics", "logs")
    ]
    assert len(report["problems"]) == sum(not one["answers"] for one in report["exporters"])


@pytest.mark.parametrize(("switch", "count"), [("true", 1), ("false", 0)])
def test_auto_instrumentation_without_a_distribution_is_a_problem(project: Path, switch: str, count: int) -> None:
    (project / "without.py").write_text(
        "from otelctx.cli.doctor import versions\n"
        "installed = versions.installed\n"
        "versions.installed = lambda: {n: v for n, v in installed().items() if n != 'opentelemetry-distro'}\n"
    )
    auto = {"OTELCTX_AUTO_INSTRUMENT": switch, "OTELCTX_AUTO_INSTRUMENT_PROGRAMS": "another"}
    report = examined(project, "--module", "without", **auto)
    assert [problem.partition(":")[0] for problem in report["problems"]] == [
        "OTELCTX_AUTO_INSTRUMENT needs opentelemetry-distro"
    ] * count
