"""Turning otelctx on and off in this process.

Every way in (the environment, OpenTelemetry's entry point, code) ends here.
"""

from __future__ import annotations

import _thread
import os
import sys
from typing import TYPE_CHECKING, Any

from otelctx import (
    ambient,
    border,
    children,
    compare,
    faults,
    flow,
    forks,
    metrics,
    mode,
    ownership,
    policy,
    runtime,
    scoped_env,
    snapshot,
    spans,
)
from otelctx import config as configuration
from otelctx.config import Config, ConfigError
from otelctx.interruption import pass_on
from otelctx.keys import ContextVarSource, Registry

if TYPE_CHECKING:
    from collections.abc import Mapping

_lock = _thread.RLock()
forks.renew_in_child(globals(), "_lock", _thread.RLock)
_settings: Config | None = None
_generation = 0
_reported: set[str] = set()


def install(config: str | os.PathLike[str] | Mapping[str, Any] | None = None, /, **overrides: Any) -> None:
    """Turn otelctx on in this process.

    Arguments: `config` is the path of a TOML file, or a mapping of the same shape; without it, the file that
    ``OTELCTX_CONFIG`` names. ``overrides`` are settings by their names (``mode="observe"``, ``alerts={"per_minute":
    5}``). The later counts: presets, `config`, the environment (``OTELCTX_MODE``), `overrides`.

    Idempotent: installing again without arguments changes nothing, and with arguments applies the new settings. Raises
    `ConfigError` for settings that are wrong, the environment's too, and then leaves everything as it was. Thread-safe.
    """
    if is_installed() and config is None and not overrides:
        return
    settings, problems = configuration.load(config, **overrides)
    if problems:
        raise ConfigError(problems)
    _apply(settings)


def install_from_environment() -> None:
    """Turn otelctx on as the environment says, unless it is on.

    Never raises: settings that are wrong are logged, and the rest works.
    """
    try:
        if is_installed():
            return
        settings, problems = configuration.load(None)
        for problem in problems:
            faults.wrong_setting("configuration", problem)
        _apply(settings, unless_installed=True)
    except Exception as exc:
        faults.internal_error("install", exc)


def _apply(settings: Config, *, unless_installed: bool = False) -> None:
    global _settings, _generation
    # Imports happen before the lock is taken: another thread may hold an import lock and wait for this one.
    import otelctx_instrumentation
    from otelctx import activation, alerts

    otelctx_instrumentation.load()
    present = _present(settings)
    with _lock:
        if unless_installed and _settings is not None:
            return
        _generation += 1
        _settings = settings
        _reported.clear()
        alerts.configure(settings)
        spans.configure(settings.spans)
        mode.configure(settings.mode)
        compare.forget()
        ambient.forget()
        ownership.configure(settings.claim)
        border.configure(settings.baggage)
        children.configure(settings)
        runtime.adopt()
        flow.use(Registry.from_config(settings, scoped_env.carried(settings), present))
        scoped_env.configure(settings)
        snapshot.refresh(_details(settings, flow.registry))
        otelctx_instrumentation.apply(settings)
        activation.disarm()  # after it, so that there is no moment without either
        metrics.register()
    flow.discover(_report_source)
    _watch_modules(_generation)


def _present(settings: Config) -> list[ContextVarSource]:
    """The variables that are there already: what departs at the very moment of an installation has them in it."""
    present = []
    for key in settings.keys.values():
        for given in key.sources:
            source = ContextVarSource(given.path, given.empty, given.unset)
            try:
                if given.kind == "contextvar":
                    source.resolve()  # may run code of the module's: no lock is held
                    present.append(source)
            except Exception as exc:  # `flow.discover` looks again, and tells
                pass_on(exc)
    return present


def _details(settings: Config, declared: Registry) -> Any:
    if settings.mode != "repair" or policy.changes_ordinary_hops(declared.keys):
        return lambda otel: True
    return spans.wanted


def _watch_modules(generation: int) -> None:
    """Look for a source again when its module has been imported."""
    from otelctx_instrumentation.patching import when_imported

    def look(module: str, complete: bool) -> None:
        if _settings is not None and generation == _generation:
            flow.discover(_report_source, complete=module if complete else "")

    for source in flow.registry.unresolved():
        for path in (source.path, source.unset_path):
            if path is not None:
                name = path.partition(":")[0]
                # Where the module is there already it may still be running; the hook is then called at once.
                complete = name not in sys.modules
                when_imported(name, lambda _, name=name, complete=complete: look(name, complete))  # type: ignore[misc]


def _report_source(source: ContextVarSource, exc: Exception) -> None:
    if source.label in _reported:
        return
    _reported.add(source.label)
    faults.wrong_setting("source", f"{source.label} is not there: {exc}")


def uninstall() -> None:
    """Turn otelctx off: every patched attribute is what it was, where it is still ours.

    Where someone has wrapped ours since, ours does nothing any more. What is bound stays readable. Idempotent;
    thread-safe.
    """
    global _settings, _generation
    with _lock:
        if _settings is None:
            return
        import otelctx_instrumentation
        from otelctx import alerts

        otelctx_instrumentation.undo()
        _settings = None
        _generation += 1
        alerts.configure(None)
        spans.configure("auto")
        mode.configure("repair")
        ownership.configure(Config().claim)
        border.configure(Config().baggage)
        children.configure(Config())
        scoped_env.configure(None)
        snapshot.refresh(lambda otel: False)


def is_installed() -> bool:
    """Whether otelctx is on in this process."""
    return _settings is not None


def settings() -> Config:
    """The settings that are in force; the defaults where otelctx is not installed."""
    return _settings if _settings is not None else Config()
