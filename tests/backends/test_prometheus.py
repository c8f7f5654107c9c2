"""From a misroute in a real process to the page: scraped or pushed metrics, the stack's own rules, Alertmanager."""

from __future__ import annotations

import json
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.backends.conftest import STACK, eventually, free_port, get, running, server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OBSERVE = {
    "OTELCTX_ENABLED": "true",
    "OTELCTX_MODE": "observe",
    "OTELCTX_KEYS__SESSION__SOURCES": '[{contextvar="__main__:SESSION"}, {env="APP_SESSION_KEY"}]',
    "OTEL_SERVICE_NAME": "gateway",
}

OTLP = "--web.enable-otlp-receiver"


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """In place of a pager: an address, and what was sent there (path and alert)."""
    received: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.extend((self.path, alert) for alert in message["alerts"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}", received
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


@contextmanager
def alertmanager(programs: Path, folder: Path, pager: str) -> Iterator[str]:
    """An Alertmanager with the stack's configuration, but for where it pages and how long it waits before."""
    written = (STACK / "alertmanager.yaml").read_text()
    assert "http://pager:8080" in written
    assert "group_wait: 10s" in written
    settings = folder / "alertmanager.yaml"
    settings.write_text(written.replace("http://pager:8080", pager).replace("group_wait: 10s", "group_wait: 1s"))
    address = f"127.0.0.1:{free_port()}"
    # It reads its templates from where Debian installs them; it is not installed, and sees them there all the same.
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" /usr/share && exec "$@"']
    command += [str(programs.parent / "share"), str(programs / "prometheus-alertmanager"), f"--config.file={settings}"]
    command += [f"--storage.path={folder / 'alertmanager'}", f"--web.listen-address={address}"]
    command += ["--cluster.listen-address="]
    with server(command, f"http://{address}/-/ready"):
        yield address


@contextmanager
def prometheus(programs: Path, folder: Path, alertmanager: str, target: str | None) -> Iterator[str]:
    """A Prometheus with the stack's rules, which scrapes `target` (None: nothing) and takes OTLP."""
    scraped = [{"job_name": "gateway", "static_configs": [{"targets": [target]}]}] if target else []
    settings = folder / "prometheus.yaml"
    settings.write_text(
        json.dumps(  # which is YAML as well
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(STACK / "rules" / "otelctx.yaml")],
                "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
                "scrape_configs": scraped,
            }
        )
    )
    address = f"127.0.0.1:{free_port()}"
    command = [str(programs / "prometheus"), f"--config.file={settings}", f"--web.listen-address={address}"]
    command += [f"--storage.tsdb.path={folder / 'prometheus'}", *([OTLP] if target is None else [])]
    with server(command, f"http://{address}/-/ready"):
        yield f"http://{address}"


