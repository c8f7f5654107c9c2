"""Messages of task queues: what travels with one through a broker, and how its run arrives.

`depart` puts the current context's identity into one short ASCII string, the *carrier*. It fits where a runner lets a
message have something besides its arguments (a header, a label, an option), and workers without otelctx ignore it.
`arrival` reads it where the message is run, and runs the work as the message departed, whatever the worker held:

    headers[tasks.NAME] = tasks.depart(message=task_id)                               # where it is sent
    tasks.arrival(carrier, runner="celery", job=name, message=task_id).run(fn, *args)  # where it is run

A key that the message does not bring is nobody's: it is minted (``task:<runner>:<job>:<run>``), and never the worker's.
A carrier that cannot be read, or is not verified, is dropped with one ``forged`` alert, and the work runs.

Where a secret is set (`otelctx.signing`), a carrier is signed together with its message's id, so that it is worth
nothing in another message, and only what is verified is believed; where none is set, the broker is believed. A
carrier holds no secret of a claim (`Claim.token`), since a broker may be read by many.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otelctx import alerts, cron, faults, flow, metrics, policy, portable, redaction, runtime, signing, spans
from otelctx import snapshot as snapshots
from otelctx.claim import SHED, Claim, Inherited
from otelctx.departure import Departure
from otelctx.interruption import pass_on
from otelctx.keys import MISSING, is_uuid
from otelctx.mismatch import Mismatch
from otelctx.runs import Arrival

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otelctx.claim import ClaimState
    from otelctx.flow import Flow
    from otelctx.keys import ContextVarSource, Key
    from otelctx.snapshot import Snapshot

NAME: Final = "otelctx"
"""What a carrier is called among a message's headers, labels or options, where a runner names such things."""

LIMIT: Final = 8192
"""How many characters a carrier has at most."""

_VERSION: Final = "1"
_PURPOSE: Final = "task"
_ROOM: Final = LIMIT - 64
"""What is left for what a carrier says, besides its version and its signature."""


_ATTEMPTS: Final = 999_999
"""How far attempts are counted."""


class _BrokenError(ValueError):
    """A carrier that is not believed; the text says why, and holds nothing of it."""


class _Said(NamedTuple):
    """What a carrier says of one key."""

    value: str
    raws: Mapping[str, object]
    """What the application's own variables were, by their sources' paths; one that is not named was absent."""
    is_minted: bool
    """Whether the value was fresh, so that the application's own places are cleared and not filled with it."""


class _Message(NamedTuple):
    """What a carrier says; the defaults are those of a message without one."""

    keys: Mapping[str, _Said] = {}
    claim: Claim | None = None
    parent: Any = None
    """The span context of whoever sent it; None where there was no span, or no tracing here."""
    departed: float | None = None
    """When it was sent, in seconds since the epoch."""
    tick: str | None = None
    """The job whose tick sent it."""
    nonce: str = ""
    attempt: int = 1


def depart(kind: int = policy.TASK, *, message: str = "", runner: str = "", job: str = "", attempt: int = 1) -> str:
    """The carrier for a message that the current context sends.

    Arguments: `kind` is `policy.TASK`, `DEFERRED` or `RETRY`, or `CRON` for a tick that sends a message: its key is
    minted here (``cron:<runner>:<job>:<run>``), its retries keep it, and its run is a cron run. `message` is the id
    that the message has, where the runner knows it by now; the same is given to `arrival`. `runner` and `job` name
    what is minted. `attempt` is the number of the run that it is sent for, from 1, for runners whose messages do not
    count them.

    Returns an ASCII string of at most `LIMIT` characters, without control characters or white space; an empty one
    after a fault of ours, which is counted. Never raises; thread-safe.
    """
    try:
        departing = (
            snapshots.depart_as(kind, cron.key_of_run(runner, job)) if kind == policy.CRON else snapshots.depart()
        )
        return _sealed(_written(departing, kind, job, attempt), message)
    except Exception as exc:
        faults.internal_error("task", exc, "a message departs without its keys")
        return ""


