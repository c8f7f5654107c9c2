"""The stack's files, as far as they can be held against the code without a server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
STACK = ROOT / "examples" / "production" / "stack"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DASHBOARD: dict[str, Any] = json.loads((STACK / "grafana" / "dashboards" / "otelctx.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((STACK / "rules" / "otelctx.yaml").read_text())["groups"]
    for rule in group["rules"]
]

EMIT = """
import json, sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
import otelctx
from otelctx import alerts, faults
from otelctx.mismatch import Mismatch
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
otelctx.install(spans="always")
from concurrent.futures import ThreadPoolExecutor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry import trace
trace.set_tracer_provider(TracerProvider())
with trace.get_tracer("x").start_as_current_span("x"), otelctx.bind(session="A"), ThreadPoolExecutor(1) as pool:
    pool.submit(len, "").result()
alerts.deliver(Mismatch("session", "lost", "A", None, None, "observed", "executor"))
faults.internal_error("test")
found = {}
for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
    for point in metric.data.data_points:
        kind = "histogram" if hasattr(point, "bucket_counts") else "counter"
        found.setdefault(metric.name, [kind, metric.unit, []])[2].extend(point.attributes)
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """The names that Prometheus gives to the series that otelctx really emits, with the labels of each."""
    done = subprocess.run([sys.executable, "-c", EMIT], capture_output=True, text=True, timeout=50, check=True)
    found: dict[str, set[str]] = {}
    for name, (kind, unit, attributes) in json.loads(done.stdout).items():
        labels = {re.sub(r"\W", "_", attribute) for attribute in attributes} | {"job"}
        base = name.replace(".", "_") + {"s": "_seconds"}.get(unit, "")
        if kind == "histogram":
            found |= {f"{base}_bucket": {*labels, "le"}, f"{base}_count": labels, f"{base}_sum": labels}
        else:
            found[f"{base}_total"] = labels
    return found


