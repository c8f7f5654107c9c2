"""The kanban dispatcher of hermes, and the worker that it starts; run as ``hermes_dispatcher.py REPORT``.

The process is a gateway that dispatches: it has served session ``SERVED``, whose key is still mirrored in the
environment, and was itself started from a worker's shell (``OTELCTX_CLAIM=none``, which is all that is said here of
otelctx). A task is created on a real board, one tick of the real dispatcher claims it and spawns ``hermes``, and
``hermes`` is what ``HERMES_BIN`` names: `hermes_worker.py`. Its report, and what the board says when it has ended, goes
to REPORT.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

SERVED = "agent:main:webui:served"
ASK_THE_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


def executable(folder: Path, report: Path) -> Path:
    """A ``hermes`` that runs the worker's program, whatever its arguments are."""
    file = folder / "hermes"
    worker = Path(__file__).with_name("hermes_worker.py")
    file.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{worker}' '{report}' \"$@\"\n", encoding="utf-8")
    file.chmod(0o755)
    return file


def child() -> dict[str, str]:
    """What an ordinary child of this process has in its environment."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", ASK_THE_ENVIRONMENT], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main(report: Path) -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    logging.getLogger("otelctx").addHandler(handler)
    worked = report.with_name("worker.json")
    os.environ["HERMES_BIN"] = str(executable(report.parent, worked))

    from gateway import session_context
    from hermes_cli import kanban_db

    session_context.clear_session_vars(session_context.set_session_vars(platform="webui", session_key=SERVED))
    os.environ["HERMES_SESSION_KEY"] = SERVED
    with kanban_db.connect_closing() as board:
        task = kanban_db.create_task(board, title="tidy up", assignee="default")
        tick = kanban_db.dispatch_once(board)
        claimed = kanban_db.get_task(board, task)
    _, code = os.waitpid(claimed.worker_pid, 0)
    with kanban_db.connect_closing() as board:
        ended = kanban_db.get_task(board, task)
    log = Path(kanban_db.worker_logs_dir(), f"{task}.log").read_text(encoding="utf-8")
    if code:
        sys.exit(f"the worker failed:\n{log}")
    found = {
        "task": task,
        "claim": {"run": str(claimed.current_run_id), "lock": claimed.claim_lock},
        "spawned": [spawned[0] for spawned in tick.spawned],
        "status": ended.status,
        "marker": os.environ.get("OTELCTX_CLAIM"),
        "child": {name: value for name, value in child().items() if name.startswith(("HERMES_", "OTELCTX_CLAIM"))},
        "log": records,
        "worker": json.loads(worked.read_text(encoding="utf-8")),
    }
    report.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
