"""APScheduler 3 where locks, listeners, imports, signals and threads meet: nobody is stuck who was not without otelctx.

`programs/apscheduler_attacks.py` is what runs.
"""

from __future__ import annotations

import sys

import pytest

from tests.runners.scheduled import ON, Report, run
from tests.runners.test_apscheduler import VERSIONS

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install

versions = pytest.mark.parametrize("version", list(VERSIONS))


def attack(version: str, scenario: str) -> Report:
    return run(VERSIONS[version], "apscheduler_attacks.py", scenario, **ON)


@versions
def test_a_listener_may_wait_for_a_lock_whose_holder_asks_the_scheduler(version: str) -> None:
    assert [one["label"] for one in attack(version, "listener").seen] == ["listened"]


@versions
def test_a_job_of_a_module_may_be_added_by_name_while_that_module_adds_one(version: str) -> None:
    assert {one["label"] for one in attack(version, "importing").seen} == {"added", "imported"}


@versions
def test_a_signal_handler_may_remove_jobs_while_one_is_added(version: str) -> None:
    assert [one["label"] for one in attack(version, "signals").seen] == ["handled", "went on"]


@versions
def test_threads_that_add_and_remove_jobs_leave_nothing_behind_and_have_no_fault(version: str) -> None:
    seen = attack(version, "threads")
    assert seen.of("remembered") == [{"label": "remembered", "places": []}]
    assert seen.errors == {}


@versions
def test_a_job_that_is_added_while_the_scheduler_starts_is_its_adders(version: str) -> None:
    seen = attack(version, "starting")
    seen.assert_inherited("at the start", "B")
    assert seen.errors == {}


@versions
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="asyncio has no such mark any more")
def test_a_job_that_only_asyncio_takes_for_a_coroutine_function_runs_as_one(version: str) -> None:
    seen = attack(version, "marked")
    seen.assert_minted("recurring", "cron:apscheduler:")
    seen.assert_inherited("one-shot", "C")
    assert seen.errors == {}