def _written(departing: Snapshot, kind: int, tick: str, attempt: int) -> str:
    now = departing.flow
    said: dict[str, Any] = {"t": round(time.time(), 6), "n": os.urandom(6).hex()}
    if kind == policy.CRON:
        said["tick"] = tick[:200]
    if attempt > 1:
        said["try"] = min(attempt, _ATTEMPTS)
    claim = now.claim
    if isinstance(claim, Claim) and not isinstance(claim, Inherited) and claim.task_id and kind != policy.DEFERRED:
        parts = {"task_id": claim.task_id, "holder": claim.holder, "attempt": claim.attempt}
        said["claim"] = {part: value for part, value in parts.items() if value}
        if not all(map(_fits, said["claim"].values())):
            del said["claim"]
            _refuse("claim")
    span = runtime.span_of(departing.otel_departed) if runtime.is_adopted() else None
    sender = None if span is None else span.get_span_context()
    if sender is not None and sender.is_valid:
        said["parent"] = f"00-{sender.trace_id:032x}-{sender.span_id:016x}-{sender.trace_flags:02x}"
    text = _dumped(said)
    for key, value in zip(now.registry.keys, now.values, strict=True):
        if not value or (kind != policy.CRON and policy.for_key(key, kind) != "inherit"):
            continue
        wider = {**said, "keys": {**said.get("keys", {}), key.name: _of_key(key, value, now)}}
        longer = _dumped(wider)
        if _fits(value) and len(longer) <= _ROOM:
            said, text = wider, longer
        else:
            _refuse(key.name)
    if sender is not None and sender.trace_state:
        longer = _dumped({**said, "state": sender.trace_state.to_header()})
        text = longer if len(longer) <= _ROOM else text
    return text


def _dumped(said: Mapping[str, Any]) -> str:
    import json

    # A blank is one of a string's own: some transports fold white space.
    return json.dumps(said, separators=(",", ":")).replace(" ", "\\u0020")


def _fits(value: str) -> bool:
    return len(value) <= runtime.MAX_VALUE_BYTES and runtime.encoded_size(value) <= runtime.MAX_VALUE_BYTES


def _refuse(name: str) -> None:
    faults.internal_error("task", message=f"{name} is too long for a message, and does not travel with it")


def _of_key(key: Key, value: str, now: Flow) -> dict[str, Any]:
    said: dict[str, Any] = {"v": value}
    raws: dict[str, Any] = {}
    for source, raw in zip(now.registry.settable, now.raws, strict=True):
        reading = source.reading(raw) if source in key.settable else None
        if reading is False:
            raws[source.path] = None
        elif reading is not None and isinstance(raw, int) and portable.plain(int(raw)) is not MISSING:
            raws[source.path] = int(raw)
        elif reading is not None:
            raws[source.path] = {"uuid": reading} if is_uuid(type(raw)) else reading == value or reading
    if raws:
        said["r"] = raws
    binding = None if now.state is None else now.state.bound.get(key.name)
    if binding is not None and binding.minted and binding.value == value:
        said["minted"] = 1
    return said


def _is_signed_for() -> bool:
    """Whether somebody has configured a secret: one that cannot be used proves nothing, and lets nothing pass."""
    return signing.is_configured(os.environ)


def _sealed(text: str, message: str) -> str:
    signature = ""
    if _is_signed_for():
        signature = signing.sign(_PURPOSE, text, message)
    return f"{_VERSION}.{signature}.{text}"


def _opened(carrier: object, message: str) -> _Message:
    """What `carrier` says; raises `_BrokenError` where it is not to be believed."""
    if not isinstance(carrier, str):
        raise _BrokenError(f"it is a {type(carrier).__name__}, and no string")
    if len(carrier) > LIMIT:
        raise _BrokenError(f"it is longer than {LIMIT} characters")
    version, _, rest = carrier.partition(".")
    signature, dot, text = rest.partition(".")
    if version != _VERSION or not dot:
        raise _BrokenError("it is of no version that is known here")
    if _is_signed_for():
        if not signature:
            raise _BrokenError("it is not signed")
        if not signing.verify(signature, _PURPOSE, text, message):
            raise _BrokenError("its signature is not that of this message")
    try:
        return _read(text)
    except Exception as exc:  # of any type, for a text that somebody has made up
        pass_on(exc)
        raise _BrokenError(f"it cannot be read ({type(exc).__name__})") from None


def _read(text: str) -> _Message:
    import json

    said = json.loads(text)
    departed = said["t"]
    if type(departed) not in (int, float) or not 0 <= departed < 1e11:
        raise ValueError(departed)
    keys = {str(name): _read_key(about) for name, about in said.get("keys", {}).items()}
    parent = _read_parent(said.get("parent"), _text(said.get("state", "")))
    tick = said.get("tick")
    return _Message(
        keys,
        _read_claim(said.get("claim")),
        parent,
        departed,
        None if tick is None else _text(tick)[:200],
        _nonce(said["n"]),
        _read_attempt(said.get("try", 1)),
    )


