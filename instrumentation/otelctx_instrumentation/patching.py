"""Applying patches and undoing them.

A patch replaces one attribute of a class or a module with a *plain function*: wrapt's FunctionWrapper costs about a
microsecond a call and cannot be pickled. wrapt finds the attribute, sets it, and tells when a module is imported.
"""

from __future__ import annotations

import _thread
import sys
from dataclasses import dataclass
from functools import cache, wraps
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from otelctx import activation, faults, forks
from otelctx_instrumentation import theirs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_ABSENT: Final = object()


class Active:
    """Whether a patch is in force.

    A replacement that someone has wrapped since stays in place after `undo`; it looks at this before it does anything.
    """

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True


@dataclass(frozen=True, slots=True)
class Patch:
    """One attribute to replace: `path` in `module`, with what `replace` makes of the original."""

    module: str
    path: str
    replace: Callable[[Any, Active], Any]
    """(original, active) -> replacement; the replacement calls the original where ``active.on`` is False."""
    is_declared: bool = False
    """Whether an operator named it, who is told where it does not exist."""
    is_own: bool = False
    """Whether it is left alone where the class only inherits it: versions of a library move it up and down."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A library's own hook, which beats a patch: how to add ours to `module`, and how to take it out again."""

    module: str
    add: Callable[[Any], object]
    remove: Callable[[Any], object]


@dataclass(slots=True, eq=False)
class _Applied:
    owner: Any
    name: str
    own: Any
    """What the owner itself had under the name; `_ABSENT` where it inherits it."""
    replacement: Any
    active: Active
    code: object
    """The replacement's code: ddtrace wraps a function by giving it another one."""

    def is_ours(self) -> bool:
        """Whether the replacement is outermost, as we made it."""
        found = vars(self.owner).get(self.name)
        return found is self.replacement and getattr(found, "__code__", None) is self.code

    def put_back(self) -> None:
        """Put back what was there before."""
        if self.own is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, theirs.without_left_over(self.own))
        _look_up_anew(self.name, self.replacement)


_replaced: list[object] = []


def _look_up_anew(name: str, replaced: object) -> None:
    """Have ``thing[key]`` find what is there now, in place of `replaced`.

    CPython 3.13 does not see that by itself in a class that has been changed a thousand times: code that it has
    specialised for such a subscription goes on calling the function that it knew, as long as that one has not changed;
    and it looks there even when the function is gone.
    """
    if name == "__getitem__" and type(replaced) is FunctionType and sys.version_info[:2] == (3, 13):
        replaced.__defaults__ = replaced.__defaults__
        _replaced.append(replaced)


_lock = _thread.RLock()
forks.renew_in_child(globals(), "_lock", _thread.RLock)
_applied: dict[tuple[str, str], _Applied] = {}
_left: list[_Applied] = []
"""What has stayed under somebody else's, inert; put back by the next `apply` or `undo` that finds it outermost."""
_hooked: dict[Hook, object] = {}
_generation = 0


def apply(patches: Iterable[Patch]) -> None:
    """Apply each patch now, if its module is imported, or once it is. Applying one twice is applying it once."""
    generation = _generation
    for patch in patches:

        def apply_it(module: object, patch: Patch = patch) -> None:
            if generation == _generation:
                _apply(patch)

        when_imported(patch.module, apply_it)


def hook(hooks: Iterable[Hook]) -> None:
    """Add each hook now, if its module is imported, or once it is. Adding one twice is adding it once."""
    generation = _generation
    for one in hooks:

        def add(module: object, one: Hook = one) -> None:
            with _lock:
                if generation == _generation and one not in _hooked:
                    one.add(module)
                    _hooked[one] = module

        when_imported(one.module, add)


@cache
def _wrapt() -> Any:
    """Return wrapt, whose lock is taken by every import as soon as it watches for one: a forked child finds it free."""
    import wrapt
    from wrapt import importer

    if hasattr(importer, "_post_import_hooks_lock"):
        forks.renew_in_child(vars(importer), "_post_import_hooks_lock", _thread.RLock)
    return wrapt


