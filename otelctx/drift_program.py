"""What the names in a program stand for, which is read and not run: a module, a function, the argument of a call."""

from __future__ import annotations

import ast
import sys
from typing import Final, TypeAlias

from otelctx.drift_scope import Binding, Scope
from otelctx.drift_source import Module, SourceError, methods, read_module

DEEPEST: Final = 8
"""How many calls deep helpers are followed."""


class Frame:
    """A call of a function (or a module, as it is imported), with the arguments that it has there."""

    def __init__(self, scope: Scope, outer: Frame | None, caller: Frame | None = None, *, main: bool = True) -> None:
        self.scope, self.outer, self.caller, self.main = scope, outer, caller, main
        self.depth: int = 0 if caller is None else caller.depth + 1
        self.arguments: dict[str, tuple[ast.expr, Frame]] = {}
        self.returned: str | None = None
        """Whether what it returns is, or is put on top of, a child's environment: ``base`` or ``merged``."""

    def home_of(self, name: str) -> Frame | None:
        """The frame whose variable `name` is."""
        frame: Frame | None = self
        while frame is not None and name not in frame.scope.names:
            frame = frame.outer
        return frame

    def calls(self, node: ast.AST) -> bool:
        """Whether `node` is being called here already."""
        frame: Frame | None = self
        while frame is not None and frame.scope.node is not node:
            frame = frame.caller
        return frame is not None


Callee: TypeAlias = "tuple[Scope, Frame, bool]"
"""A function whose source is known: its scope, the frame that it is defined in, whether it is bound to an object."""


