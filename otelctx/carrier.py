"""A snapshot as text: for hops that otelctx carries itself, between processes and interpreters of one application.

No `contextvars.Context`, closure or object of an application can go there. What goes is a line of JSON (`pack`): the
declared keys with their names, values and the raw value of each of their ContextVars, the claim, what was written to
the scoped environment, and the span context and the baggage. Where the work arrives, `unpack` makes a `Snapshot` of it
with *that* process's keys, which may be declared differently: total replay, so that a variable that was absent at
departure is absent there.

**A raw value** is carried as it is where it is a string, bytes, a number, a boolean, None or a UUID
(`otelctx.portable`). Anything else is carried as the text that the source reads in it, and otherwise arrives absent,
which is counted.

**A variable of a module that is not imported yet** is given its raw value as soon as the work, in the context in
which it arrived, has imported it; otelctx imports nothing by itself.

**The claim** arrives as it departed, whatever the other process's environment says: held, shed, or none.

**Where otelctx is off** (the parent turned it on in code, and the child does not), the keys arrive all the same: in the
declared ContextVars, in `otelctx.get` and in baggage. Nothing is compared there, and what hops from there is not seen
to. Where the text is of another version of otelctx, the work runs plainly.

The text is built once for a snapshot, and read once for each text. Thread-safe.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from otelctx import activation, arrival, faults, flow, mode, ownership, policy, portable, runtime, spans
from otelctx import departure as departures
from otelctx import snapshot as snapshots
from otelctx.bounded import make_room
from otelctx.claim import SHED, Claim, Inherited
from otelctx.config import KeyConfig, SourceConfig
from otelctx.keys import MISSING, ContextVarSource, Key, Registry
from otelctx.mismatch import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import ContextVar
    from types import FrameType

    from otelctx.claim import ClaimState
    from otelctx.departure import Departure
    from otelctx.flow import Flow
    from otelctx.owners import Owner
    from otelctx.snapshot import Snapshot

R = TypeVar("R")

VERSION: Final = 1
"""The form of the text. Another one is not read."""

Hop: TypeAlias = tuple[str, float, "tuple[str, str, int] | None", tuple[str, ...], "str | None", bool, bool]
"""One hop besides its snapshot: its kind; when it departed (seconds since the epoch); and, where there is more to it:
place, trail, the callable's name (else None), whether it has a span, whether a getter departs."""

READ: Final = 32
"""How many texts' snapshots a process remembers."""


# --- departure -------------------------------------------------------------------------------------------------------


def can_arrive(method: str) -> bool:
    """Whether a process that is started by `method` can import otelctx."""
    if method == "fork":
        return True
    from multiprocessing import spawn

    executable = spawn.get_executable()
    if executable is not None and os.fsdecode(executable) == sys.executable and _is_on_path():
        return True
    faults.internal_error(
        "process", message="what is sent to a process that may not be able to import otelctx arrives without a key"
    )
    return False


def _is_on_path() -> bool:
    """Whether ``sys.path``, which a spawned child is given, leads to otelctx."""
    from multiprocessing.process import ORIGINAL_DIR  # type: ignore[attr-defined]  # what it is given for ""

    home = os.path.dirname(os.path.dirname(__file__))
    return home in sys.path or ("" in sys.path and home == ORIGINAL_DIR)


def departing(captured: Snapshot, kind: int, fn: object) -> Snapshot | Departure:
    """What departs here as `captured` at a hop of `kind`, to call `fn`."""
    return departures.Departure(captured, kind, called=fn) if captured.detailed else captured


def packed(departing: Snapshot | Departure, kind: int) -> tuple[str, Hop]:
    """What goes with the work: its snapshot as text, and the hop. Called where the work departs."""
    name = policy.NAMES[kind]
    if isinstance(departing, snapshots.Snapshot):
        return pack(departing), (name, time.time(), None, (), None, False, False)
    where = departing.place
    at = None if where is None else (where.function, where.file, where.line)
    called = departing.named(None)
    return pack(departing.snapshot), (
        name,
        time.time(),
        at,
        departing.trail,
        called,
        departing.spanned,
        departing.is_asked,
    )


