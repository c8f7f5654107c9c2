"""The command line, ``otelctx``.

Needs the extra ``otelctx[cli]``; a command that needs more says which. `main` is the console script.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line with the arguments of the process, and exit.

    Where its libraries are not installed, the process exits with status 1 and one line that names the extra.
    """
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ModuleNotFoundError as missing:
        if missing.name not in ("click", "rich"):
            raise
        sys.exit(f"otelctx: the command line needs {missing.name}: pip install 'otelctx[cli]'")
    from otelctx.cli.app import cli

    cli(prog_name="otelctx")
