"""Baggage at the border of the process: a carrier, never an authority.

What is otelctx's does not leave towards strangers (``baggage.outbound = "strip"``), and nothing that arrives from
outside under its names is read (``baggage.inbound = "drop"``): that is a ``forged`` alert. Between services that share
a secret, ``sign`` and ``verify`` let keys cross; ``plain`` and ``trust`` do so unprotected, and ``hash`` shows others a
keyed digest. A claim never leaves by a propagator, and is never believed from one.

What leaves is written from the sources, so that it is what counts there and then, whatever older baggage says. What is
let in is put into the OpenTelemetry Context that was extracted, and counts where that is attached (`admission`).

A signed entry is ``s1.<milliseconds>.<nonce>.<signature>.<value in base64url>``: characters that nobody on the way has
a reason to encode anew. The signature is over the entry's name, the value, the trace id, the time and the nonce, so no
two injections are alike. It counts in its own trace, within `FRESH` seconds, once. What is repeated is refused, also
where a client re-sends what it sent below the instrumentation that injects (a redirect that ``requests`` follows, a
retry of urllib3's or of a proxy's): such a request arrives without a key. To extract a message again within the request
that it came with is no repetition. A signature proves who wrote an entry, and hides nothing.
"""

from __future__ import annotations

import operator
import os
import re
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otelctx import admission, alerts, flow, policy, runtime, signing
from otelctx.mismatch import Mismatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otelctx.config import BaggageConfig

PREFIX: Final = "otelctx."
CLAIM: Final = "otelctx.claim"
OTHER: Final = "other"
"""The key that an alert names where a stranger made a name up: what he writes must not become a metric's label."""

FRESH: Final = 300.0
"""Seconds within which a signed entry counts; the clocks of two services may differ by less than that."""
REMEMBERED: Final = 65_536
"""How many signatures are remembered, so that none counts twice; with more in `FRESH` seconds, those get fewer."""

_DIGEST: Final = "hash:"
_SHOWS_DIGEST: Final = re.compile(_DIGEST + "[0-9a-f]{16}")
_SIGNED: Final = re.compile(r"s1\.([0-9]{1,15})\.([A-Za-z0-9_-]{11})\.([A-Za-z0-9_-]{43})\.([A-Za-z0-9_-]*)")
_SHOWN: Final = 256
"""How much of what a stranger wrote an alert shows."""

_OWN_CARRIER: Final[ContextVar[bool]] = ContextVar("otelctx.own_carrier", default=False)

_outbound = "strip"
_inbound = "drop"
_window = signing.ReplayWindow(FRESH, REMEMBERED)


def configure(settings: BaggageConfig) -> None:
    """Take what leaves and what is believed from `settings`."""
    global _outbound, _inbound
    _outbound, _inbound = settings.outbound, settings.inbound


@contextmanager
def own_carrier() -> Iterator[None]:
    """Within the block, what is injected is for a child of ours: keys stay, but those that a policy keeps from it."""
    token = _OWN_CARRIER.set(True)
    try:
        yield
    finally:
        _OWN_CARRIER.reset(token)


def is_ours(name: object) -> bool:
    """Whether a baggage entry called `name` is otelctx's."""
    return isinstance(name, str) and (name.startswith(PREFIX) or name in _names())


def leaving(context: Any) -> Any:
    """The OpenTelemetry Context (None: the current one) from which a propagator injects."""
    current = runtime.variable.get() if context is None else context
    held = runtime.baggage_of(current) or {}
    is_childs = _OWN_CARRIER.get()
    outbound = "plain" if is_childs else _outbound
    names = _names()
    # With `plain`, keys that are declared elsewhere, and were trusted here, pass as they came.
    kept = {
        name: value
        for name, value in held.items()
        if not is_ours(name) or (outbound == "plain" and name != CLAIM and name not in names)
    }
    if outbound != "strip":
        if flow.registry.pending:
            flow.discover()
        now, trace = flow.peek(), _trace_of(current)
        for key in flow.registry.keys:
            is_withheld = is_childs and policy.for_key(key, policy.SUBPROCESS) != "inherit"
            value = None if is_withheld else admission.value_of(key, now, current)
            if value is not None:
                _add(kept, key.baggage, value, outbound, trace)
    return context if kept == held else runtime.with_baggage(current, kept)