def pack(snapshot: Snapshot) -> str:
    """`snapshot` as text. Called where the work departs: a claim that the process's environment holds is asked anew."""
    is_asked_anew = snapshot.flow.claim is None and ownership.is_declared()
    known: str | None = None if is_asked_anew else getattr(snapshot, "packed", None)
    if known is None:
        known = _packed(snapshot)
        if not is_asked_anew:
            snapshot.packed = known
    return known


def _packed(snapshot: Snapshot) -> str:
    import json

    departed, arriving = snapshot.before, snapshot.flow
    raws = dict(zip(arriving.registry.settable, arriving.raws, strict=True))
    keys = []
    for key, before, value in zip(arriving.registry.keys, departed.values, arriving.values, strict=True):
        binding = None if arriving.state is None else arriving.state.bound.get(key.name)
        counts = binding is not None and binding.value == value
        awaited: Mapping[str, Any] = {} if binding is None else binding.awaited
        packed: dict[str, Any] = {
            "name": key.name,
            "attribute": key.attribute,
            "baggage": key.baggage,
            "value": value,
            "sources": [
                _source(source, portable.packed(source, raws[source]) if source in raws else awaited[source.path])
                for source in key.settable
                if source in raws or source.path in awaited
            ],
        }
        if counts:
            packed["bound"] = "minted" if binding is not None and binding.minted else "bound"
        if before != value:
            packed["before"] = before
        keys.append(packed)
    content = {"v": VERSION, "mode": mode.current(), "keys": keys, **_claim(arriving), **_otel(snapshot)}
    for source in arriving.registry.carried:  # the view of the scoped environment
        from otelctx import scoped_env

        content["environment"] = scoped_env.written(raws[source], arriving)
    return json.dumps(content, separators=(",", ":"))


def _source(source: ContextVarSource, raw: Any) -> dict[str, Any]:
    packed: dict[str, Any] = {"path": source.path, "raw": raw}
    if source.unset_path is not None:
        packed["unset"] = source.unset_path
    empty = [portable.plain(value) for value in source.empty]
    if any(value is not MISSING for value in empty):
        packed["empty"] = [value for value in empty if value is not MISSING]
    return packed


def _claim(now: Flow) -> dict[str, Any]:
    claim, is_granted = now.claim, now.claim is not None
    if claim is None:
        if not ownership.has_variables():
            return {}
        # The application may have shed it by its own predicate, which will say nothing of it over there.
        claim = SHED if ownership.claim_state() == "shed" else ownership.current_claim()
    if not isinstance(claim, Claim):
        return {"claim": claim}
    parts = [claim.task_id, claim.holder, claim.attempt, claim.token, claim.pid]
    return {"claim": [*parts, is_granted and not isinstance(claim, Inherited)]}


def _otel(snapshot: Snapshot) -> dict[str, Any]:
    """The span context, and baggage that is not otelctx's: its own entries are written anew where it arrives."""
    if not runtime.is_adopted():
        return {}
    packed: dict[str, Any] = {}
    span = runtime.span_of(snapshot.otel)
    context = None if span is None else span.get_span_context()
    if context is not None and context.is_valid:
        packed["span"] = [
            f"{context.trace_id:032x}",
            f"{context.span_id:016x}",
            int(context.trace_flags),
            context.trace_state.to_header() if context.trace_state else "",
        ]
    ours = {name for name, _ in snapshot.flow.entries()}
    held = runtime.baggage_of(snapshot.otel) or {}
    others = {str(name): value for name, value in held.items() if name not in ours and isinstance(value, str)}
    if packed or others or not snapshot.flow.is_empty:
        packed["baggage"] = others
    return packed


