"""Keys and their sources: where an application keeps an identity, and how to read it.

A *key* (``session``, ``tenant``) is a named identity value that must follow the work. A *source* is a place where the
application keeps it. A source tells three states apart, and every reader in this package relies on the difference:

* **absent**: never set here; a fallback of the application may apply;
* **cleared**: set to one of the source's ``empty`` values; no fallback applies;
* **a value**: a string.

Sources name objects in modules (``"tools.approval:_approval_session_key"``). They are resolved when the module is
there, never by importing it: otelctx loads nothing that the application does not use.
"""

from __future__ import annotations

import os
import sys
from contextvars import Context, ContextVar
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from otelctx.interruption import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otelctx.config import Config, KeyConfig, SourceConfig
    from otelctx.flow import Flow


class _Missing:
    """The type of `MISSING`; a class of its own so that it has a readable ``repr`` and survives pickling as itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<absent>"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""A ContextVar that is not set in a context."""

Cleared: TypeAlias = Literal[False]
Reading: TypeAlias = "str | Cleared | None"
"""What a source says: a value, ``False`` (cleared) or ``None`` (absent)."""


class UnresolvedError(LookupError):
    """A source's path leads nowhere, although its module is loaded. The text says why, and not which path it is."""


def resolve(path: str) -> Any:
    """Return the object at ``"module:attribute"`` (the attribute may be dotted).

    Raises `UnresolvedError` when the module is loaded and has no such attribute, and `KeyError` when it is not loaded.
    """
    module, _, attribute = path.partition(":")
    try:
        return reduce(getattr, attribute.split("."), sys.modules[module])
    except AttributeError as exc:
        raise UnresolvedError(_why_not(module, attribute, exc)) from exc


def _why_not(module: str, attribute: str, exc: AttributeError) -> str:
    if "." in attribute:
        return str(exc)
    from difflib import get_close_matches

    # Not Python's own words: while a module is being imported they blame a circular import.
    near = get_close_matches(attribute, vars(sys.modules[module]), n=1)
    return f"module {module!r} has no attribute {attribute!r}{f'; did you mean {near[0]!r}?' if near else ''}"


def is_loading(module: str) -> bool:
    """Whether names may still appear in `module`: it is being imported, or it is the running program."""
    if module == "__main__":
        return True
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def may_still_have(path: str) -> bool:
    """Whether the module of `path` is just being imported, so that what it does not have may still come."""
    module = path.partition(":")[0]
    return module != "__main__" and is_loading(module)


def is_uuid(kind: type) -> bool:
    """Whether `kind` is `uuid.UUID`, which is not imported for it. A metaclass of somebody's is not asked."""
    return kind is getattr(sys.modules.get("uuid"), "UUID", None)


def _text(raw: object) -> Reading:
    # Identity is a string; integers and UUIDs are what else applications use for it. Any other object may be large, may
    # be a request, and is no value: it is replayed as it is, but not compared, exported or put into baggage.
    kind = type(raw)
    try:
        if issubclass(kind, str):
            return str.__str__(raw)  # the characters of a subclass, which may carry anything
        if (issubclass(kind, int) and kind is not bool) or is_uuid(kind):
            return str.__str__(str(raw))
    except Exception as exc:  # an integer of thousands of digits, a hostile `__str__`
        pass_on(exc)
        return None
    return None


class Source:
    """One place where an application keeps a key."""

    __slots__ = ("empty", "label", "path")

    def __init__(self, path: str, label: str, empty: tuple[object, ...] = ()) -> None:
        self.path = path
        self.label = label
        """The source's name in alerts: ``contextvar:module:name``, ``getter:module:name`` or ``env:NAME``."""
        self.empty = empty

    def reading(self, raw: object) -> Reading:
        """What the raw value `raw` means."""
        if raw is MISSING:
            return None
        # Compared within one type: an `__eq__` of the application's is none of our business, and may raise.
        if raw is None or any(raw is empty or (type(raw) is type(empty) and raw == empty) for empty in self.empty):
            return False
        return _text(raw)

    def __repr__(self) -> str:
        return f"<{self.label}>"


class ContextVarSource(Source):
    """A ContextVar of the application: read, captured and replayed."""

    __slots__ = ("looks", "unset", "unset_path", "var")

    def __init__(self, path: str, empty: tuple[object, ...] = (), unset: str | None = None) -> None:
        super().__init__(path, f"contextvar:{path}", empty)
        self.unset_path = unset
        self.unset: object = MISSING
        self.var: ContextVar[Any] | None = None
        self.looks = 0
        """How often it was looked for in a module that was there, in vain."""

    def resolve(self) -> None:
        """Find the variable (and the sentinel that means absent); raises as `resolve` does, or `TypeError`."""
        var = resolve(self.path)
        if not isinstance(var, ContextVar):
            raise TypeError(f"{self.path} is a {type(var).__name__}, not a ContextVar")
        if self.unset_path is not None:
            self.unset = resolve(self.unset_path)
        self.var = var

    def reading(self, raw: object) -> Reading:
        """What the raw value `raw` means; the source's ``unset`` sentinel is absent."""
        return None if raw is self.unset else super().reading(raw)

    @property
    def cleared(self) -> object:
        """The raw value that clears this source: its first ``empty`` value, or absent where it names none."""
        return self.empty[0] if self.empty else MISSING

    def like_absent(self) -> object:
        """What comes nearest to absent, in a context where the variable is set: `MISSING` where nothing does."""
        if self.unset is not MISSING:
            return self.unset
        if self.empty:
            return self.empty[0]
        assert self.var is not None
        try:
            return Context().run(self.var.get)  # the variable's own default
        except LookupError:
            return MISSING


