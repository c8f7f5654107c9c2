"""Drift: whether a dispatcher's spawn function gives its children variables that nobody declared.

A claim is hidden, scrubbed and carried by the variables that the configuration names. A dispatcher that starts to set
one more has an identity that leaks again, silently. `check` finds it by reading the spawn function; nothing is run. On
the command line it is ``otelctx drift module:function --prefix P``, in a test `otelctx.testing.assert_env_covered`.

Not for the hot path: it imports `ast` and reads files.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from otelctx.drift_reader import Put, Reader
from otelctx.drift_scope import Binding, Scope
from otelctx.drift_source import Module, SourceError, functions_named, read_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otelctx.config import Config

__all__ = ["Drift", "SourceError", "check", "declared"]


def declared(config: Config) -> frozenset[str]:
    """The variables that `config` names one by one.

    They are those of the claim, the ones that are behaviour only, the environment sources of keys, and the scoped
    environment's. `claim.env_prefix` names none: what starts with it is hidden with the claim, but whether it is the
    claim's is what somebody has to decide, and what this check asks for.
    """
    sources = [source.path for key in config.keys.values() for source in key.sources if source.kind == "env"]
    return frozenset((*config.claim.env.values(), *config.claim.behaviour_only, *sources, *config.scoped_env.names))


@dataclass(frozen=True, slots=True)
class Drift:
    """What `check` found."""

    target: str
    prefix: str
    covered: tuple[str, ...]
    """The variables that are declared, in the order of their names."""
    undeclared: tuple[Put, ...]
    """What is put into a child's environment and is not declared, or cannot be read."""
    known: frozenset[str]
    """What is declared."""

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.undeclared)

    def __str__(self) -> str:
        """One line where everything is declared; otherwise one more for each variable that is not."""
        which = f" named {self.prefix}*" if self.prefix else ""
        if not self.undeclared:
            if not self.covered:
                return f"{self.target} puts no variable{which} into a child's environment"
            return (
                f"{self.target}: what it puts into a child's environment{which} is declared: {', '.join(self.covered)}"
            )
        module = self.target.partition(":")[0]
        count = len({put.name if not put.unread else put for put in self.undeclared})
        lines = [f"{self.target} puts {count} {'variable' if count == 1 else 'variables'}{which} that nobody declared:"]
        for put in self.undeclared:
            where = f"line {put.line}" if put.module == module else f"line {put.line} of {put.module}"
            if put.unread:
                lines.append(f"  cannot be read at {where}: {put.unread}")
                continue
            # Without what all of them have in common, which would make any two of them alike.
            rest = {name.removeprefix(self.prefix): name for name in sorted(self.known)}
            near = get_close_matches(put.name.removeprefix(self.prefix), rest, n=1)
            lines.append(f"  {put.name} at {where}" + (f" (nearest declared: {rest[near[0]]})" if near else ""))
        return "\n".join(lines)


def check(target: str, prefix: str, config: Config, search: Sequence[str] | None = None) -> Drift:
    """Compare what the function `target` puts into its children's environment with what `config` declares.

    Args:
        target: ``module:function``; ``module:Class.method``, and a function inside another one, as ``outer.inner``.
        prefix: only variables that start so are considered; empty: all.
        config: what is declared.
        search: directories to look for modules in, in place of `sys.path`.

    Raises `SourceError`, a line that says why, where the function cannot be found or its source cannot be read.
    """
    module, chains = _find(target, search)
    puts: dict[Put, None] = {}
    for chain in chains:
        puts.update(dict.fromkeys(Reader(None if search is None else list(search)).read(module, chain)))
    known = declared(config)
    meant = [put for put in puts if _is_meant(put, prefix)]
    covered = sorted({put.name for put in meant if not put.unread and put.name in known})
    undeclared = [put for put in meant if put.unread or put.name not in known]
    return Drift(target, prefix, tuple(covered), tuple(undeclared), known)


def _is_meant(put: Put, prefix: str) -> bool:
    return put.name.startswith(prefix) or (bool(put.unread) and prefix.startswith(put.name))


def _find(target: str, search: Sequence[str] | None) -> tuple[Module, list[tuple[ast.AST, ...]]]:
    name, colon, path = target.partition(":")
    parts = [part for part in path.split(".") if part != "<locals>"]
    if not (colon and name and all(part.isidentifier() for part in parts)):
        raise SourceError(f"{target!r} does not name a function; it is written module:function")
    seen: set[tuple[str, str]] = set()
    while True:
        module = read_module(name, search)
        chains = functions_named(module, path)
        if chains:
            return module, chains
        elsewhere = _imported_from(module, path)
        if elsewhere is None or elsewhere in seen:
            raise SourceError(f"there is no function {path} in the module {name}")
        seen.add(elsewhere)
        name, path = elsewhere


def _imported_from(module: Module, path: str) -> tuple[str, str] | None:
    """Where `path` comes from, if `module` only imports it, or wraps it in a call (``partial``) or another name."""
    first, dot, rest = path.partition(".")
    for binding in reversed(Scope(module.tree, module).names.get(first, [])):
        match binding:
            case Binding("import", module=home, attribute=str() as attribute):
                return home, attribute + dot + rest
            case Binding("is", node=ast.Name(id=name) | ast.Call(args=[ast.Name(id=name), *_])):
                return module.name, name + dot + rest
    return None
