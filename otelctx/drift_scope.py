"""What the names of a function or a module stand for, and what happens in its body that may fill a dictionary.

The same for every call of the function: what its parameters stand for is not known here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from otelctx.drift_source import Module

GIVEN: Final = ("env", "environ")
"""The names under which functions take the environment of a child."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Binding(NamedTuple):
    """What a name stands for."""

    kind: str
    """``is``: the expression `node`. ``each``, ``column``, ``key``: what iterating over `node` gives, one column of it,
    or the mapping's keys. ``def``, ``class``: `node`. ``import``: `attribute` of `module`. ``given``: not known here.
    """
    node: ast.AST | None = None
    column: int = 0
    module: str = ""
    attribute: str | None = None


class Event(NamedTuple):
    """Something in a body that may put a variable into an environment.

    ``is``, ``merge``, ``key``: `target` is assigned `value`, is updated with it, has its key `value` assigned.
    ``call``: `target` is called. ``given``, ``return``: `value` is given to somebody as an environment, or is returned.
    """

    kind: str
    target: ast.expr
    value: ast.expr | None


class Scope:
    """A function or a module: what its names stand for, and what happens in it. The same for every call."""

    def __init__(self, node: ast.AST, module: Module, cls: ast.ClassDef | None = None) -> None:
        self.node, self.module, self.cls = node, module, cls
        self.names: dict[str, list[Binding]] = {}
        self.events: list[Event] = []
        self.nested: list[Function] = []
        self.arguments = node.args if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
        if self.arguments is not None:
            for parameter in parameters(self.arguments):
                self._bind(parameter, Binding("given"))
        for inner in own(node):
            self._see(inner)

    def _bind(self, name: str, binding: Binding) -> None:
        self.names.setdefault(name, []).append(binding)

    def _see(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, value)
            case ast.AugAssign(target=ast.Subscript() as target, value=value):
                self._assign(target, value)
            case ast.AugAssign(target=target, op=ast.BitOr(), value=value):
                self.events.append(Event("merge", target, value))
            case ast.AugAssign(target=ast.Name(id=name)):
                self._bind(name, Binding("given"))
            case ast.For(target=target, iter=each) | ast.AsyncFor(target=target, iter=each):
                self._loop(target, each)
            case ast.comprehension(target=target, iter=each):
                self._loop(target, each)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._assign(target, value)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self._bind(name, Binding("def", node))
                self.nested.append(node)
            case ast.ClassDef(name=name):
                self._bind(name, Binding("class", node))
            case ast.Import(names=aliases):
                for alias in aliases:
                    name = alias.asname or alias.name.partition(".")[0]
                    self._bind(name, Binding("import", module=alias.name if alias.asname else name))
            case ast.ImportFrom(module=origin, names=aliases, level=level):
                home = self._relative(origin or "", level)
                for alias in aliases:
                    self._bind(alias.asname or alias.name, Binding("import", module=home, attribute=alias.name))
            case ast.ExceptHandler(name=str() as name):
                self._bind(name, Binding("given"))
            case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
                self._bind(name, Binding("given"))
            case ast.Call():
                self.events.append(Event("call", node, None))
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value in GIVEN:
                        self.events.append(Event("given", value, value))
            case ast.Return(value=ast.expr() as value) | ast.Yield(value=ast.expr() as value):
                self.events.append(Event("return", value, value))

    def _relative(self, origin: str, level: int) -> str:
        if not level:
            return origin
        parts = self.module.package.split(".")
        return ".".join([*parts[: len(parts) - level + 1], *([origin] if origin else [])])

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target:
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
                for index, each in enumerate(targets):
                    if len(values) == len(targets):
                        self._assign(each, values[index])
                    elif isinstance(each, ast.Name):
                        self._bind(each.id, Binding("given"))
                    else:
                        self._assign(each, ast.Constant(None, lineno=each.lineno))
            case ast.Subscript(value=base, slice=key):
                self.events.append(Event("key", base, key))
                self.events.append(Event("is", target, value))
                if isinstance(key, ast.Constant) and key.value in GIVEN:
                    self.events.append(Event("given", value, value))
            case ast.Name(id=name):
                self._bind(name, Binding("is", value))
                self.events.append(Event("is", target, value))
            case ast.Attribute():
                self.events.append(Event("is", target, value))

    def _loop(self, target: ast.expr, each: ast.expr) -> None:
        match target, each:
            case ast.Tuple(elts=[ast.Name(id=key), *others]), ast.Call(
                func=ast.Attribute(value=mapping, attr="items"), args=[]
            ):
                self._bind(key, Binding("key", mapping))
                self._unknown(others)
            case ast.Name(id=key), ast.Call(func=ast.Attribute(value=mapping, attr="keys"), args=[]):
                self._bind(key, Binding("key", mapping))
            case ast.Name(id=name), _:
                self._bind(name, Binding("each", each))
            case ast.Tuple(elts=targets) | ast.List(elts=targets), _:
                for index, column in enumerate(targets):
                    if isinstance(column, ast.Name):
                        self._bind(column.id, Binding("column", each, index))
                    else:
                        self._unknown([column])

    def _unknown(self, targets: list[ast.expr]) -> None:
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    self._bind(node.id, Binding("given"))


def own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's or a module's own body: not those of the functions and classes in it."""
    body: list[ast.AST] = list(getattr(scope, "body", []))
    while body:
        node = body.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            body[:0] = ast.iter_child_nodes(node)


def parameters(arguments: ast.arguments) -> list[str]:
    """The names of all parameters."""
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    extra = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [each.arg for each in (*named, *extra)]
