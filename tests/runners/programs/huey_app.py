"""Tasks of an application that uses Huey, on SQLite: they write down what they see. Consumers and senders import it."""

from __future__ import annotations

import os
from typing import Any

import attributes
import sightings
from huey import MemoryHuey, SqliteHuey, crontab
from huey.serializer import SignedSerializer
from sightings import APP_KEY, see

sightings.ambient()
if os.environ.get("TELEMETRY"):
    sightings.telemetry()

_serializers = {
    "signed": lambda: {"serializer": SignedSerializer(secret="s")},
    "gzip": lambda: {"compression": True},
    "zlib": lambda: {"compression": True, "use_zlib": True},
    "plain": dict,
}
_options: dict[str, Any] = _serializers[os.environ.get("SERIALIZER", "plain")]()
huey = (
    MemoryHuey("app", immediate=True)
    if os.environ.get("IN_PLACE")
    else SqliteHuey("app", filename=os.environ["DATABASE"], **_options)
)


@huey.on_startup()
def _started() -> None:
    see("serves")
    see("ready")


@huey.task()
def seen(label: str) -> str:
    """Write down what is seen."""
    see(label)
    return label


@huey.task()
def passed(*arguments: Any) -> Any:
    """A task that follows others; its label is its first argument."""
    see(arguments[0])
    return arguments[0]


@huey.task()
def taints(label: str, key: str) -> str:
    """Set the application's variable, and never take it back."""
    see(label)
    APP_KEY.set(key)
    return label


_failed: dict[str, int] = {}


@huey.task(retries=2, context=True)
def retried(label: str, times: int, bound: str = "", task: Any = None) -> None:
    """Fail as long as more than `times` retries are left; `bound`: what the application's variable is by then."""
    see(label, left=task.retries)
    if bound:
        APP_KEY.set(bound)
    if task.retries > 2 - times:
        raise ValueError(label)


@huey.task()
def spreads(label: str) -> None:
    """Enqueue another task."""
    see(label)
    seen(f"{label}:sent")


class _Resource:
    def __enter__(self) -> _Resource:
        see("resource")
        return self

    def __exit__(self, *_: object) -> None:
        pass


@huey.context_task(_Resource())
def with_resource(label: str) -> None:
    """A task with a context manager around it."""
    see(label)


@huey.periodic_task(crontab(minute="*") if not os.environ.get("QUIET") else (lambda _: False), retries=1, context=True)
def ticked(task: Any = None) -> None:
    """A periodic task; each run is retried once."""
    see("tick", left=task.retries, id=task.id)
    if task.retries:
        raise ValueError("once more")


@huey.task()
def uninstalls(label: str) -> None:
    """Uninstall otelctx in the process that runs this."""
    see(label)
    attributes.uninstall("huey")


if os.environ.get("INSTALL"):
    attributes.install("huey")