def sealed(text: str, hop: Hop) -> memoryview:
    """Both as one object that goes to another interpreter as it is, and whose repr does not show a key or a token."""
    import json

    return memoryview(json.dumps([text, hop]).encode())


# --- arrival ---------------------------------------------------------------------------------------------------------


class Carried:
    """A function that arrives as it departed, in whatever process it is called. Pickles wherever the function does."""

    __slots__ = ("__wrapped__", "hop", "owner", "text")

    def __init__(self, text: str, hop: Hop, fn: Callable[..., Any], owner: Owner | None = None) -> None:
        self.__wrapped__ = fn
        self.text = text
        self.hop = hop
        self.owner = owner
        """Whose the work is, for where it departs; not sent."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Arrive."""
        return arrive(self.text, self.hop, self.__wrapped__, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        fn = self.__wrapped__
        if type(fn) is FunctionType and not _is_importable(fn):
            _pickle_alone(fn, sys._getframe(1))
        return Carried, (self.text, self.hop, fn)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


def _pickle_alone(fn: FunctionType, pickling: FrameType) -> None:
    """Pickle `fn` as multiprocessing does, where that is `pickling`: what fails then has no trace of what is around it.

    Other picklers (cloudpickle, in an executor's own ``submit``) can do what multiprocessing's cannot.
    """
    if pickling.f_code.co_name == "dumps" and pickling.f_globals.get("__name__") == "multiprocessing.reduction":
        pickling.f_locals["cls"].dumps(fn)


def _is_importable(fn: FunctionType) -> bool:
    return getattr(sys.modules.get(fn.__module__), fn.__qualname__, None) is fn


class Run:
    """The ``run`` that a started `multiprocessing.Process` has of its own in the child, until it runs."""

    __slots__ = ("earlier", "hop", "text")

    def __init__(self, text: str, hop: Hop, earlier: Callable[[], object] | None) -> None:
        self.text = text
        self.hop = hop
        self.earlier = earlier
        """The ``run`` that the instance had of its own, or None."""

    def __call__(self) -> None:
        """Arrive, in the child."""
        run, called = own_run(self.earlier)
        arrive(self.text, self.hop, run, (), {}, called=called)

    def __reduce__(self) -> tuple[Any, ...]:
        return Run, (self.text, self.hop, self.earlier)


def own_run(earlier: Callable[[], object] | None) -> tuple[Callable[[], object], object]:
    """Give the current process back the ``run`` that it had, `earlier` or its type's: that, and what it calls."""
    from multiprocessing.process import current_process

    process: Any = current_process()
    vars(process).pop("run", None)
    if earlier is not None:
        vars(process)["run"] = earlier
    return process.run, getattr(process, "_target", None) or type(process).run


def arrive(
    text: str,
    hop: Hop,
    fn: Callable[..., R],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    called: object = None,
) -> R:
    """Call ``fn(*args, **kwargs)`` as `text` departed; plainly where that cannot be had.

    `called` is what is named as the callable, where it is not `fn`.
    """
    arriving: tuple[Snapshot, Departure | None, int] | None = None
    try:
        arriving = _arriving(text, hop)
    except Exception as exc:
        faults.internal_error("carrier", exc)
    try:
        if arriving is None:
            return fn(*args, **kwargs)
        snapshot, departure, kind = arriving
        if departure is not None:
            departure.called = called
            return arrival.in_full(departure, fn, args, kwargs)
        return snapshots.arrive(snapshot, kind, fn, args, kwargs)
    finally:
        arriving = snapshot = departure = None  # type: ignore[assignment]
        del fn, args, kwargs, called


def arrive_sealed(view: memoryview, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    """`arrive`, with what `sealed` has made of it."""
    departed: tuple[str, Hop] | None = None
    try:
        import json

        departed = json.loads(bytes(view))
    except Exception as exc:
        faults.internal_error("carrier", exc)
    return fn(*args, **kwargs) if departed is None else arrive(*departed, fn, args, kwargs)


def received(text: str, hop: Hop) -> Snapshot | Departure | None:
    """What departed as `text`, for a hop that is adopted in place; None where that cannot be had. Never raises."""
    try:
        arriving = _arriving(text, hop)
    except Exception as exc:
        faults.internal_error("carrier", exc)
        return None
    return None if arriving is None else arriving[1] or arriving[0]


def _arriving(text: str, hop: Hop) -> tuple[Snapshot, Departure | None, int] | None:
    """The snapshot, what more there is to the hop, and its kind; None where the work is to run plainly."""
    if activation.pending() and _is_armed() and activation.may_activate(after_site=False):
        activation.activate()  # turned on by its environment, and this is its first hop
    name, at, where, trail, called, spanned, is_asked = hop
    kind = policy.NAMES.index(name)
    is_on = _is_on()
    snapshot = _unpacked(text, is_on)
    if snapshot is None:
        return None
    if not is_on:
        return snapshot, None, policy.EXPLICIT
    if not snapshot.detailed and called is None:
        return snapshot, None, kind
    departure = departures.Departure.carried(
        snapshot,
        kind,
        name=called,
        place=None if where is None else Place(*where),
        trail=tuple(trail),
        waited=max(0.0, time.time() - at),
        spanned=spans.wanted_after(spanned),
        is_asked=is_asked,
    )
    return snapshot, departure, kind


def _is_armed() -> bool:
    bootstrap = sys.modules.get("otelctx.bootstrap")
    return bootstrap is not None and bool(bootstrap.is_armed())


def _is_on() -> bool:
    installation = sys.modules.get("otelctx.installation")  # not imported where nobody has installed anything
    return installation is not None and bool(installation.is_installed())


_read: dict[tuple[str, Claim | None, bool], tuple[Registry, Any, Snapshot]] = {}


def _unpacked(text: str, is_on: bool) -> Snapshot | None:
    if not is_on and flow.registry.unresolved():
        flow.discover()  # nobody watches the imports
    known = text, ownership.of_process(), is_on
    found = _read.get(known)
    if found is not None and found[0] is flow.registry and found[1] is runtime.variable:
        return found[2]
    import json

    content = json.loads(text)
    if content.get("v") != VERSION or (not is_on and content["mode"] == "observe"):
        return None
    if not is_on:
        _declare(content["keys"])
    elif flow.registry.unresolved():
        flow.discover()
    snapshot = _unpack(content)
    if not is_on:
        _watch_imports()
    make_room(_read, READ)
    _read[known] = flow.registry, runtime.variable, snapshot
    return snapshot


def unpack(text: str) -> Snapshot:
    """The snapshot that `text` (of `pack`) says, with this process's keys.

    Raises `ValueError` for the text of another version.
    """
    snapshot = _unpacked(text, is_on=True)
    if snapshot is None:
        raise ValueError("otelctx: the carrier is of another version")
    return snapshot


def _declare(packed: list[dict[str, Any]]) -> None:
    """Where otelctx is off, the keys are those that the work departed with."""
    keys = [
        KeyConfig(
            key["name"],
            attribute=key["attribute"],
            baggage=key["baggage"],
            sources=tuple(
                SourceConfig(
                    "contextvar",
                    source["path"],
                    empty=tuple(portable.value_of(value) for value in source.get("empty", ())),
                    unset=source.get("unset"),
                )
                for source in key["sources"]
            ),
        )
        for key in packed
    ]
    if keys != _declared:
        _declared[:] = keys
        flow.use(Registry(map(Key, keys)))
    flow.discover()


_declared: Final[list[KeyConfig]] = []


def _watch_imports() -> None:
    """Where otelctx is off, look for the variables of a module that the work imports by itself."""
    for source in flow.registry.unresolved():
        for path in (source.path, source.unset_path):
            module = "" if path is None else path.partition(":")[0]
            if module and module not in sys.modules and module not in _watched:
                from otelctx_instrumentation.patching import when_imported

                _watched.add(module)
                when_imported(module, _discover)


def _discover(module: object) -> None:
    flow.discover()


_watched: Final[set[str]] = set()


def _unpack(content: dict[str, Any]) -> Snapshot:
    if "baggage" in content and not runtime.is_adopted() and runtime.load():
        snapshots.refresh()  # it is in use where the work comes from, so whoever asks for baggage here is to find it
    declared = flow.registry
    raws = {source["path"]: source["raw"] for key in content["keys"] for source in key["sources"]}
    values = {key["name"]: key for key in content["keys"]}
    readings: dict[ContextVar[Any], object] = dict.fromkeys(declared.vars, MISSING)
    for key in declared.keys:
        readings.update(
            (source.var, portable.restored(source, raws[source.path]))
            for source in key.settable
            if source.var is not None and source.path in raws
        )
    bound: dict[str, flow.Binding] = {}
    for key in declared.keys:
        packed = values.get(key.name, {})
        value, how = packed.get("value"), packed.get("bound")
        paths = [source.path for source in key.settable if source.var is None]
        awaited = {path: raws[path] for path in paths if raws.get(path, portable.ABSENT) != portable.ABSENT}
        if how is not None or awaited or flow.value_of(key, readings, None) != value:
            own = {source.var: readings[source.var] for source in key.settable if source.var is not None}
            bound[key.name] = flow.Binding(value, own, minted=how == "minted", awaited=awaited)
            if value is not None:
                key.bound()
    claim = _claimed(content["claim"]) if "claim" in content else None
    state = flow.State(bound, claim) if bound or claim is not None else None
    arriving = flow.derive(declared.root, state, tuple(readings[var] for var in declared.vars))
    if declared.carried and content.get("environment"):
        from otelctx import scoped_env

        view = scoped_env.view_of(content["environment"], arriving)
        readings.update((source.var, view) for source in declared.carried if source.var is not None and view)
        arriving = flow.derive(declared.root, state, tuple(readings[var] for var in declared.vars))
    departed = arriving
    if any("before" in packed for packed in values.values()):
        earlier = {
            key.name: flow.Binding(packed.get("before", packed.get("value")), dict.fromkeys(declared.vars, MISSING))
            for key in declared.keys
            if (packed := values.get(key.name)) is not None
        }
        departed = flow.derive(declared.root, flow.State(earlier), tuple(MISSING for _ in declared.vars))
    otel = _context(content) if runtime.is_adopted() else runtime.empty
    return snapshots.Snapshot(
        departed,
        arriving,
        otel,
        snapshots.in_step(otel, arriving),
        detailed=snapshots.is_detailed(otel) or departed is not arriving,
    )


def _claimed(packed: Any) -> ClaimState:
    own = ownership.of_process()
    if packed is None:
        return None if own is None else SHED  # nobody's, and the environment would say otherwise
    if packed == SHED:
        return SHED
    *parts, is_granted = packed
    if is_granted:
        return Claim(*parts)
    claim = Inherited(*parts)
    return None if own is not None and replace(own, pid=None) == replace(claim, pid=None) else claim


def _context(content: dict[str, Any]) -> Any:
    """The OpenTelemetry Context of an arrival, without otelctx's own baggage."""
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

    otel = runtime.empty
    if content.get("baggage"):
        otel = runtime.with_baggage(otel, dict(content["baggage"]))
    if "span" in content:
        trace_id, span_id, flags, state = content["span"]
        departed = SpanContext(
            int(trace_id, 16), int(span_id, 16), True, TraceFlags(flags), TraceState.from_header([state])
        )
        otel = runtime.with_span(otel, NonRecordingSpan(departed))
    return otel
