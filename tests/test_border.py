"""The border: keys do not leave in baggage, and what arrives under their names is not believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as otel_context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import otelctx
from otelctx import border, faults, flow, metrics, signing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from otelctx import Mismatch
    from tests.conftest import Install


tracer = trace.get_tracer(__name__)

TENANT: ContextVar[str] = ContextVar(f"{__name__}:TENANT")

SECRET = "0123456789abcdef"


def message() -> dict[str, str]:
    """The headers that an HTTP client would send."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def sent() -> str:
    """What an HTTP client would send as its baggage."""
    return message().get("baggage", "")


@contextmanager
def attached(context: Context) -> Iterator[None]:
    token = otel_context.attach(context)
    try:
        yield
    finally:
        otel_context.detach(token)


@contextmanager
def served(headers: dict[str, str]) -> Iterator[Context]:
    """A request with these headers, as a server's instrumentation serves it."""
    found = propagate.extract(headers)
    with attached(found):
        yield found


@pytest.fixture
def signed(install: Install, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Two services that share a secret: what one sends in this process, the other receives in it."""
    monkeypatch.setenv("OTELCTX_SECRET", SECRET)

    def turn_on(**settings: Any) -> None:
        install(baggage={"outbound": "sign", "inbound": "verify"}, **settings)

    return turn_on


def sent_within(session: str) -> dict[str, str]:
    """The headers of a request that is made for `session`, in a trace of its own."""
    with attached(Context()), tracer.start_as_current_span("request"), otelctx.bind(session=session):
        return message()


def test_neither_a_key_nor_a_claim_leaves_and_other_peoples_baggage_passes(install: Install) -> None:
    install()
    with attached(baggage.set_baggage("theirs", "1")), otelctx.bind(session="slack:C1"), otelctx.shed_claim():
        assert baggage.get_baggage("otelctx.session") == "slack:C1"
        assert sent() == "theirs=1"
        assert baggage.get_baggage("otelctx.session") == "slack:C1"
        carrier: dict[str, str] = {}
        W3CBaggagePropagator().inject(carrier)
        assert carrier == {"baggage": "theirs=1"}


def test_nothing_is_sent_where_the_baggage_is_otelctxs_alone(install: Install) -> None:
    install()
    with otelctx.bind(session="A"):
        assert sent() == ""


def test_plain_lets_keys_leave_and_no_claim(install: Install) -> None:
    install(baggage={"outbound": "plain"})
    with otelctx.bind(session="A"), otelctx.grant_claim(otelctx.Claim("t1")):
        assert sent() == "otelctx.session=A"


def test_after_uninstall_baggage_is_as_ever(install: Install) -> None:
    install()
    with otelctx.bind(session="A"):
        otelctx.uninstall()
        assert sent() == "otelctx.session=A"


def test_a_strangers_key_binds_nothing_is_not_passed_on_and_is_forged(install: Install, alerts: list[Mismatch]) -> None:
    install(baggage={"outbound": "plain"})
    found = propagate.extract({"baggage": "otelctx.session=victim,otelctx.claim=held%3At1,theirs=1"})
    with attached(found):
        assert dict(baggage.get_all()) == {"theirs": "1"}
        assert otelctx.get("session") is None
        assert otelctx.claim_state() == "none"
        assert sent() == "theirs=1"
    assert sorted((alert.key, alert.reason, alert.observed, alert.action) for alert in alerts) == [
        ("claim", "forged", "held:t1", "dropped"),
        ("session", "forged", "victim", "dropped"),
    ]


def test_what_is_bound_here_survives_a_request_without_baggage(install: Install, alerts: list[Mismatch]) -> None:
    install()
    with otelctx.bind(session="A"):
        found = propagate.extract({}, otel_context.get_current())
        assert baggage.get_baggage("otelctx.session", found) == "A"
    assert alerts == []


def test_trust_keeps_a_key_and_no_claim(install: Install) -> None:
    install(baggage={"inbound": "trust"})
    found = propagate.extract({"baggage": "otelctx.session=A,otelctx.claim=shed"})
    assert dict(baggage.get_all(found)) == {"otelctx.session": "A"}
    assert otelctx.get("session") is None  # it is not attached


def test_a_childs_own_carrier_has_the_key(install: Install) -> None:
    install(subprocess={"carrier": True})
    program = "import json, os; print(json.dumps(os.environ.get('BAGGAGE')))"
    with otelctx.bind(session="A"), otelctx.shed_claim():
        shown = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout) == "otelctx.session=A"


# Signed keys.


def test_a_signed_key_crosses_and_counts_for_as_long_as_its_context_is_attached(
    signed: Install, alerts: list[Mismatch], spans: InMemorySpanExporter
) -> None:
    signed()
    headers = sent_within("slack:C1")
    assert "slack" not in headers["baggage"]
    with served(headers) as found:
        assert otelctx.get("session") == "slack:C1"
        assert baggage.get_baggage("otelctx.session") == baggage.get_baggage("otelctx.session", found) == "slack:C1"
        with tracer.start_as_current_span("server"), ThreadPoolExecutor(1) as pool:
            assert pool.submit(otelctx.get, "session").result() == "slack:C1"
    assert otelctx.get("session") is None
    assert alerts == []
    served_span = next(span for span in spans.get_finished_spans() if span.name == "server")
    assert dict(served_span.attributes or {})["session.id"] == "slack:C1"


@pytest.mark.parametrize(
    "value", ["A", "ü,;= %\n+\t😀", " A ", "\n", "", "x" * 1024, "%41", "s1.1.a.b.c", "hash:" + "0" * 16]
)
def test_a_signed_value_arrives_exactly(signed: Install, value: str, alerts: list[Mismatch]) -> None:
    signed()
    with served(sent_within(value)):
        assert otelctx.get("session") == value
    assert alerts == []


def changed(headers: dict[str, str], old: str, new: str) -> dict[str, str]:
    return {name: value.replace(old, new) for name, value in headers.items()}


def test_not_one_changed_byte_of_a_signed_entry_is_believed(signed: Install, alerts: list[Mismatch]) -> None:
    signed(alerts={"per_minute": 10_000})
    headers = sent_within("slack:C1")
    written = headers["baggage"]
    start = written.index("=") + 1
    for index in range(start, len(written)):
        for other in ("0", "A") if written[index] not in "0A" else ("1",):
            forged = written[:index] + other + written[index + 1 :]
            with served({**headers, "baggage": forged}):
                assert otelctx.get("session") is None
                assert baggage.get_baggage("otelctx.session") is None
    assert {alert.reason for alert in alerts} == {"forged"}
    alerts.clear()
    with served(headers):
        assert otelctx.get("session") == "slack:C1"
    assert alerts == []


def test_a_signed_entry_counts_in_no_other_trace_and_under_no_other_name(
    signed: Install, alerts: list[Mismatch]
) -> None:
    signed(keys={"tenant": {}})
    ours, others = sent_within("A"), sent_within("B")
    wrong = [
        {**ours, "traceparent": others["traceparent"]},
        {"baggage": ours["baggage"]},
        changed(ours, "otelctx.session", "otelctx.tenant"),
    ]
    for headers in wrong:
        with served(headers):
            assert otelctx.get("session") is None
            assert otelctx.get("tenant") is None
    assert [(alert.key, alert.reason) for alert in alerts] == [
        ("session", "forged"),
        ("session", "forged"),
        ("tenant", "forged"),
    ]


def test_a_repeated_message_does_not_count_and_a_new_one_of_the_same_trace_does(
    signed: Install, alerts: list[Mismatch]
) -> None:
    signed()
    with attached(Context()), tracer.start_as_current_span("request"), otelctx.bind(session="A"):
        first, second = message(), message()
    for headers in (first, second):
        with served(headers):
            assert otelctx.get("session") == "A"
    assert alerts == []
    for headers in (first, second):
        with served(headers):
            assert otelctx.get("session") is None
    assert [(alert.reason, alert.detail) for alert in alerts] == [("forged", "it was there before")] * 2


def test_a_message_that_is_read_again_within_its_request_is_not_a_repeated_one(
    signed: Install, alerts: list[Mismatch]
) -> None:
    signed()
    headers = sent_within("A")
    with served(headers):
        with tracer.start_as_current_span("server"), served(headers):
            assert otelctx.get("session") == "A"
    assert alerts == []
    with served(headers):
        assert otelctx.get("session") is None


@pytest.mark.parametrize("age, counts", [(0, True), (299, True), (-299, True), (301, False), (-301, False)])
def test_an_old_message_does_not_count(
    age: int, counts: bool, signed: Install, alerts: list[Mismatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    signed()
    headers = sent_within("A")
    now = time.time() + age
    monkeypatch.setattr(border, "_window", signing.ReplayWindow(border.FRESH, 10, clock=lambda: now))
    with served(headers):
        assert otelctx.get("session") == ("A" if counts else None)
    assert [alert.reason for alert in alerts] == ([] if counts else ["forged"])


def test_the_secret_can_be_rotated_without_losing_a_message(
    signed: Install, monkeypatch: pytest.MonkeyPatch, alerts: list[Mismatch]
) -> None:
    signed()
    new = "fedcba9876543210"
    for secret, headers in [
        (f"{SECRET},{new}", sent_within("A")),  # every receiver knows the new one
        (f"{new},{SECRET}", None),  # every sender uses it
        (new, None),  # nobody needs the old one
    ]:
        in_flight = headers or sent_within("A")
        monkeypatch.setenv("OTELCTX_SECRET", secret)
        with served(in_flight):
            assert otelctx.get("session") == "A"
    monkeypatch.setenv("OTELCTX_SECRET", SECRET)
    by_old = sent_within("A")
    monkeypatch.setenv("OTELCTX_SECRET", new)
    assert alerts == []
    with served(by_old):
        assert otelctx.get("session") is None
    assert [alert.reason for alert in alerts] == ["forged"]


def test_a_signature_is_for_its_trace_whatever_the_order_of_the_propagators(
    signed: Install, alerts: list[Mismatch]
) -> None:
    signed()
    headers = sent_within("A")
    reversed_order = CompositePropagator([W3CBaggagePropagator(), TraceContextTextMapPropagator()])
    with attached(reversed_order.extract(headers)):
        assert otelctx.get("session") == "A"
    assert alerts == []


def test_signing_without_a_trace_is_for_messages_without_one(signed: Install) -> None:
    signed()
    with attached(Context()), otelctx.bind(session="A"):
        headers = message()
    assert set(headers) == {"baggage"}
    with served({**headers, "traceparent": sent_within("B")["traceparent"]}):
        assert otelctx.get("session") is None
    with served(headers):
        assert otelctx.get("session") == "A"


def test_a_digest_leaves_in_place_of_the_value_and_is_nobodys_key(
    install: Install, monkeypatch: pytest.MonkeyPatch, alerts: list[Mismatch]
) -> None:
    monkeypatch.setenv("OTELCTX_SECRET", SECRET)
    install(baggage={"outbound": "hash", "inbound": "trust"})
    headers = sent_within("slack:C1")
    assert headers["baggage"] == "otelctx.session=" + quote_plus("hash:" + signing.digest("slack:C1"))
    with served(headers):
        assert otelctx.get("session") is None
    assert alerts == []


def test_what_cannot_be_signed_any_more_does_not_leave(signed: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    signed()
    monkeypatch.delenv("OTELCTX_SECRET")
    assert "baggage" not in sent_within("A")


# What is let in, and what the application says itself.


def test_what_the_application_says_itself_counts_and_not_what_was_let_in(signed: Install) -> None:
    signed(keys={"session": {"sources": [{"contextvar": f"{__name__}:APP_KEY", "empty": [""]}]}})
    headers = [sent_within("remote") for _ in range(4)]
    with otelctx.bind(session="local"), served(headers[0]):
        assert otelctx.get("session") == "local"
    for value, seen in (("app", "app"), ("", None)):  # set, and cleared
        token = APP_KEY.set(value)
        with served(headers.pop()):
            assert otelctx.get("session") == seen
        APP_KEY.reset(token)
    with served(headers.pop()):
        assert otelctx.get("session") == "remote"
        token = APP_KEY.set("later")
        assert otelctx.get("session") == "later"
        APP_KEY.reset(token)
        with otelctx.bind(session="inner"):
            assert otelctx.get("session") == "inner"
        assert otelctx.get("session") == "remote"
    assert otelctx.get("session") is None


APP_KEY: ContextVar[str] = ContextVar(f"{__name__}:APP_KEY")


def test_contexts_that_are_attached_within_one_another_each_have_their_own_key(signed: Install) -> None:
    signed()
    outer, inner = sent_within("outer"), sent_within("inner")
    with served(outer):
        with served(inner):
            assert otelctx.get("session") == "inner"
        assert otelctx.get("session") == "outer"
        with attached(Context()):
            assert otelctx.get("session") is None
            with attached(otel_context.set_value("other", 1)):
                assert otelctx.get("session") is None
        assert otelctx.get("session") == "outer"
    assert otelctx.get("session") is None


def test_detaching_out_of_order_leaves_no_key_behind(signed: Install) -> None:
    signed()
    first = otel_context.attach(propagate.extract(sent_within("first")))
    second = otel_context.attach(propagate.extract(sent_within("second")))
    with otelctx.bind(session="bound"):
        otel_context.detach(first)
        assert otelctx.get("session") == "bound"
    otel_context.detach(second)
    otel_context.attach(Context())
    assert otelctx.get("session") is None


def test_a_worker_thread_that_serves_one_request_after_another_keeps_no_key(signed: Install) -> None:
    signed()
    requests = [sent_within("A"), {}, sent_within("B"), {"baggage": "theirs=1"}]
    seen: list[str | None] = []

    def serve_all() -> None:
        for headers in requests:
            with served(headers):
                seen.append(otelctx.get("session"))
            seen.append(otelctx.get("session"))

    thread = threading.Thread(target=serve_all)
    thread.start()
    thread.join(20)
    assert seen == ["A", None, None, None, "B", None, None, None]


def test_a_cron_run_within_a_request_has_a_key_of_its_own(signed: Install) -> None:
    signed()
    with served(sent_within("A")):
        with otelctx.cron_run("nightly"):
            assert str(otelctx.get("session")).startswith("cron:")
            with tracer.start_as_current_span("inside"):
                assert str(otelctx.get("session")).startswith("cron:")
                assert "A" not in str(dict(baggage.get_all()).get("otelctx.session"))
        assert otelctx.get("session") == "A"


def test_what_was_let_in_crosses_to_the_next_service_signed_anew(signed: Install, alerts: list[Mismatch]) -> None:
    signed()
    first = sent_within("A")
    with served(first), tracer.start_as_current_span("server"):
        second = message()
    assert second["baggage"] != first["baggage"]
    with served(second):
        assert otelctx.get("session") == "A"
    assert alerts == []


def test_an_extracted_context_that_is_injected_without_being_attached_passes_its_key_on(signed: Install) -> None:
    signed()
    found = propagate.extract(sent_within("A"))
    forwarded: dict[str, str] = {}
    propagate.inject(forwarded, context=found)
    with served(forwarded):
        assert otelctx.get("session") == "A"


def test_trust_lets_a_key_count(install: Install) -> None:
    install(baggage={"inbound": "trust"})
    with served({"baggage": "otelctx.session=A"}):
        assert otelctx.get("session") == "A"
    assert otelctx.get("session") is None


def test_a_key_that_is_longer_than_any_of_ours_is_not_trusted(install: Install, alerts: list[Mismatch]) -> None:
    install(baggage={"inbound": "trust"})
    with served({"baggage": "otelctx.session=" + "x" * 1025}):
        assert otelctx.get("session") is None
    assert [alert.reason for alert in alerts] == ["forged"]


# What leaves is what counts there and then.


def test_what_leaves_is_what_the_sources_say_and_not_older_baggage(install: Install) -> None:
    install(baggage={"outbound": "plain"}, keys={"tenant": {"sources": [{"contextvar": f"{__name__}:TENANT"}]}})
    with otelctx.bind(session="A"):
        token = TENANT.set("T")
        older = otel_context.get_current()
        assert sent() == "otelctx.session=A,otelctx.tenant=T"
        TENANT.reset(token)
        assert sent() == "otelctx.session=A"
    with attached(older):
        assert sent() == ""
    stale: dict[str, str] = {}
    propagate.inject(stale, context=older)
    assert stale == {}


@pytest.mark.parametrize(
    "headers, left",
    [
        ({"baggage": "otelctx.session=victim"}, {}),
        ({"Baggage": "a=1, otelctx%2Esession = victim;p=1 ,b=2"}, {"Baggage": "a=1,b=2"}),
        ({"baggage": "a=1, b=2;otelctx.session=no"}, {"baggage": "a=1, b=2;otelctx.session=no"}),
        ({"uberctx-otelctx.session": "victim", "uberctx-a": "1"}, {"uberctx-a": "1"}),
        ({"ot-baggage-otelctx.claim": "held", "ot-baggage-b": "1"}, {"ot-baggage-b": "1"}),
        ({"x-baggage": "otelctx.session=A"}, {"x-baggage": "otelctx.session=A"}),
        ({"baggage": ["otelctx.session=A", "a=1,otelctx.claim=shed"]}, {"baggage": ["a=1"]}),
        ({b"baggage": b"otelctx.session=A,a=\xe4"}, {b"baggage": b"a=\xe4"}),
        ([("baggage", b"otelctx.session=A"), ("baggage", b"a=1"), "other"], [("baggage", b"a=1"), "other"]),
    ],
)
def test_a_strangers_key_does_not_leave_in_headers_that_are_forwarded(
    headers: Any, left: Any, install: Install
) -> None:
    install()
    with otelctx.bind(session="A"):
        propagate.inject(headers)
    assert headers == left


class Several:
    """Headers of which each may be there several times, and is replaced and deleted at once; no `MutableMapping`."""

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self.pairs = list(pairs)

    def items(self) -> list[tuple[str, str]]:
        return self.pairs

    def __contains__(self, name: str) -> bool:
        return any(one.lower() == name.lower() for one, _ in self.pairs)

    def __getitem__(self, name: str) -> str:
        return next(value for one, value in self.pairs if one.lower() == name.lower())

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self.pairs = [pair for pair in self.pairs if pair[0].lower() != name.lower()]

    def __setitem__(self, name: str, value: str) -> None:
        if name in self:
            del self[name]
        self.pairs.append((name, value))


@pytest.mark.parametrize("ours", range(3))
def test_of_headers_that_are_there_several_times_ours_alone_is_taken_out(ours: int, install: Install) -> None:
    install()
    baggages = ["a=1", "b=2"]
    baggages.insert(ours, "otelctx.session=victim")
    headers = Several(*(("Baggage" if n else "baggage", baggage) for n, baggage in enumerate(baggages)), ("x", "y"))
    propagate.inject(headers)
    assert headers.items() == [("x", "y"), ("baggage", "a=1,b=2")]


def test_the_environment_is_not_written_where_it_is_the_carrier(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    monkeypatch.setenv("BAGGAGE", "otelctx.session=A")
    propagate.inject(os.environ)
    assert os.environ["BAGGAGE"] == "otelctx.session=A"


@pytest.mark.parametrize("value", [" A", "A\n", "", "\udcff"])
def test_a_value_that_a_header_would_change_does_not_leave_in_plain(
    value: str, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "_refused", set())
    install(baggage={"outbound": "plain"})
    before = metrics.error_counts().get("baggage", 0)
    with otelctx.bind(session=value):
        assert otelctx.get("session") == value
        assert sent() == sent() == ""
    assert metrics.error_counts()["baggage"] == before + 1


# Strangers.


@pytest.mark.parametrize(
    "written",
    [
        "otelctx.session=victim",
        "otelctx%2Esession=victim",
        " otelctx.session = victim ;property=1",
        "otelctx.session=a,otelctx.session=victim",
        "a=1,otelctx.session=victim",
        "otelctx.session=%F0%9F%98%80%FF%00",
        "otelctx.session=s1.1.AAAAAAAAAAA." + "A" * 43 + ".QQ",
    ],
)
@pytest.mark.parametrize("inbound", ["drop", "verify"])
def test_a_stranger_binds_nothing_however_he_writes_it(
    written: str, inbound: str, install: Install, alerts: list[Mismatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTELCTX_SECRET", SECRET)
    install(baggage={"inbound": inbound, "outbound": "plain"})
    with served({"baggage": written}):
        assert otelctx.get("session") is None
        assert "otelctx" not in sent()
        assert not [name for name in baggage.get_all() if "otelctx" in name]
    assert [(alert.key, alert.reason, alert.action) for alert in alerts] == [("session", "forged", "dropped")]


def test_names_that_a_stranger_makes_up_are_one_alert_and_no_label_of_a_metric(
    install: Install, alerts: list[Mismatch]
) -> None:
    install()
    with served({"baggage": ",".join(f"otelctx.made_up_{index}=1" for index in range(150))}):
        assert dict(baggage.get_all()) == {}
    assert [alert.key for alert in alerts] == [border.OTHER]


def test_an_alert_shows_a_bounded_part_of_what_a_stranger_wrote(install: Install, alerts: list[Mismatch]) -> None:
    install()
    with served({"baggage": "otelctx.session=" + "x" * 4000}):
        pass
    assert len(str(alerts[0].observed)) == 256


def test_a_stranger_does_not_take_away_what_is_bound_here(install: Install, alerts: list[Mismatch]) -> None:
    install()
    with otelctx.bind(session="A"):
        found = propagate.extract({"baggage": "otelctx.session=victim,theirs=1"}, otel_context.get_current())
        assert dict(baggage.get_all(found)) == {"otelctx.session": "A", "theirs": "1"}
    assert [(alert.key, alert.observed) for alert in alerts] == [("session", "victim")]


def test_a_message_that_is_read_where_a_key_is_bound_does_not_get_that_key(install: Install) -> None:
    install()
    with otelctx.bind(session="A"):
        assert dict(baggage.get_all(propagate.extract({"baggage": "otelctx.session=victim,theirs=1"}))) == {
            "theirs": "1"
        }


def test_other_peoples_baggage_on_top_of_ours_is_no_forgery(install: Install, alerts: list[Mismatch]) -> None:
    install()
    with otelctx.bind(session="A"):
        for found in (
            propagate.extract({"baggage": "theirs=1"}, otel_context.get_current()),
            W3CBaggagePropagator().extract({"baggage": "theirs=1"}),
        ):
            assert dict(baggage.get_all(found)) == {"otelctx.session": "A", "theirs": "1"}
    assert alerts == []


def test_where_deciding_fails_nothing_of_ours_crosses(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(baggage={"outbound": "plain", "inbound": "trust"})

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(border, "_trace_of", fail)
    before = metrics.error_counts().get("baggage", 0)
    with otelctx.bind(session="A"), attached(baggage.set_baggage("theirs", "1")):
        assert sent() == "theirs=1"
    found = propagate.extract({"baggage": "theirs=1,otelctx.session=victim"})
    assert dict(baggage.get_all(found)) == {"theirs": "1"}
    assert metrics.error_counts()["baggage"] == before + 2


# Limits.


@pytest.mark.parametrize("outbound", ["plain", "sign", "hash"])
@pytest.mark.parametrize("ours_first", [True, False])
def test_case_46_another_vendors_180_entries_leave_untouched_and_ours_is_refused_with_one_warning(
    outbound: str,
    ours_first: bool,
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(flow, "_refused", set())
    faults.forget()
    monkeypatch.setenv("OTELCTX_SECRET", SECRET)
    install(baggage={"outbound": outbound})
    theirs = {f"vendor{index}": str(index) for index in range(180)}

    def with_theirs() -> Context:
        context = otel_context.get_current()
        for name, value in theirs.items():
            context = baggage.set_baggage(name, value, context)
        return context

    def check() -> None:
        for _ in range(3):
            assert dict(entry.split("=") for entry in sent().split(",")) == theirs

    if ours_first:
        with otelctx.bind(session="A"), attached(with_theirs()):
            check()
            assert otelctx.get("session") == "A"
    else:
        with attached(with_theirs()), otelctx.bind(session="A"):
            check()
            assert otelctx.get("session") == "A"
    assert sum("otelctx.session is left out" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("outbound", ["plain", "sign"])
def test_ours_never_make_the_header_longer_than_8192_bytes(
    outbound: str, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTELCTX_SECRET", SECRET)
    install(baggage={"outbound": outbound})
    for length in range(3000, 4030, 10):  # two entries of this length, and ours
        context = baggage.set_baggage("a", "x" * length, baggage.set_baggage("b", "ü" * 10 + "x" * length))
        with attached(context), otelctx.bind(session="ü" * 100):
            headers = sent()
            assert len(headers) <= 8192
            assert headers.count("x" * length) == 2


@pytest.mark.parametrize(
    "value",
    [
        "x" * 1024,
        "a,b;c=d",
        "one\nline",
        "percent %41 %zz %",
        "\U0001f600" * 85,
        "nul \x00 and \x7f",
        "+ +",
        '"quoted"\\',
    ],
)
@pytest.mark.parametrize("outbound, inbound", [("plain", "trust"), ("sign", "verify")])
def test_case_45_a_value_crosses_exactly_or_not_at_all(
    value: str, outbound: str, inbound: str, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTELCTX_SECRET", SECRET)
    install(baggage={"outbound": outbound, "inbound": inbound})
    with served(sent_within(value)):
        assert otelctx.get("session") == value


# The propagator by name.

BY_NAME = """
import json, sys
from opentelemetry import baggage, context, propagate
import otelctx
headers = {"baggage": "otelctx.session=victim"}
propagate.inject(headers)
with otelctx.bind(session="A"):
    token = context.attach(baggage.set_baggage("theirs", "1"))
    sent = {}
    propagate.inject(sent)
    context.detach(token)
found = propagate.extract({"baggage": "otelctx.session=victim,theirs=1"})
print(json.dumps([headers, sent, dict(baggage.get_all(found)), otelctx.is_installed()]))
"""


@pytest.mark.parametrize(
    "names", ["otelctx", "tracecontext,baggage,otelctx", "otelctx,baggage", "tracecontext,otelctx"]
)
@pytest.mark.parametrize("enabled", [True, False])
def test_the_guard_can_be_chosen_by_its_name(names: str, enabled: bool) -> None:
    if not enabled and "baggage" in names:
        pytest.skip("beside an unguarded `baggage`, otelctx has to be on")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "COV"))}
    program = ("import otelctx; otelctx.install()\n" if enabled else "") + BY_NAME
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environ, "OTEL_PROPAGATORS": names},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [{}, {"baggage": "theirs=1"}, {"theirs": "1"}, enabled]
