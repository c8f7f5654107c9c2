"""How otelctx gets into processes in production: injected by the operator, and in gunicorn's workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.backends.conftest import eventually, free_port, server
from tests.environments import environment

PRODUCTION = Path(__file__).parents[2] / "examples" / "production"

ASK = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
SESSION = ContextVar("SESSION")
SESSION.set("slack:ops")
with ThreadPoolExecutor(1) as pool:
    print(json.dumps(pool.submit(SESSION.get, None).result()))
"""


def test_the_operator_s_injection_is_enough(tmp_path: Path, wheel: Path) -> None:
    """The operator copies a directory into the pod, and puts it on PYTHONPATH: no `.pth` file of it is ever read."""
    injected = tmp_path / "otel-auto-instrumentation-python"
    command = ["uv", "pip", "install", "--quiet", "--python", sys.executable, "--target", str(injected)]
    subprocess.run([*command, f"{wheel}[otlp]"], check=True, timeout=300)
    first = injected / "opentelemetry" / "instrumentation" / "auto_instrumentation"
    plain = tmp_path / "plain"
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, str(plain)], check=True, timeout=60)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "PYTHON"))}
    environ |= {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
    environ |= {"OTELCTX_KEYS__SESSION__SOURCES": '[{contextvar="__main__:SESSION"}]'}

    def said(**variables: str) -> object:
        done = subprocess.run(
            [str(plain / "bin" / "python"), "-c", ASK],
            env={**environ, "PYTHONPATH": f"{first}:{injected}", **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stderr == ""
        return json.loads(done.stdout)

    assert said() == "slack:ops"
    assert said(OTELCTX_ENABLED="false") is None
    assert said(OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="otelctx") is None
    assert said(PYTHONPATH="") is None


APPLICATION = """
import json, os
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from opentelemetry import trace

SESSION = ContextVar("SESSION")
pool = ThreadPoolExecutor(1)


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    SESSION.set(scope["path"])
    with trace.get_tracer("app").start_as_current_span("request") as span:
        seen = pool.submit(SESSION.get, None).result()
    said = {"pid": os.getpid(), "seen": seen}
    if hasattr(span, "resource"):  # the SDK's
        said["instance"] = span.resource.attributes.get("service.instance.id")
        said["session"] = span.attributes.get("session.id")
    body = json.dumps(said)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body.encode()})
"""


def test_gunicorn_s_workers_have_the_sdk_and_otelctx(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, wheel: Path
) -> None:
    requirements = ("gunicorn>=22", "uvicorn>=0.30", "uvicorn-worker>=0.3", "opentelemetry-distro>=0.58b0")
    python = environment(tmp_path_factory.mktemp("gunicorn"), *requirements, wheel=wheel)
    (tmp_path / "served_app.py").write_text(APPLICATION)
    address = f"127.0.0.1:{free_port()}"
    command = [str(python), "-m", "gunicorn", "-c", str(PRODUCTION / "gunicorn" / "gunicorn.conf.py")]
    variables = {
        "OTELCTX_ENABLED": "true",
        "OTELCTX_KEYS__SESSION__SOURCES": '[{contextvar="served_app:SESSION"}]',
        **{f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")},
    }
    seen: dict[int, str] = {}

    def both_have_answered() -> bool:
        with urllib.request.urlopen(f"http://{address}/slack-{len(seen)}", timeout=10) as answer:
            said = json.loads(answer.read())
        assert said["seen"] == said["session"] == f"/slack-{len(seen)}"
        seen[said["pid"]] = said["instance"]
        return len(seen) == 2

    with server(
        [*command, "--chdir", str(tmp_path), "--bind", address, "served_app:app"], f"http://{address}/", variables
    ):
        eventually(both_have_answered, "an answer of each worker")
    for pid, instance in seen.items():
        assert instance.endswith(f"-{pid}")
