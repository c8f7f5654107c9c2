"""The source of a module, without running anything of it.

``importlib.util.find_spec("a.b.c")`` imports ``a`` and ``a.b`` to find ``c``. A check that runs where the application's
own dependencies need not be installed cannot do that, so the packages are walked by their specs alone. What only
running a package would show (a ``__path__`` that it changes) is not seen, unless it has been imported already.
"""

from __future__ import annotations

import ast
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class SourceError(LookupError):
    """A module or a function that cannot be found or read; its text is one line that says which and why."""


class Module(NamedTuple):
    """A module's syntax tree."""

    name: str
    package: str
    """What its relative imports start from."""
    tree: ast.Module


def read_module(name: str, search: Sequence[str] | None = None) -> Module:
    """Find and parse the module `name`; `search` stands for `sys.path`.

    Raises `SourceError`. Runs no code of the module, nor of the packages above it.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise SourceError(f"{name!r} is not a module's name")
    try:
        source, is_package = _source(name, list(sys.path if search is None else search))
        tree = ast.parse(source)
    except (SyntaxError, ValueError, ImportError, OSError, RecursionError, MemoryError) as exc:
        line = getattr(exc, "lineno", None)
        where = f", line {line}" if line else ""
        raise SourceError(f"the module {name} cannot be read: {getattr(exc, 'msg', None) or exc}{where}") from exc
    return Module(name, name if is_package else name.rpartition(".")[0], tree)


def _source(name: str, search: list[str]) -> tuple[str, bool]:
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None)
    file = getattr(loaded, "__file__", None)
    if not isinstance(spec, ModuleSpec) and not isinstance(file, str):
        spec = _spec(name, search)
    origin = file if isinstance(file, str) else spec.origin if isinstance(spec, ModuleSpec) else None
    is_package = isinstance(spec, ModuleSpec) and spec.submodule_search_locations is not None
    source: str | None
    if origin is not None and origin.endswith(".py") and Path(origin).is_file():
        # Not the spec's own loader: that of a test runner, which rewrites what it loads, has no source to give.
        source = SourceFileLoader(name, origin).get_source(name)
    else:
        get_source = getattr(getattr(spec, "loader", None), "get_source", None)
        source = None if get_source is None else get_source(name)
    if source is None:
        raise SourceError(f"the module {name} has no Python source")
    return source, is_package


def _spec(name: str, search: list[str]) -> ModuleSpec:
    parts = name.split(".")
    path, spec = search, None
    for depth in range(1, len(parts) + 1):
        here = ".".join(parts[:depth])
        spec = _find(here, path)
        if spec is None:
            raise SourceError(f"there is no module {here}")
        if depth < len(parts):
            if spec.submodule_search_locations is None:
                raise SourceError(f"there is no module {'.'.join(parts[: depth + 1])}: {here} is not a package")
            path = _locations(spec.submodule_search_locations)
    assert spec is not None
    return spec


def _find(name: str, path: list[str]) -> ModuleSpec | None:
    for finder in sys.meta_path:
        # wrapt's finder, of import hooks, looks for a module by importing the packages above it.
        if type(finder).__module__.startswith("wrapt") or not hasattr(finder, "find_spec"):
            continue
        try:
            spec = finder.find_spec(name, path)
        except (ImportError, KeyError):
            continue  # a namespace package below another one: its parent would have to be imported
        if spec is not None:
            return spec
    below = [str(place) for entry in path if (place := Path(entry, name.rpartition(".")[2])).is_dir()]
    if not below:
        return None
    spec = ModuleSpec(name, None)
    spec.submodule_search_locations = below
    return spec


def _locations(found: Iterable[str]) -> list[str]:
    try:
        return list(found)
    except KeyError:
        return list(getattr(found, "_path", ()))


def functions_named(module: Module, path: str) -> list[tuple[ast.AST, ...]]:
    """Every function that `path` may name in `module`: itself, after the classes and functions that it stands in.

    ``spawn``, ``Dispatcher.spawn`` (also inherited from a class of the same module), ``make.spawn`` for one inside a
    function. There may be several: one for each branch of an ``if``. Empty where there is none.
    """
    found: list[tuple[ast.AST, ...]] = [(module.tree,)]
    for part in (part for part in path.split(".") if part != "<locals>"):
        found = [(*chain, node) for chain in found for node in _defined(chain[-1], part, module.tree)]
    return [chain for chain in found if isinstance(chain[-1], ast.FunctionDef | ast.AsyncFunctionDef)]


def _defined(scope: ast.AST, name: str, tree: ast.Module) -> list[ast.AST]:
    found = [node for node in definitions(scope) if getattr(node, "name", None) == name]
    if found or not isinstance(scope, ast.ClassDef):
        return found
    return methods(scope, name, tree)


def definitions(scope: ast.AST) -> list[ast.AST]:
    """The functions and classes that are defined in the body of `scope`, under its ``if`` and ``try`` as well."""
    found: list[ast.AST] = []
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(node)
        elif not isinstance(node, ast.expr):
            pending.extend(ast.iter_child_nodes(node))
    return found


def methods(cls: ast.ClassDef, name: str, tree: ast.Module, *, inherited: bool = False) -> list[ast.AST]:
    """The methods `name` of `cls`, or of the classes of the same module that it is derived from."""
    seen: set[ast.ClassDef] = set()
    pending = [cls]
    while pending:
        here = pending.pop(0)
        if here in seen:
            continue
        seen.add(here)
        found = [node for node in definitions(here) if getattr(node, "name", None) == name]
        if found and not (inherited and here is cls):
            return found
        names = {base.id for base in here.bases if isinstance(base, ast.Name)}
        pending.extend(node for node in definitions(tree) if isinstance(node, ast.ClassDef) and node.name in names)
    return []
