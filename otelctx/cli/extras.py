"""What a command needs beyond the command line's own libraries."""

from importlib.util import find_spec

import click


def require(extra: str, modules: tuple[str, ...]) -> None:
    """Check that `modules` (import names) are installed.

    Raises `click.ClickException`, one line that names what is missing and the `extra` that brings it.
    """
    missing = [module for module in modules if not installed(module)]
    if missing:
        raise click.ClickException(f"needs {', '.join(missing)}: pip install 'otelctx[{extra}]'")


def installed(module: str) -> bool:
    """Whether `module` can be imported; the packages above it are imported to find out, itself it is not."""
    try:
        return find_spec(module) is not None
    except (
        ModuleNotFoundError,
        ValueError,
    ):  # a package above it is missing; or an entry of sys.modules without a spec
        return False
