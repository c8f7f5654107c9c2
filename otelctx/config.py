"""How the layers of settings become one `Config`; which settings there are is in `options`.

`load` reads the layers, each over the one before: defaults, presets, a TOML file (or mapping), the environment,
arguments. Tables merge name by name; a list replaces the whole list below it.

    config, problems = load("otelctx.toml", mode="observe")

What is wrong becomes a line in `problems` and is left out: the layer below counts, and the rest still works. A list
loses only its wrong items, and counts as wrong when none is left. A source that is wrong in part is left out whole,
since half a source (a getter without its ``kwargs``) would say something that the application never meant.

In the environment a setting is ``OTELCTX_`` and its path in capitals, ``__`` between the parts; a list is separated by
commas, or is a TOML or JSON array; a table is a TOML or JSON one; an empty variable counts as unset.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from otelctx import signing
from otelctx.options import (
    ROOT,
    AlertsConfig,
    BaggageConfig,
    ClaimConfig,
    Config,
    CronConfig,
    DispatchConfig,
    KeyConfig,
    Mode,
    Option,
    QueuesConfig,
    ScopedEnvConfig,
    SourceConfig,
    SourceKind,
    SubprocessConfig,
    TelemetryConfig,
    ThreadsConfig,
    all_options,
)
from otelctx.schema import Map, Path, Report, Setting, Spot, Table, dotted, path_of, printable, settings_in, shown

__all__ = [
    "PLAIN_VARIABLES",
    "AlertsConfig",
    "BaggageConfig",
    "ClaimConfig",
    "Config",
    "ConfigError",
    "CronConfig",
    "DispatchConfig",
    "KeyConfig",
    "Mode",
    "Option",
    "QueuesConfig",
    "ScopedEnvConfig",
    "SourceConfig",
    "SourceKind",
    "SubprocessConfig",
    "TelemetryConfig",
    "ThreadsConfig",
    "all_options",
    "load",
]

PLAIN_VARIABLES: Final = (
    "OTELCTX_ENABLED",
    "OTELCTX_CONFIG",
    "OTELCTX_AUTO_INSTRUMENT",
    "OTELCTX_AUTO_INSTRUMENT_PROGRAMS",
    "OTELCTX_SECRET",
    "OTELCTX_SECRET_FILE",
    "OTELCTX_CLAIM",
)
"""Variables that are named like a setting and are none: they say whether otelctx runs, not how, or hold a secret."""

_Stacks = dict[Path, list[Setting]]
"""For each path what every layer says, the strongest last; what turns out to be unusable is taken off the top."""


class ConfigError(ValueError):
    """A wrong configuration, given in code; `problems` has one line for each thing that is wrong."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems: tuple[str, ...] = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


def load(
    source: str | os.PathLike[str] | Mapping[str, object] | None = None,
    /,
    *,
    environ: Mapping[str, str] = os.environ,
    **overrides: object,
) -> tuple[Config, tuple[str, ...]]:
    """Return the best usable configuration, and one line for each thing that is wrong.

    `source` is a TOML file's path, or what such a file would hold; without one, the file that ``OTELCTX_CONFIG`` names.
    `overrides` are settings by name: ``mode="observe"``, ``alerts={"per_minute": 5}``, ``keys={"tenant": {...}}``.
    Never raises for what these hold. Reads everything anew each time and keeps nothing, so any thread may call it.
    """
    report = Report(
        [option.path for option in all_options("session")],
        [path for name in PLAIN_VARIABLES if (path := path_of(name))],
    )
    given = [
        *_from_source(source, environ, report),
        *_from_environment(environ, report),
        *settings_in(overrides, ROOT, Spot(report, "argument")),
    ]
    presets = next((setting.value for setting in reversed(given) if setting.path == ("presets",)), ())
    below = [setting for name in presets for setting in _from_preset(name, report)]
    stacks: _Stacks = {}
    for setting in (Setting(("keys", "session"), None, "keys.session"), *below, *given):
        stacks.setdefault(setting.path, []).append(setting)
    for key in _declared(stacks):
        name = str(key[-1])
        defaults = Config().keys.get(name) or KeyConfig(name)
        for option in ("attribute", "baggage"):
            default = Setting((*key, option), getattr(defaults, option), stacks[key][-1].place)
            stacks.setdefault(default.path, []).insert(0, default)
    _require_secret(stacks, environ, report)
    _keep_names_apart(stacks, report)
    return _built(ROOT, (), stacks), tuple(report.lines)


