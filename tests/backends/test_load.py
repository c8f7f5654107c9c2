"""A steady load through the example gateway, with its backend away in the middle."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.backends.conftest import Phoenix, free_port, server
from tests.environments import environment

if TYPE_CHECKING:
    from collections.abc import Iterator

GATEWAY = Path(__file__).parents[2] / "examples" / "gateway"
SECONDS = float(os.environ.get("OTELCTX_LOAD_SECONDS", "60"))
RATE = 220.0
AT_LEAST = 200.0


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The interpreter of an environment that has all that the gateway and the load need."""
    requirements = ("aiohttp>=3.9", "httpx>=0.27", "starlette>=0.40", "uvicorn>=0.30")
    exporters = ("opentelemetry-exporter-otlp>=1.37,<2", "opentelemetry-exporter-otlp-json-file>=0.64b0")
    return environment(tmp_path_factory.mktemp("load"), *requirements, *exporters, wheel=wheel)


def test_no_request_and_no_alert_is_lost_while_the_backend_is_away(
    python: Path, phoenix_python: Path, tmp_path: Path
) -> None:
    phoenix = Phoenix(phoenix_python, tmp_path)
    address = f"http://127.0.0.1:{(port := free_port())}"
    log = tmp_path / "gateway.log"
    variables = {
        "PYTHONPATH": str(GATEWAY),
        "GATEWAY_TELEMETRY_DIR": str(tmp_path),
        "OTELCTX_ENABLED": "true",
        "OTELCTX_CONFIG": str(GATEWAY / "otelctx.toml"),
        "OTELCTX_MODE": "observe",
        "OTELCTX_ALERTS__PER_MINUTE": "1000000",
        "OTEL_SERVICE_NAME": "gateway",
        "OTEL_EXPORTER_OTLP_ENDPOINT": phoenix.http,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "3",
        "OTEL_METRICS_EXPORTER": "none",
    }
    command = [str(python), "-m", "gateway", "--port", str(port)]
    with server(command, f"{address}/health", variables, log):
        with phoenix.running():
            load = subprocess.Popen(
                [str(python), str(Path(__file__).with_name("load.py")), address, str(RATE), str(SECONDS)],
                stdout=subprocess.PIPE,
                text=True,
            )
            with pytest.raises(subprocess.TimeoutExpired):
                load.wait(SECONDS / 3)
        with pytest.raises(subprocess.TimeoutExpired):  # the backend is away
            load.wait(SECONDS / 3)
        with phoenix.running():
            output, _ = load.communicate(timeout=SECONDS + 60)
            assert load.returncode == 0
            done = json.loads(output)
            print(done["answered"], "requests in", done["seconds"], "s", file=sys.stderr)
    assert done["failed"] == []
    assert done["answered"] == 2 * round(RATE * SECONDS / 2)
    assert done["answered"] / done["seconds"] >= AT_LEAST

    told = len(re.findall(r"WARNING otelctx: otelctx: session is another's ", log.read_text(errors="replace")))
    assert told == sum(counted(tmp_path / "metrics.jsonl"))
    assert told > 10  # as often as the other channel's turn began in between


def counted(file: Path) -> Iterator[int]:
    """How many mismatches the counter has, for each series of reason `foreign`: its last point, which is the total."""
    last: dict[str, int] = {}
    for line in file.read_text().splitlines():
        for resource in json.loads(line)["resourceMetrics"]:
            for scope in resource["scopeMetrics"]:
                for metric in scope["metrics"]:
                    if metric["name"] == "otelctx.mismatches":
                        for point in metric["sum"]["dataPoints"]:
                            if '"foreign"' in (series := json.dumps(point["attributes"])):
                                last[series] = int(point["asInt"])
    yield from last.values()
