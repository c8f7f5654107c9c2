"""What a context's identity is, now and before: `State`, `Flow`, and the pairs that change it.

*State* is what otelctx itself was told in a context (``bind``, a claim). *Flow* is the identity that results, from the
state and the application's own variables, together with the flows that the context has gone through: a span remembers
the flow in which it started, and a child whose context has since been bound anew is not a fault.

**The latest writer wins.** A binding remembers the raw values that the application's variables had. As long as they
are the same objects, the binding counts; once the application has set its own variable, the application's value does.
"""

from __future__ import annotations

import _thread
import itertools
from contextvars import Context, ContextVar
from contextvars import Token as VarToken
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from otelctx import forks, runtime
from otelctx.claim import Claim
from otelctx.config import Config
from otelctx.interruption import pass_on
from otelctx.keys import MISSING, ContextVarSource, Key, Registry, is_loading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context.context import Context as OtelContext

    from otelctx.binding import Token
    from otelctx.claim import ClaimState
    from otelctx.snapshot import Snapshot

MEMORY: Final = 8
"""How many flows back a context remembers."""
DEPTH: Final = 32
"""How many flows of open spans it remembers besides."""

_serials = itertools.count(1)

LOOKS: Final = 100
"""How often a name is looked for in the running program, which may define it later, until it counts as missing."""

_discovering = _thread.RLock()
forks.renew_in_child(globals(), "_discovering", _thread.RLock)


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Binding:
    """A value that otelctx was told for a key, and what the application's own variables said at that moment."""

    __slots__ = ("awaited", "given", "minted", "raws", "value")

    def __init__(
        self,
        value: str | None,
        raws: Mapping[ContextVar[Any], object],
        *,
        minted: bool = False,
        awaited: Mapping[str, Any] = _NOTHING,
        given: tuple[VarToken[Any], ...] = (),
    ) -> None:
        self.awaited = awaited
        """By their sources' paths, what variables of modules that this process has not imported yet are to be given as
        soon as it has (as `otelctx.portable` has it): work may import them by itself."""
        self.given = given
        """How to take back what they have been given."""
        self.value = value
        """None: the key was shed here."""
        self.minted = minted
        """Whether the value is fresh: the application's own places are cleared then, not filled with it."""
        self.raws = raws


class State:
    """What otelctx was told in a context. Never changed once it is set: other contexts share it."""

    __slots__ = ("_origin", "bound", "claim", "ended")

    def __init__(
        self,
        bound: Mapping[str, Binding],
        claim: ClaimState = None,
        *,
        ended: tuple[Token, ...] = (),
        origin: State | None = None,
    ) -> None:
        self.bound = bound
        self.claim = claim
        self.ended = ended
        """Tokens of outer bindings that were detached here before an inner one, latest first. They travel with the
        state, and a context that shares it does not see what was detached elsewhere since."""
        self._origin = origin  # None for itself: in a cycle, only the garbage collector would free what it holds

    @property
    def origin(self) -> State:
        """The state that a `Token` knows this one by: it is copied where `ended` changes."""
        return self if self._origin is None else self._origin

    def having_ended(self, ended: tuple[Token, ...]) -> State:
        """This state, where the bindings of the tokens `ended` have ended."""
        if ended == self.ended:
            return self
        return State(self.bound, self.claim, ended=ended[:MEMORY], origin=self.origin)


