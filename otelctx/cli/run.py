"""``otelctx run``: a command with otelctx on, by the environment alone."""

import os
import sys
from pathlib import Path

import click


class _NotFound(click.ClickException):
    """There is no such command: one line, and the status that a shell gives in that case."""

    exit_code = 127


class _CannotBeRun(click.ClickException):
    """The command is there and cannot be run: as above."""

    exit_code = 126


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--mode", type=click.Choice(["observe", "repair", "enforce"]), help="In place of OTELCTX_MODE.")
@click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    help="In place of OTELCTX_CONFIG.",
)
@click.argument("command_line", metavar="COMMAND [ARGUMENTS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(mode: str | None, file: Path | None, command_line: tuple[str, ...]) -> None:
    """Run COMMAND with otelctx on: otelctx run --mode observe -- python app.py

    Sets OTELCTX_ENABLED, and the variables of the options, and becomes the command: its process, its signals and its
    exit status. Every Python process that it starts, and in whose environment otelctx is installed, has otelctx on.
    Exits with 127 where there is no such command, with 126 where it cannot be run.
    """
    environ = {**os.environ, "OTELCTX_ENABLED": "true"}
    if mode is not None:
        environ["OTELCTX_MODE"] = mode
    if file is not None:
        environ["OTELCTX_CONFIG"] = str(file.absolute())  # the command may change its directory
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command_line[0], command_line, environ)
    except FileNotFoundError:
        raise _NotFound(f"there is no command {command_line[0]!r}") from None
    except (OSError, ValueError) as exc:  # a ValueError: an argument has a NUL in it, or is empty
        why = getattr(exc, "strerror", None) or exc
        raise _CannotBeRun(f"{command_line[0]!r} cannot be run: {why}") from None
