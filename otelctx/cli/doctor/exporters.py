"""Whether what the environment names as the telemetry's destination answers, and takes what is sent.

Read from OpenTelemetry's own variables. An exporter that an application builds in code is not seen.
"""

import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from otelctx.cli.doctor.report import Exporter

PATIENCE: Final = 3.0
"""Seconds that an endpoint may take to answer."""

_SIGNALS: Final = {"traces": "v1/traces", "metrics": "v1/metrics", "logs": "v1/logs"}

_OTLP: Final = {"otlp", "otlp_proto_http", "otlp_proto_grpc"}


def configured(environ: Mapping[str, str] = os.environ, *, by_default: bool = False) -> Iterator[Exporter]:
    """Each signal that the environment sends by OTLP, and whether its endpoint answers.

    `by_default`: also those for which it names neither an exporter nor an endpoint, as auto-instrumentation does it.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return
    for signal, path in _SIGNALS.items():
        chosen = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip()
        if not (_is_otlp(chosen, signal, environ) or (by_default and not chosen)):
            continue
        protocol = _of(signal, "PROTOCOL", environ) or "grpc"
        if chosen in ("otlp_proto_http", "otlp_proto_grpc"):
            protocol = "grpc" if chosen == "otlp_proto_grpc" else "http/protobuf"
        yield _asked(signal, _endpoint(signal, path, protocol, environ), protocol, _headers(signal, environ))


def _is_otlp(chosen: str, signal: str, environ: Mapping[str, str]) -> bool:
    if chosen:
        return not _OTLP.isdisjoint(name.strip() for name in chosen.split(","))
    return bool(_of(signal, "ENDPOINT", environ))


def _of(signal: str, what: str, environ: Mapping[str, str]) -> str:
    own = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}", "").strip()
    return own or environ.get(f"OTEL_EXPORTER_OTLP_{what}", "").strip()


def _endpoint(signal: str, path: str, protocol: str, environ: Mapping[str, str]) -> str:
    own = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "").strip()
    common = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    if protocol == "grpc":
        return own or common or "http://localhost:4317"
    return own or f"{(common or 'http://localhost:4318').rstrip('/')}/{path}"


def _headers(signal: str, environ: Mapping[str, str]) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in _of(signal, "HEADERS", environ).split(",") if "=" in entry)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


def _asked(signal: str, endpoint: str, protocol: str, headers: Mapping[str, str]) -> Exporter:
    url = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}", scheme="http")
    shown = url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()  # who logs in is nobody's business here
    try:
        if protocol == "grpc":
            _connect(url)
            return Exporter(signal, shown, protocol, True, "accepts connections")
        return Exporter(signal, shown, protocol, *_post(endpoint, headers))
    except (OSError, ValueError) as exc:
        return Exporter(signal, shown, protocol, False, str(getattr(exc, "reason", None) or exc))


def _connect(url: SplitResult) -> None:
    port = url.port or (443 if url.scheme == "https" else 4317)
    with socket.create_connection((url.hostname or "localhost", port), timeout=PATIENCE):
        pass


def _post(endpoint: str, headers: Mapping[str, str]) -> tuple[bool, str]:
    """Send an export request with nothing in it, which is a message of no bytes."""
    request = urllib.request.Request(endpoint, data=b"", headers=dict(headers), method="POST")
    request.add_header("Content-Type", "application/x-protobuf")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return True, f"takes what is sent (HTTP {answer.status})"
    except urllib.error.HTTPError as refused:
        with refused:
            if refused.code == 400:  # some want at least one span; what is there, and let us in, answers
                return True, "answers (HTTP 400 to an empty request)"
            return False, f"refuses what is sent: HTTP {refused.code} {refused.reason}"
