"""Which strings an expression may be, in a program that is read and not run.

Known are constants, those of modules that are imported, loops over constants, and strings put together from these.
"""

from __future__ import annotations

import ast
from itertools import product
from typing import Final, Protocol

from otelctx.drift_program import DEEPEST, Frame, Program, own_name
from otelctx.drift_scope import Binding, Scope

_NAMES: Final = 256


class Mappings(Protocol):
    """What is known of dictionaries, which may be environments."""

    def holds(self, expr: ast.expr, frame: Frame) -> bool:
        """Whether `expr` is an environment or is made from one."""

    def keys(self, mapping: ast.expr, frame: Frame) -> frozenset[str]:
        """The names that iterating over `mapping` gives, those left out that are known by themselves."""


class Strings:
    """The strings of a program's expressions."""

    def __init__(self, program: Program, mappings: Mappings) -> None:
        self._program = program
        self._mappings = mappings

    def of(self, expr: ast.expr, frame: Frame, depth: int = 0) -> frozenset[str] | None:
        """Every string that `expr` may be; None where that is not known. Empty: only names that are there already."""
        if depth > 4 * DEEPEST:
            return None
        match expr:
            case ast.Constant(value=str() as text):
                return frozenset([text])
            case ast.Constant(value=bytes() as raw):
                return frozenset([raw.decode("utf-8", "replace")])
            case ast.JoinedStr(values=parts):
                return self._joined([self.of(part, frame, depth + 1) for part in parts])
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self.of(value, frame, depth + 1)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._joined([self.of(left, frame, depth + 1), self.of(right, frame, depth + 1)])
            case ast.IfExp(body=body, orelse=orelse):
                return _union([self.of(body, frame, depth + 1), self.of(orelse, frame, depth + 1)])
            case ast.BoolOp(values=values):
                return _union([self.of(value, frame, depth + 1) for value in values])
            case ast.NamedExpr(value=value):
                return self.of(value, frame, depth + 1)
            case ast.Call(func=ast.Name(id="str"), args=[value], keywords=[]):
                return self.of(value, frame, depth + 1)
            case ast.Name(id=name):
                return self._of_name(name, frame, depth)
            case ast.Attribute(value=value, attr="value") if isinstance(value, ast.Attribute):
                return self.of(value, frame, depth + 1)
            case ast.Attribute():
                return self._of_attribute(expr, frame, depth)
            case _:
                return None

    def _joined(self, parts: list[frozenset[str] | None]) -> frozenset[str] | None:
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        size = 1
        for part in known:
            size *= len(part)
        return frozenset(map("".join, product(*known))) if size <= _NAMES else None

    def _of_name(self, name: str, frame: Frame, depth: int) -> frozenset[str] | None:
        home = frame.home_of(name)
        if home is None:
            return None
        if name in home.arguments:
            argument, caller = home.arguments[name]
            return self.of(argument, caller, depth + 1)
        return _union([self._of_binding(binding, home, depth + 1) for binding in home.scope.names[name]])

    def _of_binding(self, binding: Binding, home: Frame, depth: int) -> frozenset[str] | None:
        node = binding.node
        match binding.kind:
            case "is" if isinstance(node, ast.expr):
                return self.of(node, home, depth)
            case "each" if isinstance(node, ast.expr):
                return self.items(node, home, depth)
            case "column" if isinstance(node, ast.expr):
                return self._column(node, binding.column, home, depth)
            case "key" if isinstance(node, ast.expr):
                return self._mappings.keys(node, home)
            case "import" if binding.attribute is not None:
                there = self._program.module(binding.module)
                return None if there is None else self._of_name(binding.attribute, there, depth)
            case _:
                return None

    def _of_attribute(self, expr: ast.Attribute, frame: Frame, depth: int) -> frozenset[str] | None:
        value = expr.value
        if isinstance(value, ast.Name):
            home = frame.home_of(value.id)
            classes: list[tuple[ast.AST, Frame]] = []
            if home is not None:
                classes = [
                    (b.node, home) for b in home.scope.names[value.id] if b.kind == "class" and b.node is not None
                ]
                if home.scope.cls is not None and value.id == own_name(home.scope):
                    classes.append((home.scope.cls, home))
                for binding in home.scope.names[value.id]:
                    if binding.kind == "import" and binding.attribute is not None:
                        there = self._program.module(binding.module)
                        names = {} if there is None else there.scope.names
                        found = names.get(binding.attribute, [])
                        classes += [
                            (b.node, there) for b in found if b.kind == "class" and b.node and there is not None
                        ]
            for cls, within in classes:
                bindings = Scope(cls, within.scope.module).names.get(expr.attr)
                if bindings:
                    return _union([self._of_binding(binding, within, depth + 1) for binding in bindings])
        imported = self._program.imported(value, frame)
        there = None if imported is None else self._program.module(imported)
        return None if there is None else self._of_name(expr.attr, there, depth + 1)

    def items(self, expr: ast.expr, frame: Frame, depth: int = 0) -> frozenset[str] | None:
        """Every string that iterating over `expr` may give."""
        if depth > 4 * DEEPEST:
            return None
        match expr:
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                return _union(
                    [
                        self.items(element.value, frame, depth + 1)
                        if isinstance(element, ast.Starred)
                        else self.of(element, frame, depth + 1)
                        for element in elements
                    ]
                )
            case ast.Call(
                func=ast.Name(id="sorted" | "list" | "tuple" | "set" | "frozenset" | "reversed"), args=[inner, *_]
            ):
                return self.items(inner, frame, depth + 1)
            case ast.BinOp(left=left, op=ast.Add() | ast.BitOr(), right=right):
                return _union([self.items(left, frame, depth + 1), self.items(right, frame, depth + 1)])
            case ast.Dict():
                return self._mappings.keys(expr, frame)
            case ast.Name(id=name):
                if self._mappings.holds(expr, frame):
                    return frozenset()
                home = frame.home_of(name)
                if home is None:
                    return None
                if name in home.arguments:
                    argument, caller = home.arguments[name]
                    return self.items(argument, caller, depth + 1)
                return _union([self._items_of(binding, home, depth) for binding in home.scope.names[name]])
            case ast.Attribute() if self._program.is_process(expr, frame):
                return frozenset()
            case ast.Attribute(value=value, attr=attribute):
                imported = self._program.imported(value, frame)
                there = None if imported is None else self._program.module(imported)
                return None if there is None else self.items(ast.Name(attribute), there, depth + 1)
            case _:
                return None

    def _items_of(self, binding: Binding, home: Frame, depth: int) -> frozenset[str] | None:
        if binding.kind == "is" and isinstance(binding.node, ast.expr):
            return self.items(binding.node, home, depth + 1)
        if binding.kind == "import" and binding.attribute is not None:
            there = self._program.module(binding.module)
            return None if there is None else self.items(ast.Name(binding.attribute), there, depth + 1)
        return None

    def _column(self, expr: ast.expr, index: int, frame: Frame, depth: int) -> frozenset[str] | None:
        match expr:
            case ast.Tuple(elts=rows) | ast.List(elts=rows) | ast.Set(elts=rows):
                cells: list[frozenset[str] | None] = []
                for row in rows:
                    whole = isinstance(row, ast.Tuple | ast.List) and len(row.elts) > index
                    cells.append(self.of(row.elts[index], frame, depth + 1) if whole else None)  # type: ignore[attr-defined]
                return _union(cells)
            case ast.Call(func=ast.Name(id="zip"), args=columns) if len(columns) > index:
                return self.items(columns[index], frame, depth + 1)
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]) if index == 1:
                return self.items(inner, frame, depth + 1)
            case ast.Name(id=name):
                home = frame.home_of(name)
                bindings = [] if home is None else home.scope.names[name]
                if home is not None and bindings and all(b.kind == "is" for b in bindings) and depth < DEEPEST:
                    nodes = [b.node for b in bindings if isinstance(b.node, ast.expr)]
                    return _union([self._column(node, index, home, depth + 1) for node in nodes])
        return None

    def beginning(self, expr: ast.expr, frame: Frame) -> str:
        """As much of the beginning of the string `expr` as is known."""
        match expr:
            case ast.JoinedStr(values=parts):
                known = ""
                for part in parts:
                    strings = self.of(part, frame)
                    if strings is None or len(strings) != 1:
                        break
                    known += next(iter(strings))
                return known
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                strings = self.of(left, frame)
                if strings is not None and len(strings) == 1:
                    return next(iter(strings)) + self.beginning(right, frame)
                return self.beginning(left, frame)
            case ast.BinOp(left=ast.Constant(value=str() as text), op=ast.Mod()):
                return text.partition("%")[0]
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str() as text), attr="format")):
                return text.partition("{")[0]
            case _:
                return ""


def _union(parts: list[frozenset[str] | None]) -> frozenset[str] | None:
    known = [part for part in parts if part is not None]
    return frozenset().union(*known) if len(known) == len(parts) else None
