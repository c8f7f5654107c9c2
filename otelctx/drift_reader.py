"""What a function puts into the environment of a child process, read from its syntax tree.

Followed are the dictionaries that become a child's environment: what is given as ``env=`` (also inside a dictionary of
keyword arguments), what is made from `os.environ`, what a dictionary of these is made from, what is written into
`os.environ` itself, and what is merely *named* like an environment (``env``, ``child_env``, ``environ``). Every way of
writing counts: ``env["X"] =``, literals, ``dict(X=…)``, ``update``, ``setdefault``, ``|``, ``**``, ``os.putenv``. So do
helper functions that get such a dictionary or return one, in the same module, in the same class and in modules that are
imported, as deep as `DEEPEST`. All branches count, whichever is taken.

Names may be constants, of this module or of one that it imports, loops over constants, and strings put together from
these. A name, or a whole dictionary, that is not known without running the program is reported as one that cannot be
read, never skipped. Not reported is what the caller gives as the environment to start from.

What escapes: environments kept in objects other than ``self``, positional ``env`` of ``Popen``, decorators that set
variables, the command ``env X=Y``.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from typing import Final, NamedTuple, TypeAlias

from otelctx.drift_program import DEEPEST, Callee, Frame, Program, matched, own_name
from otelctx.drift_scope import GIVEN, Event
from otelctx.drift_source import Module, definitions
from otelctx.drift_strings import Strings

_FRAMES: Final = 400

_ENVIRONMENT: Final = re.compile(r"(?i)(?:.*_|child|new|base|proc|sub|my)?env(?:iron(?:ment)?|s|vars?)?(?:_.*|\d*)")
_VARIABLE: Final = re.compile("[A-Z_][A-Z0-9_]*")
_COPIES: Final = {"dict", "OrderedDict", "ChainMap", "UserDict", "MappingProxyType", "copy", "deepcopy"}
_WITH_ENVIRONMENT: Final = re.compile("(?:exec[lv]p?|spawn[lv]p?)e")


class Put(NamedTuple):
    """One variable that is put into a child's environment."""

    module: str
    line: int
    name: str
    """The variable; of a name that cannot be read, as much of its beginning as is known."""
    unread: str = ""
    """What cannot be read there; empty where `name` is the name."""


_Holder: TypeAlias = "tuple[object, str]"


