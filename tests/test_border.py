"""The border: keys do not leave in baggage, and what arrives under their names is not believed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from opentelemetry import baggage, propagate
from opentelemetry import context as otel_context
from opentelemetry.baggage.propagation import W3CBaggagePropagator

import otelctx

if TYPE_CHECKING:
    from otelctx import Mismatch
    from tests.conftest import Install


def sent() -> str:
    """What an HTTP client would send as its baggage."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("baggage", "")


def test_neither_a_key_nor_a_claim_leaves_and_other_peoples_baggage_passes(install: Install) -> None:
    install()
    token = otel_context.attach(baggage.set_baggage("theirs", "1"))
    with otelctx.bind(session="slack:C1"), otelctx.shed_claim():
        assert baggage.get_baggage("otelctx.session") == "slack:C1"
        assert sent() == "theirs=1"
        assert baggage.get_baggage("otelctx.session") == "slack:C1"
        carrier: dict[str, str] = {}
        W3CBaggagePropagator().inject(carrier)
        assert carrier == {"baggage": "theirs=1"}
    otel_context.detach(token)


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
    token = otel_context.attach(found)
    assert dict(baggage.get_all()) == {"theirs": "1"}
    assert otelctx.get("session") is None
    assert otelctx.claim_state() == "none"
    assert sent() == "theirs=1"
    otel_context.detach(token)
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
    assert otelctx.get("session") is None  # baggage is never an authority


def test_a_childs_own_carrier_has_the_key(install: Install) -> None:
    install(subprocess={"carrier": True})
    program = "import json, os; print(json.dumps(os.environ.get('BAGGAGE')))"
    with otelctx.bind(session="A"), otelctx.shed_claim():
        shown = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout) == "otelctx.session=A"


@pytest.mark.parametrize(
    "settings", [{"outbound": "sign"}, {"outbound": "hash"}, {"inbound": "verify"}], ids=lambda settings: str(settings)
)
def test_what_this_version_does_not_do_is_said_and_the_safe_thing_is_done(
    install: Install, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTELCTX_SECRET", "0123456789abcdef")
    install(baggage=settings)
    assert "is not there in this version" in caplog.text
    with otelctx.bind(session="A"):
        assert sent() == ""
    assert not baggage.get_all(propagate.extract({"baggage": "otelctx.session=A"}))
