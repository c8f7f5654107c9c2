"""``otelctx demo``: the same traffic through a real gateway, plain, in observe and in repair."""

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path

import click
from rich.console import Console

from otelctx.cli.extras import require

MODES = ("plain", "observe", "repair")

# Without an answer for so long, a run has failed: a round takes some hundredths of a second.
_PATIENCE_SECONDS = 20.0


@click.command("demo", short_help="See a gateway misroute approvals, and otelctx repair it.")
@click.option(
    "--turns", default=10, show_default=True, type=click.IntRange(1, 1000), help="Turns of each of the two channels."
)
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), help="Only this run; may be repeated.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the recorded telemetry and the logs.  [default: a new temporary one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table and the tree.")
@click.option("--progress/--no-progress", default=True, help="Show progress, on standard error.")
def command(turns: int, modes: tuple[str, ...], keep: Path | None, as_json: bool, progress: bool) -> None:
    """Send traffic through a gateway: without otelctx, observed, repaired.

    A chat gateway with two channels runs its agent's tools in a thread pool, and loses the session key on the way: a
    card that asks for approval of a command goes to the wrong channel. When a background process has ended, the wrong
    channel is woken. And a cron job that runs in a worker's process takes the worker's task for its own, and closes it.
    The same traffic runs three times, each in a new process: plain, with otelctx in observe (the faults stay, and have
    alerts in their traces), with otelctx in repair (everything goes where it belongs).

    What was recorded stays in files, as OTLP JSON lines; the standard OTEL_* variables send it to a backend as well.

    Exits with 0 only if each run did what it should, above all: repair misrouted nothing.
    """
    require("demo", ("httpx", "starlette", "uvicorn", "opentelemetry.sdk", "opentelemetry.exporter.otlp.json.file"))
    if os.name != "posix":
        raise click.ClickException("the demo hands its gateway a socket as POSIX systems do, and does not run here")
    from otelctx.cli.demo.gateway import GatewayError
    from otelctx.cli.demo.report import as_mapping, show
    from otelctx.cli.demo.runs import Rounds, Run, run

    directory = keep or Path(tempfile.mkdtemp(prefix="otelctx-demo-"))

    async def every_run() -> list[Run]:
        task = asyncio.current_task()
        assert task is not None
        # As Ctrl-C does already: the gateway is stopped first.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        chosen = [mode for mode in MODES if not modes or mode in modes]
        with Rounds(Console(stderr=True), chosen, turns, shown=progress) as rounds:
            return [await run(mode, turns, directory / mode, rounds.of(mode), _PATIENCE_SECONDS) for mode in chosen]

    try:
        runs = asyncio.run(every_run())
    except GatewayError as failure:
        raise click.ClickException(str(failure)) from failure
    except OSError as failure:
        raise click.ClickException(f"cannot record in {directory}: {failure}") from failure
    except (KeyboardInterrupt, asyncio.CancelledError) as interruption:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
        raise click.Abort from interruption

    if as_json:
        Console(width=10**6).print_json(data=as_mapping(runs, directory))
    else:
        show(Console(), runs, directory)
    if any(finished.problem for finished in runs):
        raise SystemExit(1)