class GetterSource(Source):
    """A function of the application that says whose work this is: read and compared, never set."""

    __slots__ = ("kwargs",)

    def __init__(self, path: str, kwargs: Mapping[str, object], empty: tuple[object, ...] = ()) -> None:
        super().__init__(path, f"getter:{path}", empty)
        self.kwargs = dict(kwargs)

    def function(self) -> Callable[[], object] | None:
        """The function, or None where its module is not loaded; raises `UnresolvedError` where it has no such name."""
        if self.path.partition(":")[0] not in sys.modules:
            return None
        getter, kwargs = resolve(self.path), self.kwargs
        return lambda: getter(**kwargs)


_initial: dict[str, str | None] = {}
_ever_bound: set[str] = set()


class EnvSource(Source):
    """A variable of the process's environment: read and compared, never written."""

    __slots__ = ("initial",)

    def __init__(self, name: str, empty: tuple[object, ...] = ()) -> None:
        super().__init__(name, f"env:{name}", empty)
        from otelctx import scoped_env  # which imports this module

        self.initial = _initial.setdefault(name, scoped_env.process().get(name))
        """Its value when it was first declared, which is when the process started."""

    def read(self) -> Reading:
        """What the variable says now."""
        return self.reading(os.environ.get(self.path, MISSING))


class Key:
    """A declared key: its names in telemetry, its sources (strongest first) and its policies."""

    __slots__ = ("ambient", "attribute", "baggage", "name", "policy", "settable")

    def __init__(self, config: KeyConfig) -> None:
        self.name = config.name
        self.attribute = config.attribute
        self.baggage = config.baggage
        self.policy = dict(config.policy)
        sources = [_source(source) for source in config.sources]
        self.settable = tuple(source for source in sources if isinstance(source, ContextVarSource))
        self.ambient = tuple(source for source in sources if isinstance(source, GetterSource | EnvSource))

    @property
    def ever_bound(self) -> bool:
        """Whether any context of this process has bound the key; from then on an environment value is nobody's."""
        return self.name in _ever_bound

    def bound(self) -> None:
        """Remember that a context has bound the key."""
        _ever_bound.add(self.name)

    def process_identity(self) -> str | None:
        """The value that the environment gives to the whole process (a command line, a worker), if it is one.

        That is an environment source whose value is the one that the process started with, or any value while no
        context has bound the key: sessions of one process overwrite each other in the environment.
        """
        for source in self.ambient:
            if isinstance(source, EnvSource):
                value = source.read()
                if value and (not self.ever_bound or value == source.initial):
                    return value
        return None

    def __repr__(self) -> str:
        return f"<key {self.name}>"


def _source(config: SourceConfig) -> Source:
    if config.kind == "contextvar":
        return ContextVarSource(config.path, config.empty, config.unset)
    if config.kind == "getter":
        return GetterSource(config.path, config.kwargs, config.empty)
    return EnvSource(config.path, config.empty)


class Registry:
    """The declared keys, and those of their ContextVars that the process has by now.

    A registry does not change once it is built, but for the variables that `pending` still waits for; when one of
    them appears, a new registry takes its place.
    """

    __slots__ = ("carried", "flow", "keys", "names", "pending", "root", "settable", "vars")

    flow: ContextVar[Flow]
    """Each context's last known flow. Every registry has its own, so that a new one finds no flow of an old one."""
    root: Flow
    """The flow of a context in which nothing was ever bound."""

    def __init__(self, keys: Iterable[Key], carried: Iterable[ContextVarSource] = ()) -> None:
        self.keys = tuple(keys)
        self.carried = tuple(carried)
        """What travels with the keys and belongs to none of them."""
        self.names = {key.name: position for position, key in enumerate(self.keys)}
        self.pending: tuple[ContextVarSource, ...] = ()
        """Sources whose module is there and still being run: looked for again at every departure until they are."""
        settable = (source for key in self.keys for source in key.settable if source.var is not None)
        self.settable = (*settable, *self.carried)
        self.vars: tuple[ContextVar[Any], ...] = tuple(s.var for s in self.settable if s.var is not None)

    @classmethod
    def from_config(
        cls, config: Config, carried: Iterable[ContextVarSource] = (), present: Iterable[ContextVarSource] = ()
    ) -> Registry:
        """Build the registry of what `config` declares, with `carried` besides; nothing but `present` is resolved."""
        found = {(source.path, source.unset_path): source for source in present}
        keys = [Key(key) for key in config.keys.values()]
        for source in (source for key in keys for source in key.settable):
            same = found.get((source.path, source.unset_path))
            if same is not None:
                source.var, source.unset = same.var, same.unset
        return cls(keys, carried)

    def unresolved(self) -> list[ContextVarSource]:
        """The ContextVar sources that have not been found yet."""
        return [source for key in self.keys for source in key.settable if source.var is None]
