"""The declared sources, found or not, and what state each is in (values are not shown); and what else is declared."""

import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from otelctx import ambient, flow
from otelctx.cli.doctor.report import FoundSource
from otelctx.config import Config
from otelctx.keys import MISSING, ContextVarSource, EnvSource, GetterSource, Reading, Source, UnresolvedError, resolve

_FUNCTION: Final = re.compile(r"[\w.]+:[\w.]+")
"""What names a function in ``threads.service``, and is no glob."""


def found() -> Iterator[FoundSource]:
    """Each source of each key, strongest first."""
    flow.discover()
    for key in flow.registry.keys:
        for source in (*key.settable, *key.ambient):
            state, detail = _state(source)
            yield FoundSource(key.name, source.label, state, detail)


def problem(source: FoundSource) -> str | None:
    """What is wrong with it, if anything is."""
    if source.state == "not there":
        return f"keys.{source.key}: {source.source} is not there: {source.detail}"
    return None


def missing(settings: Config) -> Iterator[str]:
    """What is wrong with the functions and queues that are declared.

    Those of modules that are loaded are told of when they are patched; the claim's predicate would be when it is asked,
    and a service thread's function, which is compared with what threads run, never.
    """
    declared = {
        "cron.runners": settings.cron.runners,
        "dispatch.spawners": settings.dispatch.spawners,
        "queues.adopt": settings.queues.adopt,
        "claim.predicate": (settings.claim.predicate,) if settings.claim.predicate else (),
        "threads.service": tuple(name for name in settings.threads.service if _FUNCTION.fullmatch(name)),
    }
    for setting, paths in declared.items():
        for path in paths:
            module = path.partition(":")[0]
            if module not in sys.modules:
                if not _can_be_imported(module):
                    yield f"{setting}: {path} is not there: there is no module {module} in this environment"
            elif setting in ("claim.predicate", "threads.service"):
                try:
                    resolve(path)
                except UnresolvedError as exc:
                    yield f"{setting}: {path} is not there: {exc}"


def _state(source: Source) -> tuple[str, str]:
    if isinstance(source, EnvSource):
        return _word(source.read()), ""
    module = source.path.partition(":")[0]
    if module not in sys.modules:
        if _can_be_imported(module):
            return "not imported", f"nothing has imported {module} here (--module names what does)"
        return "not there", f"there is no module {module} in this environment"
    if isinstance(source, GetterSource):
        try:
            source.function()
        except UnresolvedError as exc:
            return "not there", str(exc)
        return _word(ambient.read(source)), ""
    assert isinstance(source, ContextVarSource)
    try:
        source.resolve()
    except (UnresolvedError, TypeError, KeyError) as exc:
        return "not there", str(exc)
    assert source.var is not None
    return _word(source.reading(source.var.get(MISSING))), ""


def _word(reading: Reading) -> str:
    return "absent" if reading is None else "cleared" if reading is False else "value"


def _can_be_imported(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
