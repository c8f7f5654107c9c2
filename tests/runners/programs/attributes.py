"""What a library's modules and classes have, before otelctx is installed and after it is gone again.

As a program: ``python attributes.py QUEUE APPLICATION``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from sightings import write

import otelctx

Attributes = dict[str, Any]

_ABSENT = object()
_before: Attributes = {}


def _of(library: str) -> Attributes:
    found: Attributes = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != library:
            continue
        for attribute, value in list(vars(module).items()):
            found[f"{name}:{attribute}"] = value
            if isinstance(value, type) and value.__module__ == name:
                found.update((f"{name}:{attribute}.{own}", held) for own, held in list(vars(value).items()))
    return found


def _changed(before: Attributes, after: Attributes) -> list[str]:
    """The functions that are not what they were; a library's data change while it runs."""
    changed = []
    # Of modules and classes that were there by then.
    for name in (name for name in before | after if name in before or name.rpartition(".")[0] in before):
        was, found = before.get(name, _ABSENT), after.get(name, _ABSENT)
        is_function = isinstance(was, FunctionType | staticmethod | classmethod) or isinstance(found, FunctionType)
        if was is not found and is_function:
            changed.append(name)
    return changed


def install(queue: str) -> None:
    """Remember what the library has, and install otelctx."""
    for patch in importlib.import_module(f"otelctx_instrumentation.{queue}").PATCHES:
        try:
            importlib.import_module(patch.module)
        except ImportError:  # of another version
            continue
    _before.update(_of(queue))
    otelctx.install()


def uninstall(queue: str, ours: Callable[[], list[str]] = list) -> None:
    """Uninstall otelctx, and write down what was patched, and what is not as it was; `ours` are places besides."""
    from otelctx_instrumentation import patching

    patched = [f"{module}:{path}" for module, path, _ in patching.applied() if module.partition(".")[0] == queue]
    installed = _of(queue)
    otelctx.install()
    twice = _changed(installed, _of(queue))
    otelctx.uninstall()
    left = _changed(_before, _of(queue)) + ours()
    write("uninstalled", patched=patched, changed=_changed(_before, installed), twice=twice, left=left)


if __name__ == "__main__":
    importlib.import_module(sys.argv[2])
    install(sys.argv[1])
    uninstall(sys.argv[1])
