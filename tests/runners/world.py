"""Real workers in environments of their own: `World` starts them, has programs send them work, reads what was seen.

What happens in those processes is in `programs/`; they write down what they see (`programs/sightings.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE = 40.0

Line = dict[str, Any]


class World:
    """Processes that share a folder, a broker and a file of sightings. `close` ends what was started."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.sightings = folder / "sightings.jsonl"
        self.variables = {"SIGHTINGS": str(self.sightings), "PYTHONPATH": str(PROGRAMS), "HOME": str(folder)}
        self.variables |= variables
        self._started: list[subprocess.Popen[bytes]] = []

    def environ(self, variables: dict[str, str]) -> dict[str, str]:
        """What a process has in its environment: nothing of ours or of Python's but what is named."""
        inherited = ("OTELCTX_", "OTEL_", "PYTHON", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
        return {**kept, **self.variables, **variables}

    def start(self, *command: str | Path, **variables: str) -> subprocess.Popen[bytes]:
        """Start a worker (or scheduler), which lives until `close`."""
        log = (self.folder / f"worker-{len(self._started)}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=self.folder,
                env=self.environ(variables),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def run(self, *command: str | Path, **variables: str) -> str:
        """Run a program to its end, and give its output."""
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env=self.environ(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def lines(self, what: str, **said: Any) -> list[Line]:
        """The lines of a kind that say this, in the order in which they were written."""
        if not self.sightings.exists():
            return []
        found = [json.loads(line) for line in self.sightings.read_text().splitlines()]
        return [line for line in found if line["what"] == what and all(line.get(name) == said[name] for name in said)]

    def wait(self, number: int, what: str = "sighting", *, patience: float = PATIENCE, **said: Any) -> list[Line]:
        """The lines of a kind that say this, once there are `number` of them."""
        deadline = time.monotonic() + patience
        while len(found := self.lines(what, **said)) < number:
            gone = [process.args for process in self._started if process.poll() not in (None, 0)]
            if time.monotonic() > deadline or gone:
                everything = self.sightings.read_text() if self.sightings.exists() else "nothing"
                pytest.fail(f"{said}: {len(found)} of {number}\ngone: {gone}\n{everything[-6000:]}\n{self.logs()}")
            time.sleep(0.03)
        return found

    def logs(self) -> str:
        """The last that the workers said."""
        return "\n".join(log.read_text(errors="replace")[-5000:] for log in sorted(self.folder.glob("worker-*.log")))

    def close(self) -> None:
        """End whatever was started here, with all that it has started: there is nothing that a worker is to finish."""
        for process in self._started:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # its session is its own
            except ProcessLookupError:
                pass
        while self._started:
            self._started.pop().wait(15)


NewWorld = Callable[..., World]


@contextmanager
def worlds(parent: Path) -> Iterator[NewWorld]:
    """Makes worlds in folders of `parent`, and closes them at the end of the block."""
    made: list[World] = []

    def make(**variables: str) -> World:
        folder = parent / f"world-{len(made)}"
        folder.mkdir()
        made.append(World(folder, **variables))
        return made[-1]

    try:
        yield make
    finally:
        for world in made:
            world.close()
