"""The inbound parser against whatever a stranger may send: it never raises, never believes, and leaves others alone.

The oracle for other people's baggage is the SDK's own propagator, which is read without otelctx's guard. A few hundred
messages in the suite; `make fuzz` goes on for as many seconds as ``OTELCTX_FUZZ_SECONDS`` says.
"""

from __future__ import annotations

import os
import time
import warnings
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as otel_context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context

import otelctx
from otelctx import border, metrics, signing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otelctx import Mismatch
    from tests.conftest import Install

SECONDS = float(os.environ.get("OTELCTX_FUZZ_SECONDS", "0"))
EXAMPLES = 150

tracer = trace.get_tracer(__name__)

OURS = [
    "otelctx.session",
    "otelctx.claim",
    "otelctx.tenant",
    "otelctx.made_up",
    "tenant-key",
    "otelctx.",
    "OTELCTX.SESSION",
]
SEPARATORS = [
    ",",
    ";",
    "=",
    " ",
    "\t",
    "%",
    "+",
    "%2C",
    "%3D",
    "%2E",
    "%00",
    "\n",
    "\x00",
    "ü",
    "😀",
    ".",
    "s1.",
    '"',
    "\\",
]

odd_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
names = st.one_of(
    st.sampled_from(OURS),
    st.sampled_from(OURS).map(lambda name: name.replace(".", "%2E")),
    st.sampled_from(OURS).map(lambda name: f" {name}\t"),
    st.text("abcdefgh-_.", min_size=1, max_size=10),
    odd_text,
)
moments = st.one_of(st.just(0), st.integers(-1000, 1000), st.integers(0, 10**16)).map(
    lambda off: str(off if off > 1000 else int(time.time() * 1000) + off)
)
seals = st.builds(
    lambda *parts: ".".join(parts),
    st.sampled_from(["s1", "s2", "s1 ", "S1", ""]),
    moments,
    st.text("Aa0-_", min_size=10, max_size=12),
    st.text("Aa0-_", min_size=42, max_size=44),
    st.text("Aa0-_=QUJD", max_size=20),
)
values = st.one_of(odd_text, seals, st.sampled_from(["victim", "held:t1", "shed", "", "%", "%F", "%FF%FE", "x" * 5000]))
entries = st.one_of(
    st.builds(lambda name, value: f"{name}={value}", names, values),
    st.builds(lambda name, value, rest: f"{name}={value};{rest}", names, values, odd_text),
    odd_text,
    st.sampled_from(SEPARATORS),
)


@st.composite
def headers(draw: st.DrawFn, genuine: str) -> str:
    """A header: of entries, or of anything, or what a service of ours has written, with something done to it."""
    kind = draw(st.sampled_from(["entries", "text", "genuine", "genuine", "many"]))
    if kind == "many":
        return ",".join(f"{draw(names)}={index}" for index in range(draw(st.integers(170, 200))))
    if kind == "text":
        return draw(st.text(st.one_of(st.sampled_from("".join(SEPARATORS)), st.characters()), max_size=200))
    parts = draw(st.lists(entries, max_size=8))
    if kind == "genuine":
        written = genuine
        for _ in range(draw(st.integers(0, 2))):
            at = draw(st.integers(0, len(written)))
            end = min(len(written), at + draw(st.integers(0, 3)))
            written = written[:at] + draw(st.one_of(st.sampled_from(SEPARATORS), odd_text)) + written[end:]
        parts.insert(draw(st.integers(0, len(parts))), written)
    return draw(st.sampled_from([",", ", ", " ,\t", ";", ",,"])).join(parts)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(100)  # the SDK warns of every entry that it leaves out
    yield
    caplog.clear()


PIECES = [
    *OURS,
    *SEPARATORS,
    "otelctx%2Esession=",
    "otelctx.session=s1.",
    "victim",
    "%73",
    "\udcff",
    "x" * 1500,
    ",a=1",
]


