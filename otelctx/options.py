"""Every setting there is: its default, what it accepts and what it means.

The dataclasses are the one table of settings. `schema` checks what was given against it, `config` puts the layers
together, and `all_options` documents it.
"""

# ruff: noqa: RUF009  (`_setting` and `_table` are `dataclasses.field` with what the schema needs)

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

from otelctx.policy import SETTABLE as HOP_KINDS
from otelctx.policy import Policy
from otelctx.schema import (
    INVALID,
    Map,
    Spot,
    Table,
    Value,
    count,
    dotted,
    list_of,
    one_of,
    optional,
    shown,
    switch,
    text,
    variable,
)

Mode = Literal["observe", "repair", "enforce"]
SourceKind = Literal["contextvar", "getter", "env"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """A place where an application keeps a key."""

    kind: SourceKind
    path: str
    """``module:attribute``, or for ``env`` the variable's name."""
    kwargs: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """What a getter is called with."""
    empty: tuple[object, ...] = ()
    """Values that mean: cleared here, no fallback applies."""
    unset: str | None = None
    """``module:attribute`` of the sentinel by which a ContextVar says: never set here."""


def _is_path(value: str) -> bool:
    module, colon, name = value.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def _path_meant(value: str) -> str:
    module, _, name = value.strip().replace(":", ".").rpartition(".")
    return repr(f"{module}:{name}") if _is_path(f"{module}:{name}") else ""


def _key_meant(value: str) -> str:
    lower = re.sub(r"\s+", "_", value.strip().lower())
    return repr(lower) if _is_key(lower) else ""


# otelctx's own names in spans and baggage, and OpenTelemetry's reserved ones: a key with such a name would be mistaken.
_OWN: Final = re.compile(r"otel\..*|otelctx\.(claim|component|hop|key|mismatch)(\..*)?")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 7230, which W3C Baggage names


def _is_key(value: str) -> bool:
    return bool(re.fullmatch("[a-z0-9_.-]+", value)) and not _OWN.fullmatch(f"otelctx.{value}")


_string: Final = text("a string", str.strip)
_object: Final = text("'module:attribute'", _is_path, _path_meant)
_variable: Final = text("an environment variable's name", re.compile("[A-Za-z_][A-Za-z0-9_.-]*").fullmatch)
_key: Final = text("a key's name (a-z, 0-9, _ . -), and none of otelctx's own", _is_key, _key_meant)
_attribute: Final = text(
    "an attribute's name, without spaces, and none of otelctx's own",
    lambda value: value.isprintable() and value.split() == [value] and not _OWN.fullmatch(value),
)
_entry: Final = text(
    "a W3C baggage name, and none of otelctx's own", lambda value: _TOKEN.fullmatch(value) and not _OWN.fullmatch(value)
)


def _read_constant(value: object, spot: Spot) -> object:
    plain = not isinstance(value, Mapping | list | tuple | set)
    return value if plain else spot.wrong(f"must be a plain value, not {shown(value)}")


def _read_kwargs(value: object, spot: Spot) -> object:
    if isinstance(value, Mapping) and all(isinstance(name, str) and name.isidentifier() for name in value):
        return MappingProxyType(dict(value))
    return spot.wrong(f"must be a table of keyword arguments, not {shown(value)}")


def _read_source(value: object, spot: Spot) -> object:
    if not isinstance(value, Mapping):
        return spot.wrong(f"must be a table such as {{ env = 'NAME' }}, not {shown(value)}")
    found: dict[str, Any] = {}
    for name, item in value.items():
        there = spot.at(name if isinstance(name, str) else shown(name))
        found[name] = _SOURCE[name].read(item, there) if name in _SOURCE else there.unknown(_SOURCE)
    if INVALID in found.values():
        return INVALID
    kinds = [kind for kind in get_args(SourceKind) if kind in found]
    if len(kinds) != 1:
        return spot.wrong(f"must have exactly one of contextvar, getter, env, not {' and '.join(kinds) or 'none'}")
    for option, kind in (("kwargs", "getter"), ("unset", "contextvar")):
        if option in found and kind not in found:
            return spot.at(option).wrong(f"is for a {kind}, not for {kinds[0]}")
    return SourceConfig(kinds[0], found.pop(kinds[0]), **found)


_SOURCE: Final = {
    "contextvar": _object,
    "getter": _object,
    "env": _variable,
    "kwargs": Value("table", _read_kwargs),
    "empty": list_of(Value("value", _read_constant)),
    "unset": _object,
}
_source: Final = Value("{ contextvar | getter | env = …, empty = […], unset = …, kwargs = {…} }", _read_source)


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets that come with otelctx."""
    from importlib.resources import files

    found = [entry.name for entry in files("otelctx.presets").iterdir()]
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def _read_preset(value: object, spot: Spot) -> object:
    names = preset_names()
    return one_of(names, f"a preset ({', '.join(names)})").read(value, spot)


_preset: Final = Value("preset", _read_preset)
_none: Final[tuple[str, ...]] = ()


def _setting(default: T, node: Value, doc: str) -> T:
    return field(default=default, metadata={"node": node, "doc": doc})


def _mapping(default: Callable[[], dict[str, T]], node: Map, doc: str) -> Mapping[str, T]:
    return field(default_factory=lambda: MappingProxyType(default()), metadata={"node": node, "doc": doc})


def _table(shape: type[T]) -> T:
    return field(default_factory=shape, metadata={"node": Table(shape), "doc": shape.__doc__})


@dataclass(frozen=True, slots=True)
class KeyConfig:
    """A declared key."""

    name: str
    attribute: str = _setting("", _attribute, "span attribute; `otelctx.<name>` where none is given")
    baggage: str = _setting("", _entry, "baggage entry; `otelctx.<name>` where none is given")
    sources: tuple[SourceConfig, ...] = _setting((), list_of(_source), "its homes in the application, strongest first")
    policy: Mapping[str, str] = _mapping(
        dict, Map(one_of(HOP_KINDS), one_of(get_args(Policy))), "policies, per hop kind"
    )

    def __post_init__(self) -> None:
        for option in ("attribute", "baggage"):
            if not getattr(self, option):
                object.__setattr__(self, option, f"otelctx.{self.name}")


@dataclass(frozen=True, slots=True)
class ClaimConfig:
    """Dispatcher ownership."""

    env: Mapping[str, str] = _mapping(
        dict, Map(one_of(("task_id", "holder", "attempt", "token")), _variable), "the variable of each part of a claim"
    )
    env_prefix: str | None = _setting(None, optional(_variable), "all variables that start so are the claim's")
    behaviour_only: tuple[str, ...] = _setting(_none, list_of(_variable), "of those, never hidden and never scrubbed")
    predicate: str | None = _setting(None, optional(_object), "the application's own answer; False: it has shed")


@dataclass(frozen=True, slots=True)
class CronConfig:
    """The cron boundary."""

    runners: tuple[str, ...] = _setting(_none, list_of(_object), "functions, each call of which is a cron hop")


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """The dispatcher's side of a claim."""

    spawners: tuple[str, ...] = _setting(
        _none, list_of(_object), "functions whose children keep the claim given to them"
    )


@dataclass(frozen=True, slots=True)
class ThreadsConfig:
    """Threads."""

    service: tuple[str, ...] = _setting(
        _none, list_of(_string), "names (globs) or `module:function`s that start neutral"
    )


@dataclass(frozen=True, slots=True)
class QueuesConfig:
    """Queues."""

    adopt: tuple[str, ...] = _setting(_none, list_of(_object), "queues whose items carry the putter's identity")


@dataclass(frozen=True, slots=True)
class ScopedEnvConfig:
    """The context-local view of environment variables that hold identity."""

    mode: Literal["off", "observe", "scope"] = _setting(
        "off", one_of(("off", "observe", "scope")), "whether there is one"
    )
    hide_claim: Literal["auto"] | bool = _setting(
        "auto", switch("auto"), "hide a shed claim's variables; auto: where no predicate is declared"
    )
    names: tuple[str, ...] = _setting(_none, list_of(_variable), "the variables, beside the claim's")


@dataclass(frozen=True, slots=True)
class SubprocessConfig:
    """Child processes."""

    carrier: bool = _setting(False, switch(), "put TRACEPARENT and BAGGAGE into the child's environment")


@dataclass(frozen=True, slots=True)
class BaggageConfig:
    """The border: propagators, over HTTP and the like."""

    outbound: Literal["strip", "hash", "sign", "plain"] = _setting(
        "strip", one_of(("strip", "hash", "sign", "plain")), "what leaves of our entries"
    )
    inbound: Literal["drop", "verify", "trust"] = _setting(
        "drop", one_of(("drop", "verify", "trust")), "which entries named like ours are let in"
    )


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """Spans, logs and metrics."""

    values: Literal["plain", "hash", "omit"] = _setting(
        "plain", one_of(("plain", "hash", "omit")), "how key values appear"
    )


@dataclass(frozen=True, slots=True)
class AlertsConfig:
    """Alerts."""

    per_minute: int = _setting(10, count, "per key, reason and place; the rest is counted, not repeated")


def _session() -> dict[str, KeyConfig]:
    return {"session": KeyConfig("session", attribute="session.id")}


@dataclass(frozen=True, slots=True)
class Config:
    """All settings, under the paths of the TOML file; `Config()` is the defaults. Immutable: any thread may use it."""

    mode: Mode = _setting("repair", one_of(get_args(Mode)), "report; carry the keys and report; or raise as well")
    presets: tuple[str, ...] = _setting(_none, list_of(_preset), "ready settings for known applications")
    spans: Literal["auto", "always", "never"] = _setting(
        "auto", one_of(("auto", "always", "never")), "hop spans; auto: where the parent's is recorded"
    )
    keys: Mapping[str, KeyConfig] = _mapping(_session, Map(_key, Table(KeyConfig)), "identities that follow the work")
    claim: ClaimConfig = _table(ClaimConfig)
    cron: CronConfig = _table(CronConfig)
    dispatch: DispatchConfig = _table(DispatchConfig)
    threads: ThreadsConfig = _table(ThreadsConfig)
    queues: QueuesConfig = _table(QueuesConfig)
    scoped_env: ScopedEnvConfig = _table(ScopedEnvConfig)
    subprocess: SubprocessConfig = _table(SubprocessConfig)
    baggage: BaggageConfig = _table(BaggageConfig)
    telemetry: TelemetryConfig = _table(TelemetryConfig)
    alerts: AlertsConfig = _table(AlertsConfig)


ROOT: Final = Table(Config)


class Option(NamedTuple):
    """What there is to know about one setting."""

    path: tuple[str, ...]
    default: object
    expects: str
    doc: str

    @property
    def name(self) -> str:
        """As in a TOML file: ``baggage.outbound``."""
        return dotted(self.path)

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return variable(self.path)


def all_options(key: str = "<name>") -> Iterator[Option]:
    """Yield every setting, in the table's order; those of a key stand under the name `key`."""
    yield from _options(ROOT, (), Config(), key)


def _options(table: Table, path: tuple[str, ...], defaults: object, key: str) -> Iterator[Option]:
    for name, (node, doc) in table.members.items():
        here, default = (*path, name), getattr(defaults, name)
        if isinstance(node, Table):
            yield from _options(node, here, default, key)
        elif isinstance(node, Map) and isinstance(node.each, Table):
            yield from _options(node.each, (*here, key), KeyConfig(key), key)
        else:
            yield Option(here, default, node.expects, doc)
