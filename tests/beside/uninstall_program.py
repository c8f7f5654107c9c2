"""``uninstall_program.py ORDER…``: otelctx and others, turned on and off in each of the orders.

An ORDER is like ``+sentry +otelctx -sentry -otelctx``, and has a fork of this process, in which nothing is on yet.
After each step work is sent through every hop, under A, under B and under nothing; and at last it is told what is not
what it was before the first step, and where a replacement of otelctx's is left, and whether any of them acts.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import greenlet_program as application
import others
import work

PACKAGES = ("asyncio", "concurrent", "logging", "multiprocessing", "os", "queue", "subprocess", "threading")

on: dict[str, others.Other] = {}


def look(*_: object) -> dict[str, Any]:
    return {"otelctx": application.look()} | {name: other.trace() for name, other in on.items()}


def seen() -> dict[str, dict[str, list[Any]]]:
    """By tool and hop, what is seen under A, under B and under nothing."""
    found: dict[str, dict[str, list[Any]]] = {name: {} for name in ("otelctx", *on)}
    hops = work.Hops(look)
    for key in ("A", "B", None):
        with ExitStack() as turns:
            turns.enter_context(application.session(key))
            for other in on.values():
                if key is not None:
                    turns.enter_context(other.turn(key))
            for hop, send in hops.by_name.items():
                for name, each in send().items():
                    found[name].setdefault(hop, []).append(each)
    hops.close()
    return found


def attributes(packages: tuple[str, ...]) -> dict[str, Any]:
    """Everything that modules and their classes have."""
    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.partition(".")[0] in packages:
            for attribute, value in list(vars(module).items()):
                found[f"{name}:{attribute}"] = value
                if isinstance(value, type) and value.__module__ == name:
                    found |= {f"{name}:{attribute}.{inner}": each for inner, each in list(vars(value).items())}
    return found


def looks(value: Any) -> tuple[object, object]:
    # ddtrace wraps a function by giving it another code.
    return (value, value.__code__) if type(value) is FunctionType else (value, None)


def changed(before: dict[str, tuple[object, object]]) -> list[str]:
    """Which functions are not the very ones that were there; of new ones, those of otelctx."""
    now = attributes(PACKAGES)
    is_another = (
        name
        for name in before.keys() & now.keys()
        if callable(before[name][0]) and any(a is not b for a, b in zip(looks(now[name]), before[name], strict=True))
    )
    is_new = (name for name in now.keys() - before.keys() if is_ours(now[name]))
    is_gone = (name for name in before.keys() - now.keys() if callable(before[name][0]))
    return sorted({*is_another, *is_new, *is_gone})


def is_ours(value: Any) -> bool:
    return type(value) is FunctionType and value.__globals__.get("__name__", "").startswith("otelctx")


def ours_left() -> dict[str, int]:
    """Which patched attributes still have replacements of ours among their wrappers, and how many."""
    import otelctx_instrumentation

    found = {}
    for patch in (patch for module in otelctx_instrumentation.modules() for patch in module.PATCHES):
        value: Any = sys.modules.get(patch.module)
        for name in patch.path.split("."):
            value = None if value is None else vars(value).get(name)
        count = 0
        while value is not None:
            count += is_ours(value)
            value = getattr(value, "__wrapped__", None)
        if count:
            found[f"{patch.module}:{patch.path}"] = count
    return found


def do(step: str) -> None:
    import otelctx

    name = step[1:]
    if name == "otelctx" and step[0] == "+":
        application.install("repair")
    elif name == "otelctx":
        otelctx.uninstall()
    elif step[0] == "+":
        on[name] = getattr(others, name)()
    else:
        on.pop(name).off()


def report_of(steps: list[str]) -> dict[str, Any]:
    from otelctx import metrics

    before = {name: looks(value) for name, value in attributes(PACKAGES).items()}
    after = []
    for step in steps:
        do(step)
        after.append(seen())
    counts = metrics.hop_counts()
    seen()
    counted = metrics.hop_counts() != counts
    return {
        "seen": after,
        "changed": changed(before),
        "ours": ours_left(),
        "counted": counted,
        "alerts": application.alerts,
        "errors": metrics.error_counts(),
    }


def in_a_fork(steps: list[str]) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        leave = os._exit  # Logfire replaces it
        try:
            with open(writer, "w") as report:
                json.dump(report_of(steps), report)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            leave(1)
        leave(0)
    os.close(writer)
    with open(reader) as report:
        told = report.read()
    assert os.waitpid(pid, 0)[1] == 0, steps
    found: dict[str, Any] = json.loads(told)
    return found


# What is patched is there before it is looked at; and what is slow to import is imported once.
for module in ("concurrent.futures.process", "logging.config", "multiprocessing.process", "subprocess"):
    import_module(module)
if any("sentry" in order for order in sys.argv):
    import_module("sentry_sdk.integrations.threading")
print(json.dumps({order: in_a_fork(order.split()) for order in sys.argv[1:]}))
