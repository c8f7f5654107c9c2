"""In place of a pager: prints what Alertmanager sends it."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Pager(BaseHTTPRequestHandler):
    """Takes Alertmanager's webhooks."""

    def do_POST(self) -> None:
        """Print each alert of the notification, a line each."""
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for alert in message["alerts"]:
            labels = alert["labels"]
            severity = labels.get("severity", "?")
            print(f"{self.path} {alert['status']} {severity} {labels['alertname']}: {alert['annotations']['summary']}")
        self._answer()

    def do_GET(self) -> None:
        """Answer a health check."""
        self._answer()

    def _answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing of the requests themselves."""


if __name__ == "__main__":
    ThreadingHTTPServer(("", 8080), Pager).serve_forever()
