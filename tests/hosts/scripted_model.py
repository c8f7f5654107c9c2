"""A model's side for agents of a host: an OpenAI-compatible endpoint that answers as a test's script says.

The endpoint is what lies outside of the host; everything else in these tests is the host's own code.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Request = dict[str, Any]
Message = dict[str, Any]
Script = Callable[[Request], Message]


def saying(text: str) -> Message:
    """The model's last word."""
    return {"role": "assistant", "content": text}


def calling(tool: str, **arguments: object) -> Message:
    """The model wants to call one tool."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    call = {"index": 0, "id": f"call-{tool}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def answered(request: Request) -> list[str]:
    """What the tools have answered in this conversation so far."""
    return [str(message["content"]) for message in request["messages"] if message["role"] == "tool"]


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """Serve on a free port of this machine, and give the base URL. `script` is called in a thread per request."""
    server = _Server(script)
    thread = threading.Thread(target=server.serve_forever, name="model")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Endpoint)
        self.script = script


class _Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(404, "application/json", b"{}")  # hermes asks for model lists of several vendors

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if not self.path.endswith("/chat/completions"):
            self._answer(404, "application/json", b"{}")
            return
        assert isinstance(self.server, _Server)
        message = self.server.script(request)
        choice: dict[str, object] = {"index": 0, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        reply: dict[str, object] = {"id": "reply-1", "created": 1, "model": request["model"], "choices": [choice]}
        if request.get("stream"):
            choice["delta"] = message
            reply["object"] = "chat.completion.chunk"
            self._answer(200, "text/event-stream", f"data: {json.dumps(reply)}\n\ndata: [DONE]\n\n".encode())
        else:
            choice["message"] = message
            reply["object"] = "chat.completion"
            reply["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            self._answer(200, "application/json", json.dumps(reply).encode())

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass
