"""The six task queues: their versions, and how the worker of each is started and given messages.

What happens in those processes is in `programs/`: a module of tasks for each queue, which its workers and senders
import, and a program that sends them. What is sent under whose session is the same for all: `programs/turns.py`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.runners.world import PROGRAMS, NewWorld, World

ON = {"OTELCTX_ENABLED": "true"}
CONFIG = """
[keys.session]
sources = [{ contextvar = "sightings:APP_KEY" }]
"""

Command = list[str | Path]

_databases = itertools.count()


@dataclass(frozen=True)
class TaskQueue:
    """One task queue. A `kind` is one of its kinds of worker."""

    name: str
    """As it is in the keys that are minted for it."""
    module: str
    """What is before a task's name there."""
    versions: Mapping[str, tuple[str, ...]]
    kinds: Mapping[str, tuple[str, ...]]
    """By version."""
    command: Callable[[Path, str], Command]
    """What starts a worker that runs one task at a time."""
    application: str
    """The module of its tasks."""
    program: str
    """What sends."""
    scheduler: Callable[[Path, str], Command | None]
    """What starts the scheduler of a version that has one in a process of its own. TICK turns on those in workers."""
    refusal: str = "MismatchError"
    """What a task fails with that is refused in enforce."""
    broken: tuple[str, ...] = ()
    """Messages with carriers of types that only some queues can transport."""

    def world(self, new_world: NewWorld, redis: str, config: str = CONFIG, **variables: str) -> World:
        """A world with a broker of its own, in which otelctx is on and `config` its configuration."""
        world = new_world(BROKER=f"{redis}/{next(_databases)}", **{**ON, **variables})
        (world.folder / "otelctx.toml").write_text(config)
        world.variables["OTELCTX_CONFIG"] = str(world.folder / "otelctx.toml")
        world.variables["DATABASE"] = str(world.folder / "queue.db")
        return world

    def work(self, world: World, python: Path, kind: str, *options: str, **variables: str) -> None:
        """Start a worker in `world`, and wait until it is ready."""
        world.start(*self.command(python, kind), *options, **variables)
        world.wait(1, label="ready")

    def begin(self, new_world: NewWorld, python: Path, redis: str, kind: str, *options: str, **variables: str) -> World:
        """A world with a ready worker."""
        world = self.world(new_world, redis, **variables)
        self.work(world, python, kind, *options)
        return world

    def send(self, world: World, python: Path, *scenarios: str, **variables: str) -> None:
        """Send the messages of these scenarios, from a process of nobody's."""
        world.run(python, PROGRAMS / self.program, *scenarios, **{"AMBIENT": "", **variables})


def _celery(python: Path, kind: str) -> Command:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "info"]
    return [python, "-m", "celery", "-A", "celery_app", "worker", "-P", kind, "-c", "1", *quiet]


def _beat(python: Path, version: str) -> Command:
    return [python, "-m", "celery", "-A", "celery_app", "beat"]


THEIRS = "opentelemetry-instrumentation-celery>=0.58b0"

CELERY = TaskQueue(
    "celery",
    "celery_app.",
    {
        # The command of 5.2 needs an interface of importlib.metadata's that is gone in 3.12.
        "lowest": ("celery[redis]==5.2.7" if sys.version_info < (3, 12) else "celery[redis]==5.3.0", THEIRS),
        "highest": ("celery[redis]==5.7.0", THEIRS, "gevent"),
    },
    dict.fromkeys(("lowest", "highest"), ("prefork", "threads", "solo")),
    _celery,
    "celery_app",
    "celery_send.py",
    _beat,
    broken=("number", "list"),
)


def _rq(python: Path, kind: str) -> Command:
    return [python, PROGRAMS / "rq_worker.py", kind]


def _rq_cron(python: Path, version: str) -> Command | None:
    return None if version == "lowest" else _rq(python, "cron")


RQ = TaskQueue(
    "rq",
    "rq_jobs.",
    {"lowest": ("rq==1.16.0",), "highest": ("rq==3.0.0",)},
    dict.fromkeys(("lowest", "highest"), ("simple", "fork")),
    _rq,
    "rq_jobs",
    "rq_send.py",
    _rq_cron,
    broken=("bytes",),
)


def _huey(python: Path, kind: str) -> Command:
    return [python, PROGRAMS / "huey_consumer.py", kind]


def _none(python: Path, version: str) -> Command | None:
    return None


HUEY = TaskQueue(
    "huey",
    "huey_app.",
    {"lowest": ("huey==2.5.0",), "highest": ("huey==3.5.4", "gevent")},
    {"lowest": ("thread", "process"), "highest": ("thread", "process", "greenlet")},
    _huey,
    "huey_app",
    "huey_send.py",
    _none,
    broken=("bytes",),
)


def _dramatiq(python: Path, kind: str) -> Command:
    return [python, "-m", "dramatiq", "dramatiq_app", "--processes", "1", "--threads", "1"]


DRAMATIQ = TaskQueue(
    "dramatiq",
    "",
    {
        # Its own choice of a Redis client needs distutils, which is gone in 3.12.
        "lowest": ("dramatiq==1.10.0", "prometheus-client", "redis==4.6.0"),
        "highest": ("dramatiq[redis]==2.2.1",),
    },
    dict.fromkeys(("lowest", "highest"), ("threads",)),
    _dramatiq,
    "dramatiq_app",
    "dramatiq_send.py",
    _none,
    refusal="dead",  # it keeps no reason
    broken=("number", "list"),
)


def _arq(python: Path, kind: str) -> Command:
    return [python, "-c", "from arq.cli import cli; cli()", "arq_app.WorkerSettings"]


ARQ = TaskQueue(
    "arq",
    "",
    # It needs another Redis client than Celery's transport does. The lowest is with one as old as it is.
    {"lowest": ("arq==0.23", "pydantic<2", "redis==4.2.2"), "highest": ("arq==0.28.0",)},
    dict.fromkeys(("lowest", "highest"), ("tasks",)),
    _arq,
    "arq_app",
    "arq_send.py",
    _none,
    refusal="DeserializationError",  # that is what arq fails a job for before it runs
    broken=("number", "list"),
)


def _taskiq(python: Path, kind: str) -> Command:
    one = ["--workers", "1", "--max-async-tasks", "1", "--max-threadpool-threads", "1"]
    return [python, "-m", "taskiq", "worker", "taskiq_app:broker", *one]


def _taskiq_scheduler(python: Path, version: str) -> Command | None:
    # The older one does not begin before the next minute.
    by_hand: Command = [python, PROGRAMS / "taskiq_send.py", "tick"]
    return by_hand if version == "lowest" else [python, "-m", "taskiq", "scheduler", "taskiq_app:scheduler"]


TASKIQ = TaskQueue(
    "taskiq",
    "",
    {"lowest": ("taskiq==0.9.0", "taskiq-redis==0.5.0"), "highest": ("taskiq==0.13.0", "taskiq-redis==1.2.4")},
    dict.fromkeys(("lowest", "highest"), ("tasks",)),
    _taskiq,
    "taskiq_app",
    "taskiq_send.py",
    _taskiq_scheduler,
)

QUEUES = (CELERY, RQ, HUEY, DRAMATIQ, ARQ, TASKIQ)