class Reader:
    """Reads functions; one for each question."""

    def __init__(self, search: list[str] | None = None) -> None:
        self._program = Program(search)
        self._strings = Strings(self._program, self)
        self._frames: list[Frame] = []
        self._called: dict[tuple[object, ...], Frame] = {}
        self._holders: dict[_Holder, tuple[bool, ast.expr, Frame]] = {}
        self._filled: set[_Holder] = set()
        self._done: set[tuple[object, ...]] = set()
        self._by_name = False
        self._found: dict[Put, None] = {}

    def read(self, module: Module, chain: tuple[ast.AST, ...]) -> list[Put]:
        """What the function at the end of `chain` (as `drift_source.functions_named` gives it) puts, by line."""
        frame = self._program.begun(module)
        cls: ast.ClassDef | None = None
        for node in chain[1:]:
            if isinstance(node, ast.ClassDef):
                cls = node
            else:
                main = node is chain[-1]
                frame = Frame(self._program.scope(node, module, cls), frame, main=main)
                self._frames.append(frame)
                cls = None
        self._settle()
        self._by_name = True
        self._settle()
        self._report_unfilled()
        return sorted(self._found, key=lambda put: (put.module != module.name, put.module, put.line, put.name))

    def _settle(self) -> None:
        before = -1
        while before != len(self._done):
            before = len(self._done)
            for frame in list(self._frames):
                for event in frame.scope.events:
                    self._look(event, frame)
            if before == len(self._done):
                self._enter_uncalled()

    def _once(self, *what: object) -> bool:
        if what in self._done:
            return False
        self._done.add(what)
        return True

    def _enter_uncalled(self) -> None:
        # A function inside may be handed to somebody who calls it.
        for frame in [frame for frame in self._frames if frame.main]:
            for node in frame.scope.nested:
                if self._once("nested", node, frame) and not any(
                    other.scope.node is node and other.outer is frame for other in self._frames
                ):
                    self._frames.append(Frame(self._program.scope(node, frame.scope.module), frame, frame))

    # --- what happens ------------------------------------------------------------------------------------------------

    def _look(self, event: Event, frame: Frame) -> None:
        target, value = event.target, event.value
        match event.kind:
            case "given" if frame.main and value is not None and self._once(event.value, frame):
                self._read(value, frame, base=True)
            case "return" if frame.returned and value is not None and self._once(event.value, frame, "return"):
                self._read(value, frame, base=frame.returned == "base")
            case "key" if value is not None and self._is_environment(target, frame):
                self._fill(target, frame)
                if self._once(value, frame, "key"):
                    self._put(value, frame, self._strictly(target, frame))
            case "is" if value is not None:
                held = self._holder(target, frame)
                if held is not None and not self._is_held(held, frame, target) and self.holds(value, frame):
                    self._hold(target, frame, base=True)
                if held is not None and self._is_held(held, frame, target):
                    self._filled.add(held)
                    strict = self._strictly(target, frame)
                    if self._once(value, frame, "is", strict):
                        self._read(value, frame, base=self._holders[held][0] if strict else True, strict=strict)
            case "merge" if value is not None and self._is_environment(target, frame):
                self._fill(target, frame)
                if self._once(value, frame, "merge"):
                    self._read(value, frame, base=False, strict=self._strictly(target, frame))
            case "call" if isinstance(target, ast.Call):
                self._call(target, frame)

    def _call(self, call: ast.Call, frame: Frame) -> None:
        func, arguments = call.func, call.args
        owner: ast.expr | None = None
        if isinstance(func, ast.Attribute):
            owner = func.value
            if isinstance(owner, ast.Name) and owner.id == "dict" and arguments:  # dict.update(env, …)
                owner, arguments = arguments[0], arguments[1:]
            if func.attr in ("update", "setdefault", "__setitem__", "__ior__") and self._is_environment(owner, frame):
                self._fill(owner, frame)
                if self._once(call, frame):
                    self._written(func.attr, arguments, call.keywords, frame, self._strictly(owner, frame))
                return
        if not frame.main:
            return
        imported = self._program.imported(func, frame)
        if imported == "os.putenv" and arguments and self._once(call, frame):
            self._put(arguments[0], frame, True)
        given = [keyword.value for keyword in call.keywords if keyword.arg in GIVEN]
        if imported is not None and _WITH_ENVIRONMENT.fullmatch(imported.removeprefix("os.")) and arguments:
            given.append(arguments[-1])
        if imported in ("os.posix_spawn", "os.posix_spawnp") and len(arguments) > 2:
            given.append(arguments[2])
        for value in given:
            if self._once(value, frame):
                self._read(value, frame, base=True)
        self._follow_arguments(call, frame)

    def _written(
        self, method: str, arguments: list[ast.expr], keywords: list[ast.keyword], frame: Frame, strict: bool
    ) -> None:
        if method in ("setdefault", "__setitem__"):
            if arguments:
                self._put(arguments[0], frame, strict)
            return
        for argument in arguments:
            self._read(argument, frame, base=False, strict=strict)
        for keyword in keywords:
            if keyword.arg is None:
                self._read(keyword.value, frame, base=False, strict=strict)
            else:
                self._add(keyword.arg, keyword.value, frame, strict)

    def _follow_arguments(self, call: ast.Call, frame: Frame) -> None:
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        passed = [value for value in values if self._is_environment(value, frame)]
        callees = self._program.callees(call.func, frame)
        inside = any(isinstance(scope.node, ast.AST) and outer.outer is not None for scope, outer, _ in callees)
        of_self = any(scope.cls is not None and bound for scope, _, bound in callees)
        if not (passed or inside or of_self):
            return
        for callee in callees:
            entered = self._enter(call, frame, callee)
            if entered is None:
                continue
            for name, (value, _) in entered.arguments.items():
                if any(value is one for one in passed):
                    self._holders.setdefault((entered, name), (True, ast.Name(name), entered))
                    self._done.add(("passed", entered, name))
        escaping = [] if callees else [value for value in passed if self._strictly(value, frame)]
        if escaping and not self._is_harmless(call, frame, escaping) and self._once(call, frame, "escapes"):
            self._unreadable(call, f"{ast.unparse(call.func)}() gets the environment", frame)

    def _is_harmless(self, call: ast.Call, frame: Frame, passed: list[ast.expr]) -> bool:
        func = call.func
        if isinstance(func, ast.Name) and frame.home_of(func.id) is None and hasattr(builtins, func.id):
            return True
        if isinstance(func, ast.Name) and func.id in _COPIES:
            return True
        imported = self._program.imported(func, frame)
        if imported is not None and imported.partition(".")[0] in sys.stdlib_module_names:
            return True
        named = [keyword.value for keyword in call.keywords if keyword.arg and _ENVIRONMENT.fullmatch(keyword.arg)]
        if isinstance(func, ast.Attribute) and self._is_environment(func.value, frame):
            return True
        return all(any(value is one for one in named) for value in passed)

    # --- reading a dictionary ----------------------------------------------------------------------------------------

    def _read(self, expr: ast.expr, frame: Frame, *, base: bool, strict: bool = True) -> None:
        """Read the dictionary `expr`: a child's environment (`base`), or what is put on top of one."""
        if not self._once(expr, frame, "read", base, strict):
            return
        match expr:
            case ast.Constant():
                pass
            case ast.Dict(keys=keys, values=values):
                for index, (key, value) in enumerate(zip(keys, values, strict=True)):
                    if key is None:
                        self._read(value, frame, base=base and index == 0, strict=strict)
                    else:
                        self._put(key, frame, strict)
            case ast.DictComp(key=key):
                self._put(key, frame, strict)
            case ast.List(elts=pairs) | ast.Tuple(elts=pairs) | ast.Set(elts=pairs):
                for pair in pairs:
                    self._pair(pair, frame, strict)
            case ast.ListComp(elt=pair) | ast.GeneratorExp(elt=pair) | ast.SetComp(elt=pair):
                self._pair(pair, frame, strict)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                self._read(left, frame, base=base, strict=strict)
                self._read(right, frame, base=False, strict=strict)
            case ast.IfExp(body=body, orelse=orelse):
                self._read(body, frame, base=base, strict=strict)
                self._read(orelse, frame, base=base, strict=strict)
            case ast.BoolOp(values=values):
                for value in values:
                    self._read(value, frame, base=base, strict=strict)
            case ast.NamedExpr(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                self._read(value, frame, base=base, strict=strict)
            case ast.Call():
                self._read_call(expr, frame, base, strict)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                self._read_variable(expr, frame, base, strict)
            case _ if strict:
                self._unreadable(expr, f"what {_short(expr)} holds", frame)

    def _pair(self, pair: ast.expr, frame: Frame, strict: bool) -> None:
        if isinstance(pair, ast.Tuple | ast.List) and len(pair.elts) == 2:
            self._put(pair.elts[0], frame, strict)
        elif strict:
            self._unreadable(pair, f"what {_short(pair)} holds", frame)

    def _read_call(self, call: ast.Call, frame: Frame, base: bool, strict: bool) -> None:
        func = call.func
        name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        callees = self._program.callees(func, frame)
        if isinstance(func, ast.Attribute) and name in ("copy", "items") and not call.args:
            self._read(func.value, frame, base=base, strict=strict)
        elif isinstance(func, ast.Attribute) and name == "fromkeys" and call.args:
            self._names_of(self._strings.items(call.args[0], frame), call.args[0], frame, strict)
        elif name in _COPIES and not callees:
            for index, argument in enumerate(call.args):
                self._read(argument, frame, base=base and index == 0, strict=strict)
            self._written("update", [], call.keywords, frame, strict)
        elif callees:
            for callee in callees:
                entered = self._enter(call, frame, callee)
                if entered is not None and strict:
                    entered.returned = "base" if base else entered.returned or "merged"
        elif strict:
            self._unreadable(call, f"what {ast.unparse(func)}() returns", frame)

    def _read_variable(self, expr: ast.expr, frame: Frame, base: bool, strict: bool) -> None:
        if self._program.is_process(expr, frame):
            return
        if isinstance(expr, ast.Name):
            home = frame.home_of(expr.id)
            if home is not None and expr.id in home.arguments:
                argument, caller = home.arguments[expr.id]
                self._read(argument, caller, base=base, strict=strict)
            bindings = [] if home is None else home.scope.names[expr.id]
            for binding in bindings:
                if binding.kind == "import" and binding.attribute is not None:
                    there = self._program.module(binding.module)
                    if there is not None and binding.attribute in there.scope.names:
                        self._add_frame(there)
                        self._read(ast.Name(binding.attribute, lineno=expr.lineno), there, base=base, strict=strict)
                        return
        if strict:
            self._hold(expr, frame, base)

    # --- who holds an environment ------------------------------------------------------------------------------------

    def _holder(self, expr: ast.expr, frame: Frame) -> _Holder | None:
        """What the variable `expr` is known by: the frame or class that it belongs to, and its name there."""
        root: ast.expr = expr
        while isinstance(root, ast.Attribute | ast.Subscript):
            if isinstance(root, ast.Subscript) and not isinstance(root.slice, ast.Constant):
                return None
            root = root.value
        if not isinstance(root, ast.Name):
            return None
        home = frame.home_of(root.id)
        method = home
        while method is not None and method.scope.cls is None:
            method = method.outer
        if method is not None and expr is not root and home is method and root.id == own_name(method.scope):
            return method.scope.cls, ast.unparse(expr).removeprefix(root.id)
        return home, ast.unparse(expr)

    def _hold(self, expr: ast.expr, frame: Frame, base: bool) -> None:
        held = self._holder(expr, frame)
        if held is None:
            self._unreadable(expr, f"what {_short(expr)} holds", frame)
            return
        before = self._holders.get(held)
        if before is None or (before[0] and not base):
            self._holders[held] = (base, expr, frame)
            self._done.add(("hold", held, base))
        home = held[0]
        if isinstance(home, ast.ClassDef):
            outer = frame
            while outer.outer is not None:
                outer = outer.outer
            for node in definitions(home):
                if not isinstance(node, ast.ClassDef) and self._once("method", node):
                    scope = self._program.scope(node, frame.scope.module, home)
                    self._frames.append(Frame(scope, outer, main=False))
        elif isinstance(home, Frame):
            self._add_frame(home)

    def _add_frame(self, frame: Frame) -> None:
        if all(frame is not one for one in self._frames):
            self._frames.append(frame)

    def _fill(self, expr: ast.expr, frame: Frame) -> None:
        held = self._holder(expr, frame)
        if held is not None:
            self._filled.add(held)

    def _is_held(self, held: _Holder, frame: Frame, expr: ast.expr) -> bool:
        return held in self._holders or (self._by_name and frame.main and _is_named(expr))

    def _strictly(self, expr: ast.expr, frame: Frame) -> bool:
        """Whether more than its name says that it is an environment."""
        return self._holder(expr, frame) in self._holders or self._program.is_process(expr, frame)

    def _is_environment(self, expr: ast.expr, frame: Frame) -> bool:
        """Whether `expr` is an environment itself: what is written into it reaches the child."""
        if self._program.is_process(expr, frame):
            return True
        held = self._holder(expr, frame)
        return held is not None and self._is_held(held, frame, expr)

    def holds(self, expr: ast.expr, frame: Frame) -> bool:
        """Whether `expr` is an environment or is made from one."""
        match expr:
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._program.is_process(expr, frame) or self._holder(expr, frame) in self._holders
            case ast.Call(func=ast.Attribute(value=value, attr="copy" | "items"), args=[]):
                return self.holds(value, frame)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[value, *_]):
                return name in _COPIES and self.holds(value, frame)
            case ast.Dict(keys=[None, *_], values=[value, *_]):
                return self.holds(value, frame)
            case ast.DictComp(generators=[ast.comprehension(iter=value), *_]):
                return self.holds(value, frame)
            case ast.BinOp(left=value, op=ast.BitOr()):
                return self.holds(value, frame)
            case ast.IfExp(body=body, orelse=orelse):
                return self.holds(body, frame) or self.holds(orelse, frame)
            case ast.BoolOp(values=values):
                return any(self.holds(value, frame) for value in values)
            case _:
                return False

    # --- calls -------------------------------------------------------------------------------------------------------

    def _enter(self, call: ast.Call, frame: Frame, callee: Callee) -> Frame | None:
        """The frame of `callee`, called at `call`; None where it is too deep, or calls itself."""
        scope, outer, bound = callee
        key = (call, frame, scope)
        entered = self._called.get(key)
        if entered is not None:
            return entered
        if frame.calls(scope.node):
            return None
        if frame.depth >= DEEPEST or len(self._frames) >= _FRAMES:
            if self._once(call, frame, "deep"):
                self._unreadable(call, f"calls are nested too deeply to follow {ast.unparse(call.func)}()", frame)
            return None
        entered = self._called[key] = Frame(scope, outer, frame)
        entered.arguments = matched(scope, call, frame, outer, bound)
        self._frames.append(entered)
        self._done.add(("entered", call, frame, scope))
        return entered

    # --- names -------------------------------------------------------------------------------------------------------

    def _put(self, key: ast.expr, frame: Frame, strict: bool) -> None:
        self._names_of(self._strings.of(key, frame), key, frame, strict)

    def _names_of(self, names: frozenset[str] | None, expr: ast.expr, frame: Frame, strict: bool) -> None:
        if names is None:
            if not (isinstance(expr, ast.Constant) or (not strict and isinstance(expr, ast.Name))):
                self._unreadable(expr, _short(expr), frame, self._strings.beginning(expr, frame))
            elif isinstance(expr, ast.Name):
                self._unreadable(expr, expr.id, frame)
            return
        for name in names:
            self._add(name, expr, frame, strict)

    def _add(self, name: str, at: ast.expr, frame: Frame, strict: bool) -> None:
        if strict or _VARIABLE.fullmatch(name):
            self._found[Put(frame.scope.module.name, at.lineno, name)] = None

    def _unreadable(self, at: ast.expr, what: str, frame: Frame, beginning: str = "") -> None:
        self._found[Put(frame.scope.module.name, at.lineno, beginning, what)] = None

    def _report_unfilled(self) -> None:
        """Of what was put on top of an environment, report what nothing in sight was ever assigned to."""
        for held, (base, expr, frame) in self._holders.items():
            home = held[0]
            given = isinstance(home, Frame) and isinstance(expr, ast.Name) and expr.id in home.scope.names
            bindings = (
                home.scope.names[expr.id] if given and isinstance(home, Frame) and isinstance(expr, ast.Name) else []
            )
            if isinstance(home, Frame) and isinstance(expr, ast.Name) and expr.id in home.arguments:
                continue
            unknown = (
                any(binding.kind not in ("is", "def", "class") for binding in bindings) or held not in self._filled
            )
            imported = any(binding.kind == "import" for binding in bindings)
            parameter = bool(bindings) and not imported
            if unknown and not (base and (parameter or not isinstance(expr, ast.Name))):
                self._unreadable(expr, f"what {_short(expr)} holds", frame)

    def keys(self, mapping: ast.expr, frame: Frame) -> frozenset[str]:
        """The keys of `mapping`, which go into an environment: they are reported where they stand, so none is left."""
        if not self.holds(mapping, frame):
            self._read(mapping, frame, base=False)
        return frozenset()


def _is_named(expr: ast.expr) -> bool:
    match expr:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str() as name)):
            return _ENVIRONMENT.fullmatch(name) is not None
        case _:
            return False


def _short(expr: ast.expr) -> str:
    text = ast.unparse(expr)
    return text if len(text) <= 60 else text[:57] + "..."