def queried(address: str, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get(f"{address}/api/v1/query?query={quote(query)}")["data"]["result"]
    return found


def test_a_misroute_that_is_scraped_fires_the_rule_and_reaches_the_pager(
    programs: Path, application: Path, tmp_path: Path
) -> None:
    with receiver() as (pager, received), alertmanager(programs, tmp_path, pager) as manager:
        with running(application, "misrouting_app.py", {**OBSERVE, "APP_METRICS": "scraped"}) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            assert process.stdout.readline() == "10 of 20 went astray\n"
            with prometheus(programs, tmp_path, manager, f"127.0.0.1:{port}") as address:
                (counted,) = eventually(
                    lambda: queried(address, 'otelctx_mismatches_total{otelctx_mismatch_reason="foreign"}'), "scraped"
                )
                assert counted["metric"]["otelctx_key"] == "session"
                assert counted["metric"]["otelctx_mismatch_action"] == "observed"
                assert counted["metric"]["otelctx_hop_kind"] == "executor"
                assert counted["value"][1] == "10"
                path, alert = eventually(
                    lambda: [
                        (path, alert) for path, alert in received if alert["labels"]["alertname"] == "OtelctxMisrouted"
                    ],
                    "the page",
                )[0]
                assert path == "/page"
                assert alert["status"] == "firing"
                assert alert["labels"]["severity"] == "critical"
                assert alert["labels"]["otelctx_mismatch_reason"] == "foreign"
                assert alert["annotations"]["summary"] == "gateway: work ran with session of somebody else (foreign)"
                # Keys are in no label: they may be personal data, and there are as many as sessions.
                every = quote('{__name__=~".+"}')
                everything = json.dumps(get(f"{address}/api/v1/series?match[]={every}"))
                assert "slack:ops" not in everything
                assert "telegram:family" not in everything


def test_in_repair_nobody_is_paged(programs: Path, application: Path, tmp_path: Path) -> None:
    repair = {**OBSERVE, "OTELCTX_MODE": "repair", "APP_METRICS": "scraped"}
    with receiver() as (pager, received), alertmanager(programs, tmp_path, pager) as manager:
        with running(application, "misrouting_app.py", repair) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            assert process.stdout.readline() == "0 of 20 went astray\n"
            with prometheus(programs, tmp_path, manager, f"127.0.0.1:{port}") as address:
                carried = 'otelctx_hops_total{otelctx_hop_kind="executor", otelctx_hop_outcome="carried"} == 20'
                eventually(lambda: queried(address, carried), "the hops")
                # The rules have been evaluated since.
                group = eventually(
                    lambda: [
                        group
                        for group in get(f"{address}/api/v1/rules")["data"]["groups"]
                        if not group["lastEvaluation"].startswith("0001")
                    ],
                    "an evaluation",
                )[0]
                firing = {rule["name"] for rule in group["rules"] if rule.get("alerts")}
                assert firing == set()
    assert received == []


def test_metrics_that_are_pushed_by_otlp_have_the_same_names(programs: Path, application: Path, tmp_path: Path) -> None:
    usage = subprocess.run([str(programs / "prometheus"), "--help"], capture_output=True, text=True, check=False)
    if OTLP not in usage.stdout + usage.stderr:
        pytest.skip("this Prometheus, Debian's, is built without the OTLP receiver")
    with prometheus(programs, tmp_path, "127.0.0.1:9", None) as address:
        pushed = {
            **OBSERVE,
            "APP_METRICS": "pushed",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{address}/api/v1/otlp/v1/metrics",
        }
        with running(application, "misrouting_app.py", pushed) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "10 of 20 went astray\n"
            (counted,) = eventually(
                lambda: queried(address, 'otelctx_mismatches_total{job="gateway", otelctx_mismatch_reason="foreign"}'),
                "pushed",
            )
            assert counted["value"][1] == "10"
            eventually(lambda: queried(address, 'otelctx_hops_total{otelctx_hop_kind="executor"}'), "the hops")
            waits = 'otelctx_hop_wait_seconds_bucket{job="gateway", otelctx_hop_kind="executor", le="+Inf"}'
            eventually(lambda: queried(address, waits), "the waits")


@pytest.mark.parametrize("what", ["rules", "config"])
def test_promtool_finds_nothing_wrong(programs: Path, what: str) -> None:
    file = STACK / ("rules/otelctx.yaml" if what == "rules" else "prometheus.yaml")
    done = subprocess.run(
        [str(programs / "promtool"), "check", what, "--lint=all", "--lint-fatal", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_rule_does_what_its_test_says(programs: Path) -> None:
    done = subprocess.run(
        [str(programs / "promtool"), "test", "rules", "otelctx_test.yaml"],
        cwd=STACK / "rules",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_amtool_finds_nothing_wrong(programs: Path) -> None:
    done = subprocess.run(
        [str(programs / "amtool"), "check-config", str(STACK / "alertmanager.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_docker_compose_reads_the_stack(programs: Path) -> None:
    done = subprocess.run(
        [str(programs / "docker-compose"), "-f", str(STACK.parents[2] / "docker-compose.yml"), "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
