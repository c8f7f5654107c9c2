"""A bot whose commands run in Celery, and whose nightly job is beat's: who is asked to approve what?

The broker is a folder, so that nothing else has to be there; `run.py` starts a worker with beat in it.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from celery import Celery

CURRENT: ContextVar[str] = ContextVar("CURRENT")
"""Whose turn it is: this is all that the bot knows of sessions, and all that otelctx is told (otelctx.toml)."""

FOLDER = Path(os.environ["BOT_FOLDER"])

app = Celery("bot", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(FOLDER / "queue"),
        "data_folder_out": str(FOLDER / "queue"),
        "control_folder": str(FOLDER / "control"),
        "polling_interval": 0.1,
    },
    beat_schedule={"nightly": {"task": "bot.clean_up", "schedule": 1.0}},  # a night lasts a second here
    beat_schedule_filename=str(FOLDER / "schedule"),
    beat_max_loop_interval=0.2,
)


def ask(command: str) -> None:
    """Ask whoever it is for to approve `command`: here, a line in a file."""
    with (FOLDER / "asked").open("a") as asked:
        asked.write(f"{command!r}: {CURRENT.get('nobody')} is asked\n")


@app.task(bind=True, max_retries=1)
def run(self: Any, command: str) -> None:
    """Run a command of a session's; the first try meets a lock."""
    if self.request.retries == 0:
        raise self.retry(countdown=0.5)
    ask(command)


@app.task
def switch(session: str) -> None:
    """Answer in `session`; as in many a program, nobody resets the variable when the task is over."""
    CURRENT.set(session)


@app.task
def clean_up() -> None:
    """Run every night, for nobody."""
    ask("rm -rf old")
