"""The group of commands: each is a module of this package, imported when it is asked for."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import click

# A command's name, and the module whose `command` it is.
_MODULES = {
    "run": "otelctx.cli.run",
    "doctor": "otelctx.cli.doctor",
    "drift": "otelctx.cli.drift",
    "demo": "otelctx.cli.demo",
}


class _Commands(click.Group):
    """A group that imports a command only when it runs or is listed: what one command needs, the others do without."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _MODULES.get(cmd_name)
        if module is None:
            return None
        command = import_module(module).command
        assert isinstance(command, click.Command)
        return command


def _show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    try:
        click.echo(f"otelctx {version('otelctx')}")
    except PackageNotFoundError:
        click.echo("otelctx, not installed: run from its source tree")
    ctx.exit()


@click.command(cls=_Commands)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Say which.")
def cli() -> None:
    """Identity that follows the work, and an alert where it did not."""