def _read_attempt(number: object) -> int:
    if type(number) is not int or not 1 <= number <= _ATTEMPTS:
        raise ValueError(number)
    return number


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _nonce(value: object) -> str:
    nonce = _text(value)
    if not (nonce.isascii() and nonce.isalnum() and len(nonce) <= 64):  # it becomes a part of a key
        raise ValueError(value)
    return nonce


def _value(value: object) -> str:
    if not value or not _fits(_text(value)):
        raise ValueError(value)
    return _text(value)


def _read_key(about: Mapping[str, Any]) -> _Said:
    value = _value(about["v"])
    raws = {path: _read_raw(raw, value) for path, raw in about.get("r", {}).items()}
    return _Said(value, raws, bool(about.get("minted")))


def _read_raw(raw: object, value: str) -> object:
    if raw is True:
        return value
    if isinstance(raw, dict):
        from uuid import UUID

        return UUID(raw["uuid"])
    if raw is None or isinstance(raw, str) or (type(raw) is int and portable.plain(raw) is not MISSING):
        return raw
    raise TypeError(raw)


def _read_claim(parts: Mapping[str, object] | None) -> Claim | None:
    if parts is None:
        return None
    task_id, holder, attempt = (parts.get(part) for part in ("task_id", "holder", "attempt"))
    return Claim(
        _value(task_id), None if holder is None else _value(holder), None if attempt is None else _value(attempt)
    )


def _read_parent(parent: object, state: str) -> Any:
    if parent is None:
        return None
    version, trace, span, flags = _text(parent).split("-")
    numbers = int(trace, 16), int(span, 16), int(flags, 16)
    if (version, len(trace), len(span), len(flags)) != ("00", 32, 16, 2) or not all(numbers[:2]):
        raise ValueError(parent)
    if not runtime.is_adopted():
        return None
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    carried = TraceState.from_header([state]) if state else None
    return SpanContext(numbers[0], numbers[1], is_remote=True, trace_flags=TraceFlags(numbers[2]), trace_state=carried)


def arrival(
    carrier: object,
    *,
    runner: str,
    job: str,
    message: str = "",
    attempt: int = 1,
    is_cron: bool = False,
    is_schedule: bool = False,
    called: object = None,
    is_told: bool = False,
) -> Arrival:
    """The run of a message that brings `carrier`: None or an empty string where it brings none.

    Arguments: `runner` and `job` name it; `message` is its id, as `depart` was told; `attempt` counts from 1, and is
    the one of the carrier where that is higher;
    `is_cron`, where a scheduler of the runner's own sent it, whatever its carrier says: its keys are then minted;
    `is_schedule`, where it is a schedule's, and run at each of its times: that is a cron run, with keys of its own each
    time, unless the carrier is one that departed for a single time (as any kind but `policy.CRON`);
    `called` is the function that will run, where the runner knows it; `is_told`, where the message has been run, and
    something more is done for it: what is wrong with its carrier has been told then.

    A claim is the one that the message brings, granted anew for each attempt, else it is shed. A message that a tick
    sent is a cron run: its span is a root, with a Link to whatever caused it. Never raises; thread-safe.
    """
    said, why = _Message(), ""
    try:
        if carrier is not None and carrier != "":
            said = _opened(carrier, message)
    except _BrokenError as exc:
        why = str(exc)
    except Exception as exc:
        faults.internal_error("task", exc, "a message's carrier is not read")
    is_cron = is_cron or (is_schedule and (said.tick is not None or not said.nonce))
    job, attempt = redaction.encodable(said.tick or job), min(max(attempt, said.attempt), _ATTEMPTS)
    kind = policy.CRON if is_cron or said.tick is not None else policy.TASK if attempt <= 1 else policy.RETRY
    minted = cron.key_of_run(runner, job) if kind == policy.CRON else _key_of_message(runner, job, said.nonce)
    snapshot = _arriving(said, kind, minted, attempt, is_tick=is_cron)
    departing = Departure.carried(
        snapshot,
        kind,
        name=job,
        place=None,
        trail=(),
        waited=0.0 if said.departed is None else max(0.0, time.time() - said.departed),
        spanned=spans.wanted_for(kind, snapshot.otel_departed),
        is_asked=False,
    )
    departing.called = called
    if why and not is_told:
        key, name = flow.registry.keys[0].name, policy.NAMES[kind]
        alerts.deliver(Mismatch(key, "forged", None, None, f"message: {why}", "dropped", hop_kind=name))
    return Arrival(departing, SimpleNamespace(__qualname__=job, __module__=None) if called is None else called, attempt)


