"""gunicorn with uvicorn's workers, otelctx and OpenTelemetry: ``gunicorn -c gunicorn.conf.py yourapp.main:app``.

otelctx itself is turned on by the environment, before gunicorn starts:

    OTELCTX_ENABLED=true OTELCTX_CONFIG=/etc/otelctx/otelctx.toml gunicorn -c gunicorn.conf.py yourapp.main:app

What this file adds is OpenTelemetry's SDK, in each worker: exporters have threads, and threads do not survive the fork.
"""

import os
from typing import Any

bind = "127.0.0.1:8000"
workers = int(os.environ.get("WEB_CONCURRENCY", "2"))
worker_class = "uvicorn_worker.UvicornWorker"  # pip install uvicorn-worker
# The application is imported in the workers, after `post_fork`: what it starts then has the SDK, and its threads live.
preload_app = False


def post_fork(server: Any, worker: Any) -> None:
    """Set the SDK up in a worker, as ``opentelemetry-instrument`` does it for a process of its own."""
    # Workers report the same metrics: without an id of its own, each would overwrite the others'.
    resource = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    instance = f"service.instance.id={os.uname().nodename}-{worker.pid}"
    os.environ["OTEL_RESOURCE_ATTRIBUTES"] = f"{resource},{instance}" if resource else instance

    from opentelemetry.instrumentation.auto_instrumentation import initialize

    initialize()
