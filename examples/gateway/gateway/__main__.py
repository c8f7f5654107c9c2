"""Serve the gateway: ``python -m gateway``."""

import argparse
import asyncio
import contextlib
import logging
import socket
import sys

import uvicorn

# How long open event streams may keep a gateway that was told to stop.
_GRACE_SECONDS = 2


def main() -> None:
    """Parse the command line and serve until a signal, or the end of standard input where that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m gateway", description="A small chat gateway.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--fd", type=int, help="serve on this inherited listening socket instead")
    parser.add_argument("--until-eof", action="store_true", help="stop when standard input ends")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # log_config=None: uvicorn's records go the way of all the others.
    config = uvicorn.Config(
        "gateway.app:app",
        host=arguments.host,
        port=arguments.port,
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    # uvicorn has shut down in good order by then, and raises the signal once more.
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(uvicorn.Server(config), arguments.fd, arguments.until_eof))


async def _serve(server: uvicorn.Server, fd: int | None, until_eof: bool) -> None:
    sockets = None if fd is None else [socket.socket(fileno=fd)]
    watcher = asyncio.create_task(_stop_at_eof(server)) if until_eof else None
    try:
        await server.serve(sockets=sockets)
    finally:
        if watcher is not None:
            watcher.cancel()


async def _stop_at_eof(server: uvicorn.Server) -> None:
    """A parent that dies, however it dies, closes the pipe: its gateway goes with it."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    server.should_exit = True


if __name__ == "__main__":
    main()