def when_imported(name: str, hook: Callable[[object], None]) -> None:
    """Call `hook` with the module `name`, now or when it has been imported. What it raises never reaches the import."""

    def contained(module: object) -> None:
        try:
            hook(module)
        except Exception as exc:
            faults.internal_error("import hook", exc, name)

    _wrapt().register_post_import_hook(contained, name)


def _apply(patch: Patch) -> None:
    import wrapt

    with _lock:
        if (patch.module, patch.path) in _applied:
            return
        _clear_away()
        try:
            # The module object itself: wrapt would import it again by its name.
            owner, name, original = wrapt.resolve_path(sys.modules[patch.module], patch.path)
        except AttributeError:
            if patch.is_declared:
                faults.wrong_setting("patch", f"{patch.module}:{patch.path} is declared, and is not there")
            return  # or a version of the library that has no such attribute
        if patch.is_own and name not in vars(owner):
            return
        # What stands in for the original until otelctx is installed is not what `undo` is to put back.
        original = activation.original_of(original, owner)
        if patch.is_declared and isinstance(vars(owner).get(name), classmethod | staticmethod):
            original = vars(owner)[name]
        elif type(original) is not FunctionType:
            # Somebody's wrapper, as it lies in the class: called like that, wrapt's does not see its instance.
            original = getattr(owner, name)
        active = Active()
        replacement = patch.replace(original, active)
        if getattr(replacement, "__wrapped__", original) is original:
            replacement = wraps(original)(replacement)
            if (signature := getattr(original, "__text_signature__", None)) is not None:
                replacement.__dict__["__text_signature__"] = signature  # what a built-in function has for one
            if isinstance(owner, ModuleType) and getattr(original, "__module__", None) != patch.module:
                replacement.__module__ = patch.module  # `os.system` is called posix's, where the original still is
        own = activation.original_of(vars(owner).get(name, _ABSENT), owner)
        wrapt.apply_patch(owner, name, replacement)
        _look_up_anew(name, own)
        _applied[patch.module, patch.path] = _Applied(
            owner, name, own, replacement, active, getattr(replacement, "__code__", None)
        )


def undo() -> None:
    """Put back every attribute that is still ours, in reverse order; the others go inert. Take out what was hooked."""
    global _generation
    with _lock:
        _generation += 1
        while _hooked:
            hooked, module = _hooked.popitem()
            hooked.remove(module)
        while _applied:
            _, done = _applied.popitem()
            done.active.on = False
            if done.is_ours():
                done.put_back()
            elif not _take_out(done):
                _left.append(done)
        _clear_away()


def _clear_away() -> None:
    """Put back what is under what was left, where whoever was over it has gone since."""
    for done in reversed(_left[:]):  # the newest lies over the older ones
        if done.is_ours():
            done.put_back()
            _left.remove(done)


def _take_out(done: _Applied) -> bool:
    """Take the replacement out from under wrapt's wrappers that lie over it; whether that is where it was."""
    from wrapt import FunctionWrapper

    outer = vars(done.owner).get(done.name)
    while issubclass(type(outer), FunctionWrapper):
        if outer.__wrapped__ is done.replacement:
            # Inherited is what the base has now: somebody may have wrapped it there since.
            outer.__wrapped__ = getattr(super(done.owner, done.owner), done.name) if done.own is _ABSENT else done.own
            return True
        outer = outer.__wrapped__
    return False


def in_force() -> Callable[[], list[Active]]:
    """Return what lists the patches that are in force; it needs no name of this module."""
    done = _applied
    return lambda: [patch.active for patch in done.values()]


def applied() -> list[tuple[str, str, bool]]:
    """What is patched: (module, attribute, whether ours is the outermost), in the order in which it was applied."""
    with _lock:
        return [(module, path, done.is_ours()) for (module, path), done in _applied.items()]
