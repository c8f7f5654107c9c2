"""The declared sources: found or not, and what state each is in. Values are not shown."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec

from otelctx import ambient, flow
from otelctx.cli.doctor.report import FoundSource
from otelctx.keys import MISSING, ContextVarSource, EnvSource, GetterSource, Reading, Source, UnresolvedError


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