def queries() -> list[tuple[str, str]]:
    """Each query of the dashboard and of the rules, with what it is of."""
    panels = [
        (panel["title"], target["expr"])
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
        if "expr" in target
    ]
    variables = [
        (one["name"], one["query"]["query"]) for one in DASHBOARD["templating"]["list"] if one["type"] == "query"
    ]
    return [*panels, *variables, *((rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES)]


@pytest.mark.parametrize("of, query", queries(), ids=[of for of, _ in queries()])
def test_every_name_in_a_query_is_one_that_the_code_emits(series: dict[str, set[str]], of: str, query: str) -> None:
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    metrics = set(re.findall(r"\botelctx_\w+(?:_total|_bucket|_count|_sum)\b", query))
    metrics_recorded = set(re.findall(r"\botelctx:\w+:\w+\b", query))
    assert metrics or metrics_recorded
    assert metrics <= set(series)
    assert metrics_recorded <= recorded
    known = set().union(*(series[name] for name in metrics)) if metrics else series["otelctx_mismatches_total"]
    labels = set(re.findall(r"\b(otelctx_\w+)\b", query)) - set(series)
    assert labels <= known


def test_every_metric_is_on_the_dashboard(series: dict[str, set[str]]) -> None:
    shown = " ".join(query for _, query in queries())
    for name in (
        "otelctx_mismatches_total",
        "otelctx_hops_total",
        "otelctx_hop_wait_seconds_bucket",
        "otelctx_internal_errors_total",
    ):
        assert name in series
        assert name in shown


def test_every_reason_and_action_has_a_rule_or_a_panel_that_shows_it() -> None:
    from typing import get_args

    from otelctx.mismatch import Action, Reason

    rules = " ".join(rule["expr"] for rule in RULES)
    for word in (*get_args(Reason), *get_args(Action)):
        if word != "dropped":  # what was not believed is `forged`
            assert word in rules, word


def test_every_rule_leads_to_a_heading_of_the_runbook() -> None:
    headings = {
        line.lstrip("# ").lower().replace(" ", "-")
        for line in (ROOT / "docs" / "runbook.md").read_text().splitlines()
        if line.startswith("## ")
    }
    for rule in RULES:
        if "alert" in rule:
            file, _, anchor = rule["annotations"]["runbook"].partition("#")
            assert file == "docs/runbook.md"
            assert anchor in headings, rule["alert"]


def test_every_reason_has_a_heading_in_the_runbook() -> None:
    from typing import get_args

    from otelctx.mismatch import Reason

    runbook = (ROOT / "docs" / "runbook.md").read_text()
    for reason in get_args(Reason):
        assert f"\n## {reason}\n" in runbook


def test_every_alert_has_a_test_that_sees_it_fire() -> None:
    tested = yaml.safe_load((STACK / "rules" / "otelctx_test.yaml").read_text())["tests"]
    fired = {one["alertname"] for test in tested for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert fired == {rule["alert"] for rule in RULES if "alert" in rule}


def test_every_port_is_of_this_machine_alone() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_image_has_a_version() -> None:
    for name, service in SERVICES.items():
        if "build" in service:
            dockerfile = (ROOT / service["build"]["dockerfile"]).read_text()
            images = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
        else:
            images = [service["image"]]
        for image in images:
            assert re.search(r":v?\d+\.\d+\.\d+", image), (name, image)


def test_every_service_is_watched() -> None:
    watched = {name for name, service in SERVICES.items() if "healthcheck" in service}
    checked_by_another = {"collector", "jaeger"}
    check = " ".join(SERVICES["ready"]["healthcheck"]["test"])
    assert all(f"//{name}:" in check for name in checked_by_another)
    assert set(SERVICES) - watched - checked_by_another == {"traffic"}


def test_no_service_has_a_password_at_its_default() -> None:
    written = (ROOT / "docker-compose.yml").read_text()
    assert "PASSWORD" not in written
    grafana = SERVICES["grafana"]["environment"]
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_every_file_that_is_mounted_or_built_is_there() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).exists(), source
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_the_collector_keeps_every_trace_with_an_alert() -> None:
    from otelctx import alert_span

    collector = yaml.safe_load((STACK / "collector.yaml").read_text())
    assert list(collector["service"]["pipelines"]["traces"]["processors"])[1] == "tail_sampling"
    policies = {policy["name"]: policy for policy in collector["processors"]["tail_sampling"]["policies"]}
    assert policies["mismatches"]["boolean_attribute"] == {"key": "otelctx.mismatch", "value": True}
    assert "otelctx.mismatch" in Path(alert_span.__file__).read_text()


def test_every_component_of_the_collector_is_configured_and_used() -> None:
    collector = yaml.safe_load((STACK / "collector.yaml").read_text())
    for kind in ("receivers", "processors", "exporters"):
        used = {name for pipeline in collector["service"]["pipelines"].values() for name in pipeline[kind]}
        assert used == set(collector[kind])
    assert collector["service"]["extensions"] == list(collector["extensions"])


def test_services_meet_where_they_look_for_each_other() -> None:
    names = "|".join(SERVICES)
    texts = [(ROOT / "docker-compose.yml").read_text()]
    texts += [path.read_text() for path in STACK.rglob("*.yaml") if "rules" not in path.parts]
    hosts = {host for text in texts for host in re.findall(r"(?:http://|\[|endpoint: )([a-z]+):\d+", text)}
    assert hosts - {"localhost"} <= set(names.split("|"))


def test_every_panel_asks_a_data_source_that_is_provisioned() -> None:
    sources = yaml.safe_load((STACK / "grafana" / "datasources" / "otelctx.yaml").read_text())["datasources"]
    known = {(source["type"], source["uid"]) for source in sources}
    asked = [panel["datasource"] for panel in DASHBOARD["panels"]]
    asked += [target["datasource"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert {(source["type"], source["uid"]) for source in asked} <= known
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)


def test_every_variable_of_a_query_is_declared() -> None:
    declared = {one["name"] for one in DASHBOARD["templating"]["list"]}
    built_in = {"__range", "__rate_interval"}
    used = set(re.findall(r"\$(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used <= declared | built_in
    assert declared <= used
