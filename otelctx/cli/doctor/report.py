"""What the doctor finds: plain data, as it is written in JSON."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Patched:
    """An attribute that otelctx replaces."""

    module: str
    attribute: str
    layers: tuple[str, ...]
    """Whose function is called first, second …; the last one is the original's module."""
    outermost: bool
    """Whether otelctx is the first of them."""


@dataclass(frozen=True)
class Hop:
    """A hop that was tried: a key was bound, and the work looked for it on the other side."""

    name: str
    carried: bool
    seen: str
    """What the work saw: ``the key``, ``nothing``, ``another value``, or what was raised."""


@dataclass(frozen=True)
class FoundSource:
    """A declared source of a key."""

    key: str
    source: str
    state: str
    """``value``, ``cleared``, ``absent``; ``not imported`` and ``not there`` where it has not been found."""
    detail: str = ""


@dataclass(frozen=True)
class Tool:
    """Another tool that works on the same ground."""

    name: str
    version: str | None
    loaded: bool
    """Whether this process has imported it."""


@dataclass(frozen=True)
class Exporter:
    """Where telemetry of a signal goes."""

    signal: str
    endpoint: str
    protocol: str
    answers: bool
    detail: str


@dataclass
class Report:
    """All of it. `problems` is the list that makes the exit status 1; `notes` do not."""

    otelctx: str
    python: str
    executable: str
    enabled: bool
    """Whether the environment turns otelctx on; the doctor turns it on for itself where it does not."""
    settings: dict[str, object] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    patches: list[Patched] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """Modules that would be patched, and have not been imported."""
    hops: list[Hop] = field(default_factory=list)
    sources: list[FoundSource] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    exporters: list[Exporter] = field(default_factory=list)
    test_alert: dict[str, str] | None = None
    """By channel: where the test alert went; None where none was asked for."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