def mutated(random: Random, genuine: str) -> str:
    """A header from pieces and from what a service of ours has written: cheaper to make than Hypothesis's."""
    written = random.choice([genuine, genuine, "", f"a=1,{genuine},b=2"])
    for _ in range(random.randint(1, 12)):
        at = random.randint(0, len(written))
        end = min(len(written), at + random.choice([0, 0, 0, 1, 2, 40]))
        piece = random.choice([random.choice(PIECES), chr(random.randint(0, 300)), random.choice(genuine), ""])
        written = written[:at] + piece + written[end:]
    return written


def unguarded(header: object) -> dict[str, object] | None:
    """What the SDK alone makes of a header, without what is ours; None where it raises."""
    original: Any = W3CBaggagePropagator.extract
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = original.__wrapped__(W3CBaggagePropagator(), {"baggage": header}, Context())
    except Exception:
        return None
    return {name: value for name, value in baggage.get_all(found).items() if not border.is_ours(name)}


@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("inbound", ["drop", "verify"])
def test_nothing_that_a_stranger_sends_is_believed_raises_or_disturbs_others(
    inbound: str, install: Install, monkeypatch: pytest.MonkeyPatch, alerts: list[Mismatch]
) -> None:
    monkeypatch.setenv("OTELCTX_SECRET", "0123456789abcdef")
    monkeypatch.setattr(border, "_window", signing.ReplayWindow(border.FRESH, 10))
    install(
        keys={"tenant": {"baggage": "tenant-key"}},
        baggage={"outbound": "sign", "inbound": inbound},
        alerts={"per_minute": 1_000_000},
    )
    with tracer.start_as_current_span("another"), otelctx.bind(session="genuine"):
        genuine: dict[str, str] = {}
        propagate.inject(genuine)
    traceparent = genuine["traceparent"]
    # What is genuine arrives in another trace: there it is as false as anything that a stranger made up.
    others = traceparent[:3] + "f" * 32 + traceparent[35:]
    count = [0]
    errors = metrics.error_counts()

    parents = [others, "", "00-" + "0" * 32, "nonsense"]
    shapes = ["str", "str", "list", "two", "bytes", "none"]

    def check(header: str, parent: str, shape: str) -> None:
        count[0] += 1
        carrier: dict[str, Any] = {"traceparent": parent}
        carrier["baggage"] = {
            "str": header,
            "list": [header],
            "two": [header, genuine["baggage"]],
            "bytes": header.encode("utf-8", "replace"),
            "none": [],
        }[shape]
        expected = unguarded(carrier["baggage"])
        alerts.clear()
        try:
            found = propagate.extract(carrier, Context())
        except Exception:
            assert expected is None, "the SDK alone does not raise"
            return
        assert dict(baggage.get_all(found)) == expected
        token = otel_context.attach(found)
        assert otelctx.get("session") is None
        assert otelctx.get("tenant") is None
        assert otelctx.claim_state() == "none"
        forwarded = {"baggage": header}
        propagate.inject(forwarded)
        assert not [name for name in unguarded_names(forwarded.get("baggage", "")) if border.is_ours(name)]
        otel_context.detach(token)
        assert {alert.key for alert in alerts} <= {"session", "tenant", "claim", border.OTHER}
        assert len({alert.key for alert in alerts}) == len(alerts)

    settle = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    settle(given(headers(genuine["baggage"]), st.sampled_from(parents), st.sampled_from(shapes))(check))()
    seed, until = time.time_ns(), time.monotonic() + SECONDS / 2  # for each of the two settings
    print(f"seed {seed}")
    random = Random(seed)
    while time.monotonic() < until:
        check(mutated(random, genuine["baggage"]), random.choice(parents), random.choice(shapes))
    print(f"{count[0]} messages, inbound = {inbound}")
    assert metrics.error_counts() == errors
    assert count[0] >= EXAMPLES
    assert len(border._window) == 0  # nothing that was not verified is remembered


def unguarded_names(header: str) -> list[str]:
    original: Any = W3CBaggagePropagator.extract
    try:
        return list(baggage.get_all(original.__wrapped__(W3CBaggagePropagator(), {"baggage": header}, Context())))
    except UnicodeEncodeError:  # a lone surrogate, which no transport brings
        return []
