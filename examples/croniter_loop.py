"""A hand-written cron loop: each run of its job is nobody's session, whoever has started the loop.

    pip install croniter
    OTELCTX_ENABLED=true python examples/croniter_loop.py

A turn of a session's starts the loop, as a bot's first message does. Without ``@cron_job`` every later run would go on
as that session; with it, each run has a key of its own, and a root span.
"""

from __future__ import annotations

import sys
import threading
import time
from datetime import UTC, datetime

from croniter import croniter  # type: ignore[import-untyped,import-not-found,unused-ignore]

import otelctx


@otelctx.cron_job("report", runner="croniter")
def report() -> None:
    """The job: it says whose run it is."""
    print(f"report: session {otelctx.get('session')}", flush=True)


def loop(expression: str, times: int) -> None:
    """Run the job when the cron `expression` says (its last field is seconds), so many times."""
    due = croniter(expression, datetime.now(UTC))
    for _ in range(times):
        time.sleep(max(0.0, due.get_next(float) - time.time()))
        report()


def turn(times: int) -> None:
    """A turn of a session, which starts the loop."""
    with otelctx.bind(session="telegram:42"):
        thread = threading.Thread(target=loop, args=("* * * * * *", times))
        thread.start()
        print(f"turn: session {otelctx.get('session')}", flush=True)
    thread.join()


if __name__ == "__main__":
    turn(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