def _add(kept: dict[str, object], name: str, value: str, outbound: str, trace: str) -> None:
    """Add an entry to what is `kept`, if it can be carried exactly and others leave room for it."""
    if (why := runtime.unfit(value)) is None:
        try:
            if outbound == "sign":
                value = _sealed(name, value, trace)
            elif outbound == "hash":
                value = _DIGEST + signing.digest(value)
            elif value != value.strip() or not value:
                why = "propagators cut white space off, and pass over what is empty"
        except signing.SecretError as exc:
            why = str(exc)
        why = why or runtime.crowded(kept, name, value)
    if why is None:
        kept[name] = value
    else:
        flow.refuse_baggage(name, why)


def bare(context: Any) -> Any:
    """`context` (None: the current one) without any entry of ours: what is left to do where deciding has failed."""
    current = runtime.variable.get() if context is None else context
    held = runtime.baggage_of(current) or {}
    if not any(map(is_ours, held)):
        return context
    return runtime.with_baggage(current, {name: value for name, value in held.items() if not is_ours(name)})


def entering(found: Any, context: Any, *, own: bool = False) -> Any:
    """The OpenTelemetry Context `found`, which a propagator extracted on top of `context` (None: it chose).

    What a stranger wrote under our names is taken out, and is a `forged` alert; what `context` has there is as it was.
    `own`: the carrier is one that only this process and its parent could write, whose keys are believed.
    """
    before = runtime.variable.get() if context is None else context
    held, earlier = runtime.baggage_of(found), runtime.baggage_of(before) or {}
    if not held or held is earlier:
        return found  # there was no baggage: what is in it is our own
    came = [name for name, value in held.items() if is_ours(name) and value is not earlier.get(name)]
    if not came:
        return found
    names = _names()
    inbound = "trust" if own else _inbound
    trace, here = _trace_of(found), admission.of(before)
    kept, values, signatures = dict(held), {}, set()
    refused: dict[str, tuple[str, str]] = {}
    for name in came:
        verdict = _judge(name, held[name], inbound, trace, here, declared=name in names)
        if verdict.refused:
            refused.setdefault(_key_of(name, names), (_claimed(held[name]), verdict.refused))
            del kept[name]
            if name in earlier and context is not None:
                kept[name] = earlier[name]
            continue
        kept[name] = verdict.value
        if verdict.counts:
            values[names[name]] = str(verdict.value)
            signatures.add(verdict.signature)
    result = runtime.with_baggage(found, kept)
    if values:
        result = admission.admitted(result, values, frozenset(signatures))
    for key, (observed, why) in refused.items():
        alerts.deliver(Mismatch(key, "forged", None, observed, "baggage", "dropped", detail=why), None, result)
    return result


def _claimed(value: object) -> str:
    """What an entry says, for an alert: a signature is not shown, which may still be good for another message."""
    signed = _SIGNED.fullmatch(value) if isinstance(value, str) else None
    opened = None if signed is None else _decoded(signed[4])
    return (str(value) if opened is None else opened)[:_SHOWN]


class _Verdict(NamedTuple):
    """What becomes of an entry from outside."""

    refused: str = ""
    """Why it is; nothing where it is let in."""
    value: object = None
    signature: str = ""
    counts: bool = False
    """Whether it is a key's value, and not only baggage."""


def _judge(
    name: str, value: object, inbound: str, trace: str, here: admission.Admitted | None, *, declared: bool
) -> _Verdict:
    if name == CLAIM:
        return _Verdict("a claim is never taken from outside")
    if inbound == "drop":
        return _Verdict("baggage.inbound is drop")
    signed = _SIGNED.fullmatch(value) if isinstance(value, str) else None
    if signed is None:
        if inbound != "trust":
            return _Verdict("it is not signed")
        if not declared or not isinstance(value, str) or _SHOWS_DIGEST.fullmatch(value):
            return _Verdict(value=value)
        return _Verdict(runtime.unfit(value) or "", value, counts=True)
    moment, nonce, signature, encoded = signed.groups()
    opened = _decoded(encoded)
    if opened is None or runtime.unfit(opened) is not None:
        return _Verdict("it is not as otelctx writes it")
    verdict = _Verdict(value=opened, signature=signature, counts=declared)
    if inbound == "trust":
        return verdict
    if not declared:
        return _Verdict("its key is not declared here")
    if not signing.verify(signature, "baggage", name, opened, trace, moment, nonce):
        return _Verdict("its signature is not for this value, trace and time, or is by another secret")
    if here is not None and signature in here.signatures:
        return verdict  # the request that this code serves, read a second time
    if _window.is_fresh(int(moment) / 1000, signature):
        return verdict
    age = time.time() - int(moment) / 1000
    if abs(age) <= FRESH:
        return _Verdict("it was there before")
    return _Verdict(f"it is {age:.0f} seconds old, and {FRESH:.0f} is the limit")


