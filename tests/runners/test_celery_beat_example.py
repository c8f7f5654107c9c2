"""The example of Celery with beat prints what its README says."""

from __future__ import annotations

import pytest

from tests.environments import CHECKOUT
from tests.runners.conftest import RunnerPython
from tests.runners.queues import CELERY
from tests.runners.world import NewWorld

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]

EXAMPLE = CHECKOUT / "examples" / "celery_beat"


def test_the_example_of_celery_with_beat_prints_what_its_readme_says(
    new_world: NewWorld, runner_python: RunnerPython
) -> None:
    printed = (EXAMPLE / "README.md").read_text().partition("run.py\n")[2].partition("```")[0]
    world = new_world()
    program = world.start(runner_python(*CELERY.versions["highest"]), EXAMPLE / "run.py")
    assert program.wait(200) == 0, world.logs()
    assert (world.folder / "worker-0.log").read_text() == printed
