"""What tests of task queues share: environments with a runner in them, and a Redis server.

They are tests of real workers, slow to start, and so a target of their own: ``make runners``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.environments import environment, wheel_of_checkout
from tests.runners.redis_server import redis_server
from tests.runners.world import NewWorld, worlds

RunnerPython = Callable[..., Path]


@pytest.fixture(scope="session")
def runner_python(tmp_path_factory: pytest.TempPathFactory) -> RunnerPython:
    """``runner_python("celery[redis]==5.7.0", …)``: the interpreter of an environment with these and otelctx."""
    made: dict[tuple[str, ...], Path] = {}
    wheels: list[Path] = []

    def python(*requirements: str) -> Path:
        if not wheels:
            wheels.append(wheel_of_checkout(tmp_path_factory.mktemp("wheel")))
        if requirements not in made:
            made[requirements] = environment(tmp_path_factory.mktemp("runner"), *requirements, wheel=wheels[0])
        return made[requirements]

    return python


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Redis server, without the number of a database."""
    with redis_server(tmp_path_factory.mktemp("redis")) as address:
        yield address


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[NewWorld]:
    """``new_world(BROKER=…)``: a world of this test's own; what it starts ends with the test."""
    with worlds(tmp_path) as make:
        yield make
