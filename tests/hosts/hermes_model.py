"""The model's side of hermes: an OpenAI-compatible endpoint whose model always wants to run one shell command.

The endpoint is what lies outside of the host; everything else in these tests is the host's own code.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMAND = "rm -rf build"


@contextmanager
def serving() -> Iterator[str]:
    """Serve on a free port of this machine, and give the base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    thread = threading.Thread(target=server.serve_forever, name="model")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(404, "application/json", b"{}")  # hermes asks for model lists of several vendors

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if not self.path.endswith("/chat/completions"):
            self._answer(404, "application/json", b"{}")
            return
        answered = request["messages"][-1]["role"] == "tool"
        message: dict[str, object] = {"role": "assistant", "content": "done" if answered else None}
        if not answered:
            function = {"name": "terminal", "arguments": json.dumps({"command": COMMAND})}
            message["tool_calls"] = [{"index": 0, "id": "call-1", "type": "function", "function": function}]
        choice: dict[str, object] = {"index": 0, "finish_reason": "stop" if answered else "tool_calls"}
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