def _key_of_message(runner: str, job: str, nonce: str) -> str:
    """A key for a message that brings none, unlike that of any other message; the same for each of its attempts."""
    fresh = cron.key_of_run(runner, job).removeprefix("cron:")
    return f"task:{fresh.rpartition(':')[0]}:{nonce}" if nonce else f"task:{fresh}"


def _arriving(said: _Message, kind: int, minted: str, attempt: int, *, is_tick: bool) -> Snapshot:
    """What arrives: the keys that the message brings, and `minted` for the others."""
    here = flow.here()
    declared = here.registry
    departed = {} if here.state is None else dict(here.state.bound)
    arriving: dict[str, flow.Binding] = {}
    before: dict[Any, object] = dict(zip(declared.vars, here.raws, strict=True))
    after: dict[Any, object] = {source.var: source.cleared for source in declared.carried}
    carried = False
    for key in declared.keys:
        wanted = policy.for_key(key, kind)
        brought = None if is_tick or (wanted != "inherit" and kind != policy.CRON) else said.keys.get(key.name)
        settable = [(source, source.var) for source in key.settable if source.var is not None]
        if brought is None or brought.is_minted:
            raws = {var: source.cleared for source, var in settable}
            value = None if wanted == "shed" else minted if brought is None else brought.value
            arriving[key.name] = flow.Binding(value, raws, minted=True)
        else:
            raws = {var: _raw_of(source, brought) for source, var in settable}
            missing = [source.path for source in key.settable if source.var is None]
            awaited = {path: portable.awaited(brought.raws[path]) for path in missing if path in brought.raws}
            arriving[key.name] = departed[key.name] = flow.Binding(brought.value, raws, awaited=awaited)
            before.update(raws)
        carried = carried or brought is not None
        after.update(raws)
    was = here
    if any(name in said.keys and not said.keys[name].is_minted for name in arriving if not is_tick):
        was = flow.derive(here, flow.State(departed, here.claim), tuple(before[var] for var in declared.vars))
    claim: ClaimState = SHED
    if said.claim is not None and kind != policy.CRON:
        claim = replace(said.claim, attempt=str(attempt) if attempt > 1 else said.claim.attempt or "1", pid=os.getpid())
    now = flow.derive(was, flow.State(arriving, claim), tuple(after[var] for var in declared.vars))
    otel_departed, otel = _otel_of(said.parent, kind)
    snapshot = snapshots.Snapshot(was, now, otel_departed, snapshots.in_step(otel, now), detailed=True)
    snapshot.counts = _counts["carried" if carried and kind != policy.CRON else "minted"]
    return snapshot


_counts: Final = {
    outcome: tuple(metrics.hop_counter(name, outcome) for name in (*policy.NAMES, policy.NAMES[policy.TASK]))
    for outcome in ("carried", "minted")
}


def _raw_of(source: ContextVarSource, brought: _Said) -> object:
    raw = brought.raws.get(source.path, MISSING)
    return source.cleared if raw is None and source.cleared is not MISSING else raw


def _otel_of(parent: Any, kind: int) -> tuple[Any, Any]:
    """The OpenTelemetry Context that a message departed in, and the one that its run arrives in."""
    if not runtime.is_adopted():
        return runtime.empty, runtime.empty
    from opentelemetry.trace import NonRecordingSpan, SpanKind

    here = runtime.variable.get()
    current = runtime.span_of(here)
    sent = runtime.empty if parent is None else runtime.with_span(runtime.empty, NonRecordingSpan(parent))
    if current is not None:
        # The runner's own instrumentation has a span for this run already; any other is the worker's.
        is_sent = parent is not None and current.get_span_context().trace_id == parent.trace_id
        is_consumer = getattr(current, "kind", None) is SpanKind.CONSUMER and current.is_recording()
        if is_sent or is_consumer:
            sent = here
    return sent, runtime.without_span(runtime.empty) if kind == policy.CRON else sent
