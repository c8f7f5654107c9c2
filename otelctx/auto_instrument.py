"""``OTELCTX_AUTO_INSTRUMENT``: what ``opentelemetry-instrument`` does, by a variable alone.

The variable may be set for a whole shell or container. So installers and build tools are left out by default: every one
of them would start exporters and, where no collector answers, wait for them at its end.
``OTELCTX_AUTO_INSTRUMENT_PROGRAMS`` says which programs are meant instead.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from otelctx.activation import complain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
else:
    Loader = object  # its methods are enough, and its module is not imported at interpreter start

__all__ = [
    "LEFT_OUT",
    "Program",
    "absent",
    "allows",
    "initialize",
    "opentelemetry_instrument_is_at_work",
    "program_of",
]

LEFT_OUT: Final = (
    # installers
    *("pip", "pip[0-9]*", "pip.*", "pipx", "get-pip", "__pip-runner__", "ensurepip", "uv", "uvx", "conda"),
    # makers of environments
    *("venv", "virtualenv", "poetry", "pdm", "pipenv", "hatch", "tox", "nox"),
    # build tools and their back ends' processes
    *("setup", "setuptools", "setuptools.*", "build", "pyproject-build", "_in_process", "wheel", "hatchling", "flit"),
    *("maturin", "meson", "cython", "twine", "compileall"),
    # they only look at a program, or replace themselves with it
    *("otelctx", "opentelemetry-*"),
    # the standard library's own processes, which run none of the application's work
    *("multiprocessing.resource_tracker", "multiprocessing.forkserver"),
)
"""Globs of the programs that are left out where the variable names none."""


class Program(NamedTuple):
    """What an interpreter was told to run."""

    name: str
    """The script's base name, the module's dotted name, ``-c``, ``-`` (standard input) or empty (interactive)."""
    stem: str
    """The same without ``.py``, ``.pyz`` or ``.exe``, so that a glob may leave them away."""


def program_of(argv: Sequence[str]) -> Program:
    """Read the program from an interpreter's command line, as ``sys.orig_argv`` has it."""
    arguments = iter(argv[1:])
    for argument in arguments:
        if argument == "--check-hash-based-pycs":
            next(arguments, None)
        elif argument == "-" or not argument.startswith("-"):
            name = argument.replace(os.sep, "/").rstrip("/").rpartition("/")[2]
            return Program(name, name.removesuffix(".exe").removesuffix(".pyz").removesuffix(".py"))
        elif not argument.startswith("--"):
            # Letters may stand together, and a letter's value may stick to it: -Im module, -Wignore, -X dev.
            position = next((at for at, letter in enumerate(argument) if letter in "cmWX"), 0)
            if position:
                value = argument[position + 1 :] or next(arguments, "")
                if argument[position] == "m":
                    return Program(value, value)
                if argument[position] == "c":
                    return _program_of_code(value)
    return Program("", "")


def allows(globs: str, program: Program) -> bool:
    """Say whether the comma-separated ``globs`` let ``program`` in.

    A glob with ``!`` before it keeps out what it matches, whatever the others say. Where there are others, one of them
    has to match; where there are none, everything is let in but ``LEFT_OUT``.
    """
    from fnmatch import fnmatchcase

    def matches(glob: str) -> bool:
        return fnmatchcase(program.name, glob) or fnmatchcase(program.stem, glob)

    given = [glob.strip() for glob in globs.split(",") if glob.strip(" !")]
    if any(matches(glob[1:].strip()) for glob in given if glob.startswith("!")):
        return False
    wanted = [glob for glob in given if not glob.startswith("!")]
    return any(map(matches, wanted)) if wanted else not any(map(matches, LEFT_OUT))


def initialize() -> None:
    """Run OpenTelemetry's own ``initialize()``, unless ``opentelemetry-instrument`` is at work. Never raises."""
    if opentelemetry_instrument_is_at_work():
        return
    try:
        from opentelemetry.instrumentation import auto_instrumentation

        auto_instrumentation.initialize()
    except Exception as error:
        complain("OpenTelemetry is not initialised", error)


def absent(name: str) -> ModuleSpec:
    """Return a spec whose import initialises OpenTelemetry, and then fails as that of a module that is not there.

    ``initialize`` starts threads and waits for them, so it must not be called by a finder: finders run under the import
    system's global lock.
    """
    from importlib.machinery import ModuleSpec

    return ModuleSpec(name, _AbsentLoader())


class _AbsentLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        initialize()
        raise ModuleNotFoundError(f"No module named {module.__name__!r}", name=module.__name__)


def opentelemetry_instrument_is_at_work() -> bool:
    """Say whether ``opentelemetry-instrument`` (or the Kubernetes operator) has started this process."""
    if "opentelemetry.instrumentation.auto_instrumentation" in sys.modules:
        return True
    if sys.flags.ignore_environment:
        return False
    paths = os.environ.get("PYTHONPATH", "").replace(os.sep, "/").split(os.pathsep)
    return any(path.rstrip("/").endswith("/opentelemetry/instrumentation/auto_instrumentation") for path in paths)


def _program_of_code(code: str) -> Program:
    """Tell multiprocessing's own processes, which are started with ``-c``, from other code."""
    for module in ("multiprocessing.resource_tracker", "multiprocessing.forkserver"):
        if code.startswith(f"from {module} import "):
            return Program(module, module)
    return Program("-c", "-c")
