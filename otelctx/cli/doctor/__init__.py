"""``otelctx doctor``: what is on, what is patched, what is found, and what is wrong."""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from otelctx.cli.extras import require

if TYPE_CHECKING:
    from otelctx.cli.doctor.report import Report


@click.command("doctor")
@click.option("--module", metavar="APP", help="Import this module first, as the application does (APP or APP:OBJECT).")
@click.option("--test-alert", is_flag=True, help="Send an alert through every channel, marked as a test.")
@click.option("--json", "as_json", is_flag=True, help="Write the report as JSON.")
def command(module: str | None, test_alert: bool, as_json: bool) -> None:
    """Examine this environment: settings, patches, sources, versions, other tools, exporters.

    Turns otelctx on in its own process, as the environment says it, and sends a key through each kind of hop. No value
    of a key is shown. Exits with 1, and a list, where something is wrong.
    """
    require("cli", ("packaging",))
    from otelctx.cli.doctor.examination import examine

    report = examine(module, with_alert=test_alert)
    if as_json:
        click.echo(json.dumps(asdict(report), indent=2, default=str))
    else:
        _show(report)
    if report.problems:
        sys.exit(1)


def _show(report: "Report") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    # Where nobody looks on (a file, a pipe), a line is as long as it is.
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 240)

    def heading(text: str) -> None:
        console.print(f"\n[bold]{escape(text)}[/bold]")

    def table(*columns: str, rows: list[tuple[str, ...]]) -> None:
        if not rows:
            console.print("[dim]none[/dim]")
            return
        grid = Table(box=None, pad_edge=False, header_style="dim")
        for column in columns:
            grid.add_column(column, overflow="fold")
        for row in rows:
            grid.add_row(*map(escape, row))
        console.print(grid)

    console.print(f"otelctx {report.otelctx}, Python {report.python} ({escape(report.executable)})")
    table("setting", "value", rows=[(name, _plain(value)) for name, value in report.settings.items()])

    heading("Sources")
    table("key", "source", "state", "", rows=[(s.key, s.source, s.state, s.detail) for s in report.sources])

    heading("Hops, tried")
    table("hop", "the work saw", rows=[(hop.name, hop.seen) for hop in report.hops])

    heading("Patches, first called first")
    table("attribute", "by", rows=[(f"{one.module}.{one.attribute}", " → ".join(one.layers)) for one in report.patches])
    if report.waiting:
        console.print(escape(f"not imported here, patched when they are: {', '.join(report.waiting)}"))

    heading("Other tools")
    table(
        "tool",
        "version",
        "",
        rows=[(tool.name, tool.version or "?", "loaded" if tool.loaded else "installed") for tool in report.tools],
    )
    heading("Telemetry")
    table("signal", "endpoint", "", rows=[(one.signal, one.endpoint, one.detail) for one in report.exporters])
    if report.test_alert is not None:
        table("test alert", "went to", rows=list(report.test_alert.items()))

    for note in report.notes:
        console.print(f"[dim]note:[/dim] {escape(note)}")
    console.print()
    if not report.problems:
        console.print("[green]nothing is wrong[/green]")
        return
    console.print(f"[red]wrong: {len(report.problems)}[/red]")
    for problem in report.problems:
        console.print(f"  [red]•[/red] {escape(problem)}")


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    if isinstance(value, dict):
        return ", ".join(f"{name} = {one}" for name, one in value.items())
    return str(value)
