"""What happens at interpreter start, and how little.

The wheel puts ``otelctx.pth`` at the root of site-packages. Where ``OTELCTX_ENABLED`` or ``OTELCTX_AUTO_INSTRUMENT`` is
set, its one line calls :func:`bootstrap`, which arms two triggers and imports nothing: neither ``threading`` nor wrapt
nor OpenTelemetry. The first trigger that fires calls :func:`otelctx.activation.activate`:

* **A module of the application's own, or a third party's, is looked up.** Ordinary programs are patched here, ahead
  of everything that they import.
* **A stand-in is called** (``activation.py``). As soon as a module of ``HOPS`` has been imported, its method is
  replaced with one. So a program that needs the standard library alone is patched at its first hop, and a program
  without a hop pays for nothing.

With ``OTELCTX_AUTO_INSTRUMENT``, OpenTelemetry is initialised as well (``auto_instrument.py``), when ``site`` has
imported ``sitecustomize``, or has found that there is none.
"""

from __future__ import annotations

import os
import sys

from otelctx import activation

TYPE_CHECKING = False  # not typing's: that would be nine tenths of what a start costs
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any
else:
    Loader = object  # its methods are enough, and its module is not imported at interpreter start

__all__ = ["bootstrap", "is_armed", "switched_by", "truth"]

# Their import is no sign of an application: ourselves, what `site` and `runpy` look for, and the libraries that patch
# the standard library for cooperative threads. These want to be first, and activating imports `ssl` and `threading`.
_NO_SIGN = frozenset({"otelctx", "otelctx_instrumentation", "__main__", "sitecustomize", "usercustomize"})
_NO_SIGN |= sys.stdlib_module_names | activation.MONKEY_PATCHERS


def switched_by(environ: Mapping[str, str]) -> bool | None:
    """Say whether the environment turns otelctx on (True), off (False) or leaves that open (None).

    ``OTELCTX_ENABLED`` decides where it is set; ``OTELCTX_AUTO_INSTRUMENT=true`` implies it. ``0``, ``false``, ``no``
    and ``off``, in any case, mean off, any other value means on, and an empty one counts as not set.
    """
    enabled = truth(environ.get("OTELCTX_ENABLED"))
    return enabled if enabled is not None else truth(environ.get("OTELCTX_AUTO_INSTRUMENT")) or None


def bootstrap() -> None:
    """Arm the triggers, where the environment says so.

    Called by ``otelctx.pth``, in some virtual environments twice: the second call does nothing. Never raises.
    """
    global _finder
    try:
        if _finder is not None or not switched_by(os.environ):
            return
        _finder = _Finder(auto_instrument=_auto_instrument_wanted(os.environ))
        sys.meta_path.insert(0, _finder)
        for name in activation.HOPS:
            if (module := sys.modules.get(name)) is not None:
                activation.stand_in(module)
    except Exception as error:
        activation.complain("not started", error)


def is_armed() -> bool:
    """Say whether the environment has turned otelctx on in this process, now or later."""
    return _finder is not None


def truth(value: str | None) -> bool | None:
    """Read a switch in the environment; None for one that is empty or not set."""
    word = (value or "").strip().lower()
    return word not in ("0", "false", "no", "off") if word else None


def _auto_instrument_wanted(environ: Mapping[str, str]) -> bool:
    if not truth(environ.get("OTELCTX_AUTO_INSTRUMENT")):
        return False
    from otelctx.auto_instrument import allows, program_of

    return allows(environ.get("OTELCTX_AUTO_INSTRUMENT_PROGRAMS", ""), program_of(sys.orig_argv))


class _Finder:
    """The first entry of ``sys.meta_path``: finds nothing itself, and sees what is looked for.

    Once otelctx is installed it stays where it is and does nothing. Taking an entry out of ``sys.meta_path`` makes an
    import that is going through the list, in this thread or another, skip the entry behind it.
    """

    def __init__(self, *, auto_instrument: bool) -> None:
        self._auto_instrument = auto_instrument

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._auto_instrument and name == "sitecustomize":
            self._auto_instrument = False
            return self._find_sitecustomize(path, target)
        if not activation.pending():
            return None
        if name in activation.HOPS:
            return self._find_and_then(name, path, target, activation.stand_in)
        # This runs under the import system's global lock, so with a second thread the two could wait for each other.
        # A second thread has been started, though, and that was a hop: the stand-ins see to it.
        if (
            name.partition(".")[0] not in _NO_SIGN
            and not name.startswith("_sysconfigdata")  # the standard library's, under a name of the platform's
            and len(sys._current_frames()) == 1
            and activation.may_activate(after_site=True)
        ):
            activation.activate()
            # The installation has imported the very module whose import brought us here. It must not run twice.
            loaded = sys.modules.get(name)
            if loaded is not None and (spec := loaded.__spec__) is not None:
                spec.loader = _Loaded(spec, loaded)
                return spec
            # It may be one of those that are patched, and the finder that watches for it has just come before this one.
            return self._find(name, path, target)
        return None

    def _find_sitecustomize(self, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        from otelctx import auto_instrument

        spec = self._find_and_then("sitecustomize", path, target, lambda module: auto_instrument.initialize())
        return spec if spec is not None else auto_instrument.absent("sitecustomize")

    def _find_and_then(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None, then: Callable[[ModuleType], None]
    ) -> ModuleSpec | None:
        """Find a module as if this finder were not there, and have ``then`` called with it when it has run."""
        spec = self._find(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Watched(spec, then)
        return spec

    def _find(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(name, path, target) if find_spec is not None else None
            if spec is not None:
                return spec
        return None


class _SteppingAside(Loader):
    """Stands in for a module's own loader until the module is executed; the module never sees it."""

    def __init__(self, spec: ModuleSpec) -> None:
        self._spec = spec
        self._loader: Any = spec.loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def _step_aside(self, module: ModuleType) -> None:
        self._spec.loader = self._loader
        module.__loader__ = self._loader


class _Watched(_SteppingAside):
    """Loads a module, and does something when it has run."""

    def __init__(self, spec: ModuleSpec, then: Callable[[ModuleType], None]) -> None:
        super().__init__(spec)
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._step_aside(module)
        self._loader.exec_module(module)
        try:
            self._then(module)
        except Exception as error:
            activation.complain(f"not armed for {module.__name__}", error)


class _Loaded(_SteppingAside):
    """Gives back a module that was loaded while it was being looked up."""

    def __init__(self, spec: ModuleSpec, module: ModuleType) -> None:
        super().__init__(spec)
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        self._step_aside(module)


_finder: _Finder | None = None