class Program:
    """The modules that are read, and what is found in them by name."""

    def __init__(self, search: list[str] | None = None) -> None:
        self._search = search
        self._modules: dict[str, Frame | None] = {}
        self._scopes: dict[ast.AST, Scope] = {}

    def begun(self, module: Module) -> Frame:
        """The frame of `module`, where the reading begins."""
        frame = self._modules.setdefault(module.name, Frame(Scope(module.tree, module), None, main=False))
        assert frame is not None
        return frame

    def scope(self, node: ast.AST, module: Module, cls: ast.ClassDef | None = None) -> Scope:
        """The scope of `node`, a function of `module` (of its class `cls`) or the module itself."""
        if node not in self._scopes:
            self._scopes[node] = Scope(node, module, cls)
        return self._scopes[node]

    def module(self, name: str) -> Frame | None:
        """A module that is imported; None where it has no source, or is the standard library's."""
        if name not in self._modules:
            self._modules[name] = None
            if name and name.partition(".")[0] not in sys.stdlib_module_names:
                try:
                    module = read_module(name, self._search)
                    self._modules[name] = Frame(self.scope(module.tree, module), None, main=False)
                except SourceError:
                    pass
        return self._modules[name]

    def is_process(self, expr: ast.expr, frame: Frame) -> bool:
        """Whether `expr` is the process's own environment."""
        return self.imported(expr, frame) in ("os.environ", "os.environb")

    def imported(self, expr: ast.expr, frame: Frame) -> str | None:
        """The dotted name of what is imported as `expr`; None where it is not an imported thing."""
        match expr:
            case ast.Name(id=name):
                home = frame.home_of(name)
                if home is None:
                    return "os" if name == "os" else None
                found = [binding for binding in home.scope.names[name] if binding.kind == "import"]
                if found:
                    binding = found[0]
                    return f"{binding.module}.{binding.attribute}" if binding.attribute else binding.module
            case ast.Attribute(value=value, attr=name):
                above = self.imported(value, frame)
                return None if above is None else f"{above}.{name}"
        return None

    def callees(self, func: ast.expr, frame: Frame, depth: int = 0) -> list[Callee]:
        """The functions whose source `func` may be: (scope, the frame that it is defined in, whether it is bound)."""
        if depth > DEEPEST:
            return []
        match func:
            case ast.Name(id=name):
                home = frame.home_of(name)
                if home is None:
                    return []
                if name in home.arguments:
                    argument, caller = home.arguments[name]
                    return self.callees(argument, caller, depth + 1)
                return [one for binding in home.scope.names[name] for one in self._bound_to(binding, home, depth)]
            case ast.Attribute(value=value, attr=name):
                return self._members(value, name, frame, depth)
            case ast.Call(args=[inner, *_]) if self.imported(func.func, frame) == "functools.partial":
                return [callee for callee in self.callees(inner, frame, depth + 1) if len(func.args) == 1]
            case _:
                return []

    def _bound_to(self, binding: Binding, home: Frame, depth: int) -> list[Callee]:
        if binding.kind == "def" and binding.node is not None:
            return [(self.scope(binding.node, home.scope.module), home, False)]
        if binding.kind == "is" and isinstance(binding.node, ast.expr):
            return self.callees(binding.node, home, depth + 1)
        if binding.kind == "import" and binding.attribute is not None:
            there = self.module(binding.module)
            return [] if there is None else self.callees(ast.Name(binding.attribute), there, depth + 1)
        return []

    def _members(self, value: ast.expr, name: str, frame: Frame, depth: int) -> list[Callee]:
        tree = frame.scope.module.tree
        module_frame = frame
        while module_frame.outer is not None:
            module_frame = module_frame.outer
        match value:
            case ast.Name(id=root):
                home = frame.home_of(root)
                if home is None:
                    return []
                cls = home.scope.cls
                if cls is not None and root == own_name(home.scope):
                    return self._methods(cls, name, module_frame)
                for binding in home.scope.names[root]:
                    if binding.kind == "class" and isinstance(binding.node, ast.ClassDef):
                        return self._methods(binding.node, name, module_frame)
            case ast.Call(func=ast.Name(id="super")):
                within: Frame | None = frame
                while within is not None and within.scope.cls is None:
                    within = within.outer
                if within is not None and within.scope.cls is not None:
                    found = methods(within.scope.cls, name, tree, inherited=True)
                    return [
                        (self.scope(node, frame.scope.module, within.scope.cls), module_frame, True) for node in found
                    ]
        imported = self.imported(value, frame)
        there = None if imported is None else self.module(imported)
        return [] if there is None else self.callees(ast.Name(name), there, depth + 1)

    def _methods(self, cls: ast.ClassDef, name: str, module: Frame) -> list[Callee]:
        found = methods(cls, name, module.scope.module.tree)
        return [
            (self.scope(node, module.scope.module, cls), module, not _is_static(node))
            for node in found
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]


def own_name(scope: Scope) -> str | None:
    """The name of a method's own object."""
    arguments = scope.arguments
    if arguments is None or _is_static(scope.node):
        return None
    return next((each.arg for each in (*arguments.posonlyargs, *arguments.args)), None)


def _is_static(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in decorators)


def matched(scope: Scope, call: ast.Call, frame: Frame, outer: Frame, bound: bool) -> dict[str, tuple[ast.expr, Frame]]:
    """Which argument each parameter has in `call`."""
    arguments = scope.arguments
    if arguments is None:
        return {}
    named = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    found: dict[str, tuple[ast.expr, Frame]] = {}
    for given, default in zip(reversed(named), reversed(arguments.defaults), strict=False):
        found[given] = default, outer
    for each, optional in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if optional is not None:
            found[each.arg] = optional, outer
    for name, value in zip(named[bound:], call.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        found[name] = value, frame
    extra: list[ast.keyword] = []
    keywords = {*named, *(each.arg for each in arguments.kwonlyargs)}
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg in keywords:
            found[keyword.arg] = keyword.value, frame
        else:
            extra.append(keyword)
    if arguments.kwarg is not None:
        keys: list[ast.expr | None] = [
            None if each.arg is None else ast.Constant(each.arg, lineno=each.value.lineno) for each in extra
        ]
        found[arguments.kwarg.arg] = ast.Dict(keys, [each.value for each in extra], lineno=call.lineno), frame
    return found