def _from_source(
    source: str | os.PathLike[str] | Mapping[str, object] | None, environ: Mapping[str, str], report: Report
) -> Iterator[Setting]:
    if isinstance(source, Mapping):
        return settings_in(source, ROOT, Spot(report, "config"))
    path = environ.get("OTELCTX_CONFIG", "").strip() if source is None else source
    if not isinstance(path, str | os.PathLike):
        report.add("config", f"must be a file's path or a table, not {shown(path)}")
    elif name := os.fsdecode(path):
        content, failure = _read(name)
        if not failure:
            return _from_toml(content, printable(name), report)
        report.add(printable(name), failure)
    return iter(())


def _from_preset(name: str, report: Report) -> Iterator[Setting]:
    from importlib.resources import files

    return _from_toml((files("otelctx.presets") / f"{name}.toml").read_bytes(), f"preset {name}", report)


def _from_toml(content: bytes, origin: str, report: Report) -> Iterator[Setting]:
    import tomllib

    try:
        written = content.decode("utf-8-sig")
        return settings_in(tomllib.loads(written), ROOT, Spot(report, origin))
    except UnicodeDecodeError as exc:
        report.add(origin, f"line {content.count(bytes([10]), 0, exc.start) + 1}: not UTF-8")
    except ValueError as exc:
        what, _, place = str(exc).rpartition(" (at ")
        place = place.removesuffix(")").replace("end of document", f"line {written.count(chr(10)) + 1}, end of file")
        report.add(origin, f"{place}: {what}" if what else str(exc))
    except RecursionError:
        report.add(origin, "nested too deeply")
    return iter(())


def _from_environment(environ: Mapping[str, str], report: Report) -> Iterator[Setting]:
    # In the order of their names: a table's variable comes before, and so yields to, those of its parts.
    for name in sorted(environ):
        path, given = path_of(name), environ.get(name, "")
        if path and name not in PLAIN_VARIABLES and given.strip():
            nested: object = given
            for part in reversed(path):
                nested = {part: nested}
            yield from settings_in(nested, ROOT, Spot(report, printable(name), variable=path))


def _require_secret(stacks: _Stacks, environ: Mapping[str, str], report: Report) -> None:
    """Take away every ``sign`` and ``verify`` where there is no secret to do it with; tell of one that is none."""
    is_told = False
    for path, value in ((("baggage", "outbound"), "sign"), (("baggage", "inbound"), "verify")):
        stack = stacks.get(path, [])
        while stack and stack[-1].value == value and (missing := signing.missing(environ)):
            report.add(stack.pop().place, f"{value!r} needs a secret: {missing}")
            is_told = True
    # Digests and messages of task queues need it as well, and do without.
    if not is_told and signing.is_configured(environ) and (missing := signing.missing(environ)):
        report.add(*missing.split(": ", 1))


def _read(path: str) -> tuple[bytes, str]:
    """Return a file's content, or else why it cannot be read."""
    import pathlib

    try:
        return pathlib.Path(path).read_bytes(), ""
    except (OSError, ValueError) as exc:  # a ValueError: the path has a NUL in it
        return b"", f"cannot be read: {getattr(exc, 'strerror', None) or exc}"


def _keep_names_apart(stacks: _Stacks, report: Report) -> None:
    """Let no two keys share an attribute or a baggage entry: the later yields, and goes where no other name is left."""
    for option in ("attribute", "baggage"):
        taken: dict[object, Path] = {}
        for key in _declared(stacks):
            stack = stacks[*key, option]
            while stack and stack[-1].value in taken:
                used = stack.pop()
                report.add(used.place, f"{shown(used.value)} is already the {option} of {dotted(taken[used.value])}")
            if stack:
                taken[stack[-1].value] = key
            else:
                for path in [path for path in stacks if path[:2] == key]:
                    del stacks[path]


def _declared(stacks: _Stacks) -> list[Path]:
    return [path for path in stacks if len(path) == 2 and path[0] == "keys"]


def _built(table: Table, path: Path, stacks: _Stacks, **values: object) -> Any:
    for name, (node, _) in table.members.items():
        here = (*path, name)
        if isinstance(node, Table):
            values[name] = _built(node, here, stacks)
        elif isinstance(node, Map):
            names = [str(found[-1]) for found in stacks if found[:-1] == here]
            each = node.each
            values[name] = MappingProxyType(
                {n: _built(each, (*here, n), stacks, name=n) for n in names}
                if isinstance(each, Table)
                else {n: stacks[*here, n][-1].value for n in names}
            )
        elif stacks.get(here):
            values[name] = stacks[here][-1].value
    return table.shape(**values)