class Flow:
    """The identity of an execution context, and the ones before it."""

    __slots__ = (
        "around",
        "baggage",
        "base",
        "claim",
        "pairs",
        "raws",
        "registry",
        "seen",
        "serial",
        "state",
        "values",
    )

    def __init__(
        self,
        registry: Registry,
        state: State | None,
        raws: tuple[object, ...],
        *,
        values: tuple[str | None, ...],
        claim: ClaimState,
        serial: int | None = None,
        seen: tuple[int, ...] = (),
        around: tuple[int, ...] = (),
    ) -> None:
        self.registry = registry
        self.state = state
        self.raws = raws
        self.pairs: tuple[tuple[Callable[[object], object], object], ...] = tuple(
            (var.get, raw) for var, raw in zip(registry.vars, raws, strict=True)
        )
        """How to see that the application has changed nothing: each variable's ``get``, and what it gave."""
        self.values = values
        """Each key's value, in the registry's order."""
        self.claim = claim
        self.serial = next(_serials) if serial is None else serial
        """Which link of the line this is. Rebinding the same value to other objects makes no new link."""
        self.seen = seen
        """Serials of the flows before this one, latest first: numbers, since flows would keep each other alive."""
        self.around = around
        """Serials of the flows in which the spans around began, innermost first: a span stays open while any number of
        sessions are bound and unbound under it."""
        self.base: Snapshot | None = None
        """The last snapshot that was prepared for this flow."""
        self.baggage: tuple[dict[str, object] | None, dict[str, object] | None] | None = None
        """The baggage that was last brought in step with this flow, before and after: it is nearly always the same."""

    def to_keep(self) -> Flow:
        """This flow, as a context may remember it: without any object that an application keeps in a declared variable.

        Such an object (a request, a string that carries more than its characters) is replayed, and not kept: the
        context then looks anew at every departure.
        """
        if all(map(_is_light, self.raws)):
            return self
        return Flow(
            self.registry,
            self.state,
            tuple(raw if _is_light(raw) else _ELSEWHERE for raw in self.raws),
            values=self.values,
            claim=self.claim,
            serial=self.serial,
            seen=self.seen,
            around=self.around,
        )

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing of anybody."""
        return self.claim is None and not any(self.values)

    def knows(self, other: Flow) -> bool:
        """Whether `other` is this flow or one that this context has gone through."""
        return other.serial == self.serial or other.serial in self.seen or other.serial in self.around

    def after(self, other: Flow) -> Flow:
        """This flow, having gone through `other` as well."""
        seen = (other.serial, *(serial for serial in (*self.seen, *other.seen) if serial != other.serial))
        return Flow(
            self.registry,
            self.state,
            self.raws,
            values=self.values,
            claim=self.claim,
            serial=self.serial,
            seen=seen[:MEMORY],
            around=_merged(other.around, self.around),
        )

    def under(self, parent: Flow | None) -> Flow:
        """This flow, with a span that began in `parent` (one that it knows) around it."""
        around = (self.serial,) if parent is None else (self.serial, parent.serial, *parent.around)
        if not any(self.values) or all(serial in self.around for serial in around[:2]):
            return self
        return self.within(around)

    def within(self, around: tuple[int, ...]) -> Flow:
        """This flow, with spans around it that began in the flows `around`."""
        return Flow(
            self.registry,
            self.state,
            self.raws,
            values=self.values,
            claim=self.claim,
            serial=self.serial,
            seen=self.seen,
            around=_merged(around, self.around),
        )

    def in_step(self, otel: OtelContext) -> OtelContext:
        """The OpenTelemetry Context `otel` with baggage that says what this flow says; the same one where it does."""
        held, last = runtime.baggage_of(otel), self.baggage
        if last is None or last[0] is not held:
            last = self.baggage = held, runtime.merged(held, self.entries(), refuse_baggage)
        return otel if last[1] is held else runtime.with_baggage(otel, last[1])

    def entries(self) -> list[tuple[str, str | None]]:
        """The baggage entries that say what this flow says."""
        entries: list[tuple[str, str | None]] = [
            (key.baggage, value) for key, value in zip(self.registry.keys, self.values, strict=True)
        ]
        claim = self.claim
        entries.append(("otelctx.claim", f"held:{claim.task_id}" if isinstance(claim, Claim) else claim))
        return entries


_ELSEWHERE: Final = object()


def _is_light(raw: object) -> bool:
    # An instance without attributes is a sentinel, as `unset` names them.
    return raw is None or raw is MISSING or type(raw) in (str, int, float, bool, bytes, object)


def _merged(first: tuple[int, ...], then: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys((*first, *then)))[:DEPTH]


STATE: Final[ContextVar[State | None]] = ContextVar("otelctx.state", default=None)

registry: Registry
"""The declared keys. Replaced as a whole (`use`), never changed."""


def use(declared: Registry) -> None:
    """Make `declared` the process's keys. Thread-safe; contexts keep what is bound in them, their flows begin anew."""
    global registry
    _give_root(declared)
    registry = declared
    from otelctx import snapshot

    snapshot.refresh()


def _give_root(declared: Registry) -> None:
    root = _derive(declared, None, tuple(MISSING for _ in declared.vars))
    declared.root = root
    declared.flow = ContextVar("otelctx.flow", default=root)


def discover(report: Callable[[ContextVarSource, Exception], None] | None = None, complete: str = "") -> bool:
    """Look for the variables of sources that were not there yet; True when there is a new registry.

    A path that leads nowhere in a module that is complete is told to `report`; `complete` names one that has just been
    run. Thread-safe.
    """
    found, pending = False, []
    for source in registry.unresolved():
        try:
            source.resolve()  # may run code of the module's, and wait for an import: no lock is held
            found = True
        except KeyError:
            continue
        except Exception as exc:
            pass_on(exc)
            source.looks += 1
            module = source.path.partition(":")[0]
            if source.looks <= LOOKS and module != complete and is_loading(module):
                pending.append(source)
            elif report is not None or source.looks == LOOKS + 1:
                (report or _report)(source, exc)
    with _discovering:
        # Also the one that another thread has found meanwhile.
        resolved = [source for key in registry.keys for source in key.settable if source.var is not None]
        if any(source not in registry.settable for source in resolved):
            renewed = Registry(registry.keys, registry.carried)
            renewed.pending = tuple(pending)
            use(renewed)
        elif len(pending) != len(registry.pending):
            registry.pending = tuple(pending)
            from otelctx import snapshot

            snapshot.refresh()
    state = STATE.get()
    if found and state is not None:
        try:
            bound = {name: _with_what_is_awaited(name, binding) for name, binding in state.bound.items()}
            if bound != state.bound:
                STATE.set(State(bound, state.claim, ended=state.ended, origin=state.origin))
        except Exception as exc:
            pass_on(exc)
            from otelctx import faults

            faults.internal_error("source", exc)
    return found


