"""The gateway's HTTP interface."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from . import telemetry
from .agent import Agent
from .approvals import Approvals
from .channels import Channels
from .dispatcher import Dispatcher
from .processes import Processes
from .tools import ToolCall, Tools


@dataclass(frozen=True, slots=True)
class _Gateway:
    channels: Channels
    approvals: Approvals
    agent: Agent
    processes: Processes
    dispatcher: Dispatcher


@asynccontextmanager
async def _lifespan(_app: Starlette) -> AsyncIterator[dict[str, _Gateway]]:
    shutdown_telemetry = telemetry.configure()
    channels = Channels()
    approvals = Approvals(channels)
    processes = Processes(channels)
    agent = Agent(channels, Tools(approvals, processes))
    dispatcher = Dispatcher(channels)
    try:
        yield {"gateway": _Gateway(channels, approvals, agent, processes, dispatcher)}
    finally:
        approvals.close()
        await agent.close()
        processes.close()
        await dispatcher.close()
        shutdown_telemetry()


async def _health(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _message(request: Request) -> Response:
    """A message from a channel starts a turn."""
    key, body = _channel(request), await request.json()
    return JSONResponse({"turn": _gateway(request).agent.start(key, str(body["text"]))}, status_code=202)


async def _events(request: Request) -> Response:
    """What a channel's client sees, as it happens."""
    stream = _gateway(request).channels.stream(_channel(request))
    return StreamingResponse(stream, media_type="text/event-stream")


async def _completion(request: Request) -> Response:
    """The model's answer to a turn: the tools that it wants to be run."""
    body = await request.json()
    calls = [ToolCall(str(call["tool"]), str(call["argument"])) for call in body["calls"]]
    return _found(_gateway(request).agent.complete(request.path_params["turn"], calls))


async def _answer(request: Request) -> Response:
    """Somebody in a channel pressed a button of an approval card."""
    body = await request.json()
    if body["decision"] not in ("approve", "deny"):
        raise HTTPException(422, "a decision is approve or deny")
    return _found(_gateway(request).approvals.answer(request.path_params["approval"], body["decision"]))


async def _process(request: Request) -> Response:
    """Somebody starts a background process that is no turn's, and says whom to wake."""
    body = await request.json()
    return JSONResponse({"process": _gateway(request).processes.start(body["name"], body["wake"])}, status_code=202)


async def _end(request: Request) -> Response:
    """A background process has done what it had to do."""
    return _found(_gateway(request).processes.end(request.path_params["process"]))


async def _task(request: Request) -> Response:
    """A channel has a task for a worker."""
    key, body = _channel(request), await request.json()
    return JSONResponse({"task": await _gateway(request).dispatcher.dispatch(key, str(body["text"]))}, status_code=202)


async def _job(request: Request) -> Response:
    """A cron job is due in a worker's process."""
    body = await request.json()
    return _found(_gateway(request).dispatcher.tell(request.path_params["task"], f"job {body['job']}"))


async def _done(request: Request) -> Response:
    """A worker has done its work."""
    return _found(_gateway(request).dispatcher.tell(request.path_params["task"], "done"))


def _gateway(request: Request) -> _Gateway:
    return cast(_Gateway, request.state.gateway)


def _channel(request: Request) -> str:
    key = str(request.path_params["key"])
    if key not in _gateway(request).channels:
        raise HTTPException(404, f"no channel {key}")
    return key


def _found(found: bool) -> Response:
    if not found:
        raise HTTPException(404, "nothing waits for this")
    return Response(status_code=204)


app = Starlette(
    lifespan=_lifespan,
    routes=[
        Route("/health", _health),
        Route("/sessions/{key}/messages", _message, methods=["POST"]),
        Route("/sessions/{key}/events", _events),
        Route("/turns/{turn}/completion", _completion, methods=["POST"]),
        Route("/approvals/{approval}", _answer, methods=["POST"]),
        Route("/processes", _process, methods=["POST"]),
        Route("/processes/{process}/end", _end, methods=["POST"]),
        Route("/sessions/{key}/tasks", _task, methods=["POST"]),
        Route("/tasks/{task}/jobs", _job, methods=["POST"]),
        Route("/tasks/{task}/completion", _done, methods=["POST"]),
    ],
)
