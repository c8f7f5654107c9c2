"""The border over real HTTP and gRPC: services in processes of their own, and strangers on both sides of them."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from otelctx import signing
from tests.environments import environment

pytestmark = [pytest.mark.http, pytest.mark.timeout(900)]

SECRET = "a secret of these services"
CLIENTS = ("requests", "httpx", "httpx-async", "aiohttp")
SERVERS = ("flask", "fastapi")
Headers = list[tuple[str, str]]


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with servers, clients, and OpenTelemetry's instrumentation of them."""
    instrumented = ("aiohttp-client", "fastapi", "flask", "grpc", "httpx", "requests", "threading")
    return environment(
        tmp_path_factory.mktemp("http"),
        *("aiohttp", "fastapi", "flask", "grpcio", "httpx", "requests", "uvicorn"),
        *("opentelemetry-propagator-jaeger", "opentelemetry-propagator-ot-trace"),
        *("opentelemetry-distro", *(f"opentelemetry-instrumentation-{name}" for name in instrumented)),
    )


class Service(NamedTuple):
    """A running service."""

    port: int
    grpc_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, headers: Headers = (), **query: str) -> Any:  # type: ignore[assignment]
        """Send exactly these headers, as no client library would."""
        status, body = self.send(path + (f"?{urlencode(query)}" if query else ""), headers)
        assert status == 200, body
        return json.loads(body)

    def send(self, path: str, headers: Headers) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest("GET", path)
            for name, value in headers:
                connection.putheader(name, value.encode("latin-1"))
            connection.endheaders()
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@contextmanager
def running(python: Path, server: str, **settings: str) -> Iterator[Service]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "PYTHON"))}
    environ |= dict.fromkeys(("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"), "none")
    environ |= {"OTELCTX_AUTO_INSTRUMENT": "true", "OTELCTX_ALERTS__PER_MINUTE": "10000"}
    environ |= {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1", **settings}
    program = [str(python), str(Path(__file__).with_name("service.py")), server]
    with subprocess.Popen(program, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ports = json.loads(process.stdout.readline())
            yield Service(ports["http"], ports["grpc"])
        finally:
            process.kill()


SIGNED = {"OTELCTX_SECRET": SECRET, "OTELCTX_BAGGAGE__OUTBOUND": "sign", "OTELCTX_BAGGAGE__INBOUND": "verify"}


@pytest.fixture(scope="module", params=SERVERS)
def cautious(request: pytest.FixtureRequest, python: Path) -> Iterator[Service]:
    """A service with the default settings."""
    with running(python, request.param) as service:
        yield service


@pytest.fixture(scope="module", params=SERVERS)
def first(request: pytest.FixtureRequest, python: Path) -> Iterator[Service]:
    """One of two services that share a secret."""
    with running(python, request.param, **SIGNED) as service:
        yield service


@pytest.fixture(scope="module", params=SERVERS)
def second(request: pytest.FixtureRequest, python: Path) -> Iterator[Service]:
    """The other one."""
    with running(python, request.param, **SIGNED) as service:
        yield service


class Stranger(NamedTuple):
    """A server of somebody else's, and what was sent to it."""

    url: str
    received: list[Headers]


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    received: list[Headers] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(list(self.headers.items()))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Stranger(f"http://127.0.0.1:{server.server_port}/", received)
    server.shutdown()
    thread.join(20)
    server.server_close()


def named(headers: Headers, name: str) -> str | None:
    return next((value for header, value in headers if header.lower() == name), None)


def of_the_message(headers: Headers) -> Headers:
    """Those of the headers that OpenTelemetry wrote."""
    return [(name, value) for name, value in headers if name.lower() in ("traceparent", "baggage")]


@pytest.mark.parametrize("client", CLIENTS)
def test_by_default_no_key_reaches_a_strangers_server(client: str, cautious: Service, stranger: Stranger) -> None:
    answer = cautious.get("/call", client=client, url=stranger.url, session="slack:C1")
    assert answer["session"] == answer["baggage"]["otelctx.session"] == "slack:C1"
    (headers,) = stranger.received
    assert named(headers, "traceparent"), "the client is not instrumented"
    assert "slack" not in str(headers)
    assert "otelctx" not in str(headers)


FORGED = "otelctx.session=victim,theirs=1,otelctx.claim=held%3At1"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_strangers_key_binds_nothing_and_is_not_passed_on_and_is_forged(
    client: str, cautious: Service, stranger: Stranger
) -> None:
    cautious.get("/who")
    answer = cautious.get("/call", [("baggage", FORGED)], client=client, url=stranger.url)
    assert (answer["session"], answer["claim"], answer["baggage"]) == (None, "none", {"theirs": "1"})
    assert {(key, reason) for key, reason, _, _ in answer["alerts"]} == {("session", "forged"), ("claim", "forged")}
    assert [named(headers, "baggage") for headers in stranger.received] == ["theirs=1"]


@pytest.mark.parametrize(
    "headers",
    [
        [("BAGGAGE", FORGED)],
        [("Baggage", "theirs=1"), ("baggage", FORGED)],
        [("baggage", FORGED), ("baggage", "theirs=1")],
        [("baggage", "otelctx%2Esession=victim")],
        [("baggage", "%6Ftelctx.session=victim")],
        [("baggage", " otelctx.session\t=\tvictim ; p=1")],
        [("baggage", "otelctx.session=victim\xff\xe9")],
        [("baggage", "otelctx.session=" + "victim" * 900)],
        [("baggage", "a=" + "x" * 8000 + ",otelctx.session=victim")],
        [("baggage", "otelctx.session=victim,b=" + "x" * 9000)],
        [("baggage", ",".join(f"otelctx.session=v{index}" for index in range(200)))],
        [("uberctx-otelctx.session", "victim"), ("ot-baggage-otelctx.session", "victim")],
    ],
    ids=range(12),
)
def test_however_a_stranger_writes_it_nothing_is_believed(headers: Headers, cautious: Service, first: Service) -> None:
    for service in (cautious, first):
        status, body = service.send("/who", headers)
        if status in (400, 431):  # the server itself does not take so much, or such bytes
            continue
        assert status == 200
        answer = json.loads(body)
        assert answer["session"] is None
        assert answer["labelled"] is None
        assert not [name for name in answer["baggage"] if name.startswith("otelctx.")]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_signed_key_crosses_to_another_service_of_ours(client: str, first: Service, second: Service) -> None:
    for session in ("slack:C1", "ü,;= %😀"):
        answer = first.get("/call", client=client, url=f"{second.url}/who", session=session)["answer"]
        assert answer["session"] == answer["labelled"] == session
        assert answer["alerts"] == []
    assert second.get("/who")["session"] is None


@pytest.mark.parametrize("path, where", [("/stream", "fastapi"), ("/sync", "fastapi"), ("/stream", "flask")])
def test_what_a_request_brought_counts_for_as_long_as_its_context_is_attached(
    path: str, where: str, first: Service, second: Service, stranger: Stranger
) -> None:
    is_fastapi = second.send("/sync", [])[0] == 200
    if is_fastapi is not (where == "fastapi"):
        pytest.skip(f"this is the other server's case, not {where}'s")
    first.get("/call", client="requests", url=stranger.url, session="A")
    status, body = second.send(path, of_the_message(stranger.received[-1]))
    assert status == 200
    if path == "/sync":
        assert json.loads(body)["session"] == "A"
    else:  # OpenTelemetry's instrumentation of Flask detaches the context before the body is streamed
        assert body == ("A\n" if is_fastapi else "None\n") * 3
    assert second.get("/who")["session"] is None


def test_a_key_crosses_three_services_and_none_that_is_a_strangers(
    first: Service, second: Service, stranger: Stranger
) -> None:
    inner = f"{first.url}/call?{urlencode({'client': 'aiohttp', 'url': stranger.url})}"
    middle = f"{second.url}/call?{urlencode({'client': 'httpx', 'url': inner})}"
    answer = first.get("/call", client="requests", url=middle, session="A")["answer"]
    assert (answer["session"], answer["answer"]["session"]) == ("A", "A")
    assert "otelctx.session=s1." in str(named(stranger.received[-1], "baggage"))


def test_what_was_captured_counts_once_and_changed_or_in_another_trace_never(
    first: Service, second: Service, stranger: Stranger
) -> None:
    for _ in range(2):
        first.get("/call", client="requests", url=stranger.url, session="A")
    captured, other = map(of_the_message, stranger.received)
    assert named(captured, "traceparent") != named(other, "traceparent")
    second.get("/who")

    def answer(headers: Headers) -> tuple[Any, list[str]]:
        answered = second.get("/who", headers)
        return answered["session"], [reason for _, reason, _, _ in answered["alerts"]]

    baggage, parent = str(named(captured, "baggage")), str(named(captured, "traceparent"))
    for index in range(baggage.index("=") + 1, len(baggage), 7):
        changed = baggage[:index] + ("A" if baggage[index] != "A" else "B") + baggage[index + 1 :]
        assert answer([("traceparent", parent), ("baggage", changed)]) == (None, ["forged"])
    assert answer([("traceparent", str(named(other, "traceparent"))), ("baggage", baggage)]) == (None, ["forged"])
    assert answer([("baggage", baggage)]) == (None, ["forged"])
    assert answer(captured) == ("A", [])
    assert answer(captured) == (None, ["forged"])
    assert answer(other) == ("A", [])


def test_an_old_message_does_not_count(second: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("OTELCTX_SECRET", SECRET)
    trace = "0af7651916cd43dd8448eb211c80319c"
    second.get("/who")
    for age, session in ((0, "A"), (290, "A"), (310, None), (-310, None)):
        moment, nonce = str(int((time.time() - age) * 1000)), "AAAAAAAAAAA"
        signature = signing.sign("baggage", "otelctx.session", "A", trace, moment, nonce)
        answer = second.get(
            "/who",
            [
                ("traceparent", f"00-{trace}-b7ad6b7169203331-01"),
                ("baggage", f"otelctx.session=s1.{moment}.{nonce}.{signature}.QQ"),
            ],
        )
        assert answer["session"] == session
        assert [reason for _, reason, _, _ in answer["alerts"]] == ([] if session else ["forged"])


@pytest.mark.parametrize("client, keeps", [("requests", False), ("aiohttp", False)])
def test_a_redirect_that_a_client_follows_by_itself_sends_its_message_again_which_does_not_count(
    client: str, keeps: bool, first: Service, second: Service
) -> None:
    answer = first.get("/call", client=client, url=f"{second.url}/moved", session="A")["answer"]
    assert (answer["session"] == "A") is keeps


def test_over_grpc_a_signed_key_crosses_and_a_strangers_does_not(
    cautious: Service, first: Service, second: Service
) -> None:
    target = f"127.0.0.1:{second.grpc_port}"
    answer = first.get("/call", client="grpc", url=target, session="A")["answer"]
    assert (answer["session"], answer["alerts"]) == ("A", [])
    answer = cautious.get("/call", client="grpc", url=target, session="A")["answer"]
    assert (answer["session"], answer["baggage"]) == (None, {})


def test_other_formats_of_baggage_are_guarded_where_they_are_used_directly(python: Path) -> None:
    program = [str(python), str(Path(__file__).with_name("propagators.py"))]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "PYTHON"))}
    done = subprocess.run(
        program, env={**environ, "OTELCTX_ENABLED": "true"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("session came from outside") == 2
    for name, prefix in (("jaeger", "uberctx-"), ("ot_trace", "ot-baggage-")):
        assert json.loads(done.stdout)[name] == {
            "written": [f"{prefix}theirs"],
            "leaks": False,
            "read": {"theirs": "2"},
            "session": None,
            "trace": True,
        }
