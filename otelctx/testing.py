"""For the tests of applications that use otelctx.

def test_the_workers_environment_is_declared():
    assert_env_covered("hermes_cli.kanban_db:_default_spawn", prefix="HERMES_KANBAN_", config="otelctx.toml")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otelctx.config import Config, ConfigError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["assert_env_covered"]


def assert_env_covered(
    target: str, *, prefix: str = "", config: Config | Mapping[str, object] | str | os.PathLike[str] | None = None
) -> None:
    """Assert that all that a dispatcher's spawn function puts into a child's environment is declared.

    Args:
        target: ``module:function``, or ``module:Class.method``. It is read, not imported and not run.
        prefix: only variables that start so are considered.
        config: what is declared: a TOML file's path, what such a file would hold, or a `Config`. None: the settings in
            force where otelctx is installed, else those that the environment names.

    Raises `AssertionError` with the variables that are not declared, and where they are set, or with why the function
    cannot be found or read; `ConfigError` for a configuration that is wrong. Thread-safe.
    """
    from otelctx import drift

    try:
        found = drift.check(target, prefix, _settings(config))
    except drift.SourceError as exc:
        raise AssertionError(str(exc)) from None
    if found:
        raise AssertionError(str(found))


def _settings(config: Config | Mapping[str, object] | str | os.PathLike[str] | None) -> Config:
    if isinstance(config, Config):
        return config
    from otelctx import installation
    from otelctx.config import load

    if config is None and installation.is_installed():
        return installation.settings()
    settings, problems = load(config)
    if problems:
        raise ConfigError(problems)
    return settings