def _with_what_is_awaited(name: str, binding: Binding) -> Binding:
    """Set, in the current context, the variables of the key `name` that were not there when its work arrived."""
    if not binding.awaited or name not in registry.names:
        return binding
    from otelctx import portable

    awaited, raws, given = dict(binding.awaited), dict(binding.raws), binding.given
    for source in registry.keys[registry.names[name]].settable:
        if source.var is None or source.path not in awaited:
            continue
        raw = portable.restored(source, awaited.pop(source.path))
        if raw is not MISSING and source.var.get(MISSING) is MISSING:  # else the work has set it by itself
            raws[source.var] = raw
            given = (*given, source.var.set(raw))
    return Binding(binding.value, raws, minted=binding.minted, awaited=awaited, given=given)


def take_back() -> None:
    """Unset the variables that the current context's work has been given when it imported them."""
    state = STATE.get()
    for binding in () if state is None else state.bound.values():
        for token in binding.given:
            try:
                token.var.reset(token)
            except (ValueError, RuntimeError):  # given to another context, or taken back already
                continue


def _report(source: ContextVarSource, exc: Exception) -> None:
    from otelctx import faults

    faults.wrong_setting("source", f"{source.label} is not there: {exc}")


def value_of(key: Key, readings: Mapping[ContextVar[Any], object], state: State | None) -> str | None:
    """What `key` is, where the application's variables read `readings` and otelctx was told `state`."""
    binding = None if state is None else state.bound.get(key.name)
    resolved = [(source, source.var) for source in key.settable if source.var is not None]
    if binding is not None and all(readings.get(var, MISSING) is binding.raws.get(var, MISSING) for _, var in resolved):
        return binding.value
    for source, var in resolved:
        reading = source.reading(readings.get(var, MISSING))
        if reading:
            key.bound()
            return reading
    return None


def _derive(declared: Registry, state: State | None, raws: tuple[object, ...], before: Flow | None = None) -> Flow:
    readings: dict[ContextVar[Any], object] = dict(zip(declared.vars, raws, strict=True))
    values = tuple(value_of(key, readings, state) for key in declared.keys)
    claim = None if state is None else state.claim
    if before is None:
        return Flow(declared, state, raws, values=values, claim=claim)
    is_same = values == before.values and claim == before.claim
    return Flow(
        declared,
        state,
        raws,
        values=values,
        claim=claim,
        serial=before.serial if is_same else None,
        seen=before.seen if is_same else (before.serial, *before.seen)[:MEMORY],
        around=before.around,
    )


def peek() -> Flow:
    """The current context's flow, without a trace of having looked."""
    declared = registry
    flow: Flow = declared.flow.get()
    state = STATE.get()
    raws = tuple([var.get(MISSING) for var in declared.vars])
    if flow.state is state and all(map(_same, raws, flow.raws)):
        return flow
    return _derive(declared, state, raws, flow)


def here() -> Flow:
    """The current context's flow, with a new link where the identity has changed since the last look."""
    flow = peek()
    known = flow.registry.flow.get()
    if flow is not known:
        if runtime.is_adopted():
            began = getattr(runtime.span_of(runtime.variable.get()), "_otelctx_flow", None)
            if isinstance(began, Flow) and began.registry is flow.registry and flow.knows(began):
                flow = flow.within((began.serial, *began.around))
        kept = flow.to_keep()
        if kept is flow or kept.serial != known.serial or kept.state is not known.state:
            flow.registry.flow.set(kept)
    return flow


def in_context(context: Context) -> Flow:
    """The flow of another context, by looking only (it may be entered elsewhere)."""
    declared = registry
    raws = tuple(context.get(var, MISSING) for var in declared.vars)
    return _derive(declared, context.get(STATE), raws, context.get(declared.flow, declared.root))


def derive(before: Flow, state: State | None, raws: tuple[object, ...]) -> Flow:
    """The flow that follows `before` where otelctx is told `state` and the variables read `raws`."""
    return _derive(before.registry, state, raws, before)


def _same(one: object, other: object) -> bool:
    return one is other


_refused: set[str] = set()


def refuse_baggage(name: str, why: str) -> None:
    """An entry stays out of baggage: counted and logged once per entry."""
    if name not in _refused:
        _refused.add(name)
        from otelctx import faults

        faults.internal_error("baggage", message=f"{name} is left out of baggage: {why}; it still travels in process")


registry = Registry([Key(Config().keys["session"])])
_give_root(registry)
