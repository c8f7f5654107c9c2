"""A service as people run one: Flask or FastAPI and gRPC, under OpenTelemetry's own instrumentation, with otelctx.

Usage: service.py flask|fastapi. Prints its ports as JSON, and serves until it is ended. Every answer says what the code
that made it sees; ``/call`` first calls another service, with the client that is named, and passes its answer on.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import otelctx

alerts: list[otelctx.Mismatch] = []


def seen() -> dict[str, Any]:
    """What this code sees here and now."""
    from opentelemetry import baggage, trace

    return {
        "session": otelctx.get("session"),
        "claim": otelctx.claim_state(),
        "baggage": {str(name): str(value) for name, value in baggage.get_all().items()},
        "trace": format(trace.get_current_span().get_span_context().trace_id, "032x"),
        "labelled": dict(getattr(trace.get_current_span(), "attributes", None) or {}).get("session.id"),
    }


def told() -> list[list[Any]]:
    """The alerts since this was last asked for."""
    found = [[alert.key, alert.reason, alert.observed, alert.detail] for alert in alerts]
    alerts.clear()
    return found


def fetch_sync(client: str, url: str) -> Any:
    if client == "grpc":
        grpc = import_module("grpc")
        with grpc.insecure_channel(url) as channel:
            return json.loads(channel.unary_unary("/otelctx.Who/Who")(b"", timeout=20))
    response = import_module(client).get(url, timeout=20)
    return response.json()


async def fetch_async(client: str, url: str) -> Any:
    if client == "aiohttp":
        async with import_module("aiohttp").ClientSession() as session, session.get(url) as response:
            return await response.json(content_type=None)
    async with import_module("httpx").AsyncClient() as http:
        return (await http.get(url, timeout=20)).json()


def is_async(client: str) -> bool:
    return client in ("aiohttp", "httpx-async")


def flask() -> Any:
    library = import_module("flask")
    app = library.Flask("service")

    def who() -> Any:
        return {**seen(), "alerts": told()}

    def moved() -> Any:
        return library.redirect("/who", 307)

    def stream() -> Any:
        return library.Response(library.stream_with_context(f"{seen()['session']}\n" for _ in range(3)))

    def call() -> Any:
        client, url = library.request.args["client"], library.request.args["url"]
        with ExitStack() as bound:
            if session := library.request.args.get("session"):
                bound.enter_context(otelctx.bind(session=session))
            answer = asyncio.run(fetch_async(client, url)) if is_async(client) else fetch_sync(client, url)
            return {**seen(), "answer": answer, "alerts": told()}

    for view in (who, moved, stream, call):
        app.add_url_rule(f"/{view.__name__}", view.__name__, view)
    server = import_module("werkzeug.serving").make_server("127.0.0.1", 0, app, threaded=True)
    return server.server_port, server.serve_forever


def fastapi() -> Any:
    library, responses = import_module("fastapi"), import_module("fastapi.responses")
    app = library.FastAPI()

    async def who() -> Any:
        return {**seen(), "alerts": told()}

    def sync() -> Any:
        return seen()

    async def moved() -> Any:
        return responses.RedirectResponse("/who", 307)

    async def stream() -> Any:
        async def lines() -> Any:
            for _ in range(3):
                await asyncio.sleep(0)
                yield f"{seen()['session']}\n"

        return responses.StreamingResponse(lines())

    async def call(client: str, url: str, session: str = "") -> Any:
        with ExitStack() as bound:
            if session:
                bound.enter_context(otelctx.bind(session=session))
            fetched = fetch_async(client, url) if is_async(client) else asyncio.to_thread(fetch_sync, client, url)
            answer = await fetched
            return {**seen(), "answer": answer, "alerts": told()}

    for view in (who, sync, moved, stream, call):
        app.add_api_route(f"/{view.__name__}", view)
    listening = socket.create_server(("127.0.0.1", 0))
    uvicorn = import_module("uvicorn")
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    return listening.getsockname()[1], lambda: server.run(sockets=[listening])


def grpc_server() -> tuple[Any, int]:
    grpc = import_module("grpc")
    method = grpc.unary_unary_rpc_method_handler(
        lambda request, context: json.dumps({**seen(), "alerts": told()}).encode()
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("otelctx.Who", {"Who": method})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def main() -> None:
    otelctx.on_mismatch(alerts.append)
    port, serve = {"flask": flask, "fastapi": fastapi}[sys.argv[1]]()
    server, grpc_port = grpc_server()
    print(json.dumps({"http": port, "grpc": grpc_port}), flush=True)
    serve()
    del server


if __name__ == "__main__":
    main()
