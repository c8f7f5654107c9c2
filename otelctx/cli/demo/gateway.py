"""The gateway's process: found, started, watched and stopped."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx

PLAIN = "plain"
LOG_FILE = "gateway.log"
# These are the gateway's (its telemetry.py), and those of its worker (worker.py).
TRACES_FILE = "traces.jsonl"
METRICS_FILE = "metrics.jsonl"
WORKER_PREFIX = "worker-"

_START_SECONDS = 20.0
# Its exporters, one for each signal, may wait for a collector that does not answer.
_STOP_SECONDS = 20.0
_EXPORT_SECONDS = "3"
_LOG_TAIL_LINES = 25


class GatewayError(Exception):
    """The gateway did not start, failed or did not answer. The message ends with the last lines of its log."""

    def __init__(self, message: str, directory: Path) -> None:
        log = directory / LOG_FILE
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        tail = "\n".join(f"  | {line}" for line in lines[-_LOG_TAIL_LINES:])
        super().__init__(f"{message}\n{tail or '  | (nothing)'}\n  ({log})")


def source_directory() -> Path:
    """The directory of the gateway's code and of its ``otelctx.toml``: the wheel's copy, else the source tree's.

    Raises `FileNotFoundError` where there is neither.
    """
    here = Path(__file__).resolve()
    for directory in (here.parents[1] / "_gateway", here.parents[3] / "examples" / "gateway"):
        if (directory / "gateway" / "__main__.py").is_file():
            return directory
    raise FileNotFoundError("the example gateway is neither in this package nor in a source tree beside it")


def environment(mode: str, directory: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a gateway that runs in `mode` (``plain``, or a mode of otelctx) and records in `directory`.

    Of `inherited` everything stays, the standard ``OTEL_*`` variables too, but what would decide for the run: otelctx's
    own variables and the gateway's.
    """
    source = source_directory()
    variables = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("OTELCTX_", "GATEWAY_", "PYTHONSAFEPATH"))
    }
    path = variables.get("PYTHONPATH")
    variables["PYTHONPATH"] = f"{source}{os.pathsep}{path}" if path else str(source)
    # The directory that the user happens to be in may hold a package of the same name.
    variables["PYTHONSAFEPATH"] = "1"
    variables["GATEWAY_TELEMETRY_DIR"] = str(directory)
    variables.setdefault("OTEL_SERVICE_NAME", "gateway")
    variables.setdefault("OTEL_EXPORTER_OTLP_TIMEOUT", _EXPORT_SECONDS)
    resource = variables.get("OTEL_RESOURCE_ATTRIBUTES")
    run = f"demo.run={mode}"
    variables["OTEL_RESOURCE_ATTRIBUTES"] = f"{resource},{run}" if resource else run
    # "false" rather than unset: under opentelemetry-instrument it is what keeps otelctx off.
    variables["OTELCTX_ENABLED"] = "false" if mode == PLAIN else "true"
    if mode != PLAIN:
        variables["OTELCTX_CONFIG"] = str(source / "otelctx.toml")
        variables["OTELCTX_MODE"] = mode
        # The gateway lets its operator say who decides whom to wake.
        variables["GATEWAY_WAKE_RESOLVER"] = "otelctx:resolve_owner"
    return variables


@asynccontextmanager
async def running(directory: Path, variables: Mapping[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway in a process of its own, on a free port, and a client for it.

    Its log goes to a file in `directory`. It is stopped, and its telemetry written, when the block is left, however it
    is left. Raises `GatewayError` when it does not start, and when something in the block fails because it died or
    did not answer in time, or it does not end well.
    """
    # We listen before it runs, and it inherits the socket: no race for a port, and no waiting for it to be open.
    with socket.create_server(("127.0.0.1", 0)) as listener, (directory / LOG_FILE).open("wb") as log:
        host, port = listener.getsockname()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "--fd", str(listener.fileno()), "--until-eof"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
            pass_fds=(listener.fileno(),),
            # Ctrl-C is for us; we stop the gateway in good order.
            start_new_session=True,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=_START_SECONDS, trust_env=False) as http:
            await _wait_until_ready(http, process, directory)
            try:
                yield http
            except (httpx.HTTPError, TimeoutError) as failure:
                what = str(failure) or type(failure).__name__
                raise GatewayError(f"the gateway failed: {what}", directory) from failure
    finally:
        status = await _stop(process)
    if status != 0:
        raise GatewayError(f"the gateway ended with status {status}", directory)


async def _wait_until_ready(http: httpx.AsyncClient, process: asyncio.subprocess.Process, directory: Path) -> None:
    health = asyncio.create_task(http.get("/health"))
    death = asyncio.create_task(process.wait())
    try:
        await asyncio.wait((health, death), return_when=asyncio.FIRST_COMPLETED)
        if health.done() and not health.exception() and health.result().is_success:
            return
        with suppress(TimeoutError):  # a closed connection and the end that caused it come in either order
            await asyncio.wait_for(asyncio.shield(death), 1)
        how = f"ended with status {process.returncode}" if death.done() else "does not answer"
        raise GatewayError(f"the gateway did not start: it {how}", directory)
    finally:
        for task in (health, death):
            task.cancel()
        await asyncio.gather(health, death, return_exceptions=True)


async def _stop(process: asyncio.subprocess.Process) -> int:
    """Stop the gateway and return its status: the end of its input is the polite way, then come the signals."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        return await asyncio.wait_for(process.wait(), _STOP_SECONDS)
    except TimeoutError:
        pass
    finally:
        # Still there: out of patience, or interrupted once more while waiting.
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
    return await process.wait()
