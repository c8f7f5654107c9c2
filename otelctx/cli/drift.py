"""``otelctx drift``: whether all that a dispatcher gives its workers is declared."""

import sys
from pathlib import Path

import click

from otelctx.config import load
from otelctx.drift import SourceError, check


class _Unreadable(click.ClickException):
    """Nothing could be said: status 2, and one line."""

    exit_code = 2


@click.command("drift")
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--prefix", default="", metavar="P", help="Consider only variables that start so.")
@click.option("--config", "file", metavar="FILE", help="What declares them, in place of OTELCTX_CONFIG.")
def command(target: str, prefix: str, file: str | None) -> None:
    """Check that all that a spawn function puts into a child's environment is declared.

    The function is read, not run, and nothing is imported. Modules are looked for in the current directory first.
    Declared are the claim's variables, those that are behaviour only, the environment sources of keys and the names of
    the scoped environment. Exits with 1, and the names, where one is not declared or cannot be read; with 2 where the
    function (or the configuration) cannot be.
    """
    settings, problems = load(file)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise _Unreadable(problems[0] + more)
    try:
        found = check(target, prefix, settings, [str(Path.cwd()), *sys.path])
    except SourceError as exc:
        raise _Unreadable(str(exc)) from None
    click.echo(str(found))
    if found:
        sys.exit(1)