_OTHER_FORMATS: Final = ("uberctx-", "ot-baggage-")  # Jaeger's and OpenTracing's: a header for each entry
_OTHER_FORMAT: Final = re.compile("^(uberctx|ot-baggage)-")


def without_ours(headers: Any) -> None:
    """Take our entries out of baggage that `headers` have already, as those of a request that is forwarded have.

    `headers` are a mapping, which may have a name several times (multidict's and werkzeug's may), or a list of pairs (a
    message of Kafka's has one); anything else stays as it is. A propagator that has nothing to write leaves an older
    header in place.
    """
    if isinstance(headers, list):
        pairs = [_pair_left(pair) for pair in headers]
        if any(left is not pair for left, pair in zip(pairs, headers, strict=True)):
            headers[:] = [pair for pair in pairs if pair is not None]
    elif all(hasattr(headers, method) for method in ("items", "__contains__", "__setitem__", "__delitem__")):
        by_header: dict[str, list[tuple[Any, Any, Any]]] = {}
        for name, value in [*headers.items()]:
            if isinstance(name, str | bytes):
                by_header.setdefault(_header(name), []).append((name, value, _left(name, value)))
        for entries in by_header.values():
            if any(left is not value for _, value, left in entries):
                _replace(headers, [name for name, _, _ in entries], [left for *_, left in entries if left is not None])


def _replace(headers: Any, names: list[Any], values: list[Any]) -> None:
    """Give one header, which is there under `names`, these `values`."""
    for name in names:
        if name in headers:  # a name that is there twice is gone at once
            del headers[name]
    if values:
        headers[names[0]] = values[0] if len(values) == 1 else ",".join(map(_text, values))


def _pair_left(pair: Any) -> Any:
    if type(pair) is not tuple or len(pair) != 2 or not isinstance(pair[0], str | bytes):
        return pair
    left = _left(*pair)
    return pair if left is pair[1] else None if left is None else (pair[0], left)


def _left(name: str | bytes, value: Any) -> Any:
    """What is left of a header without our entries: `value` itself where there are none, None where that is nothing."""
    header = _header(name)
    if header.startswith(_OTHER_FORMATS) and is_ours(_decoded_name(_OTHER_FORMAT.sub("", header))):
        return None
    if header != "baggage":
        return value
    if isinstance(value, list | tuple):
        several = [left for one in value if (left := _left(name, one)) is not None]
        if len(several) == len(value) and all(map(operator.is_, several, value)):
            return value
        return type(value)(several) if several else None
    entries = _text(value).split(",")
    kept = [entry for entry in entries if not is_ours(_decoded_name(entry.partition("=")[0]))]
    if len(kept) == len(entries):
        return value
    text = ",".join(kept)
    return None if not kept else text.encode("latin-1") if isinstance(value, bytes) else text


def _header(name: str | bytes) -> str:
    return _text(name).lower()


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _decoded_name(name: str) -> str:
    from urllib.parse import unquote_plus

    return unquote_plus(name.strip()).strip()


_known: tuple[object, Mapping[str, str]] = (None, {})


def _names() -> Mapping[str, str]:
    """The keys that are declared, by the names of their entries."""
    global _known
    declared, names = flow.registry, _known
    if names[0] is not declared:
        names = _known = declared, {key.baggage: key.name for key in declared.keys}
    return names[1]


def _key_of(name: str, names: Mapping[str, str]) -> str:
    return names.get(name) or ("claim" if name == CLAIM else OTHER)


def _trace_of(context: Any) -> str:
    """The trace that is current in `context`, as it is written in ``traceparent``; empty where there is none."""
    span = runtime.span_of(context)
    trace = 0 if span is None else span.get_span_context().trace_id
    return format(trace, "032x") if trace else ""


def _sealed(name: str, value: str, trace: str) -> str:
    from base64 import urlsafe_b64encode

    moment = str(time.time_ns() // 1_000_000)
    nonce = urlsafe_b64encode(os.urandom(8)).decode("ascii").rstrip("=")
    signature = signing.sign("baggage", name, value, trace, moment, nonce)
    encoded = urlsafe_b64encode(value.encode("utf-8")).decode("ascii").rstrip("=")
    return f"s1.{moment}.{nonce}.{signature}.{encoded}"


def _decoded(encoded: str) -> str | None:
    from base64 import urlsafe_b64decode

    try:
        return urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode("utf-8")
    except ValueError:
        return None
