"""APScheduler 3, with its schedulers and executors: whose a job is. `programs/apscheduler_jobs.py` is what runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runners.scheduled import BOTH, OBSERVE, OFF, ON, OPENTELEMETRY, Report, run

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install

VERSIONS = {
    "lowest": ("apscheduler==3.6.0", "setuptools<81", "tzlocal<3"),
    "highest": ("apscheduler==3.11.3", "gevent", "sqlalchemy", "tornado", "twisted"),
}

versions = pytest.mark.parametrize("version", list(VERSIONS))


def jobs(version: str, *scenario: str, **variables: str) -> Report:
    return run(VERSIONS[version], "apscheduler_jobs.py", *scenario, **variables)


@versions
def test_without_otelctx_jobs_on_an_event_loop_run_as_the_last_one_who_has_touched_the_scheduler(version: str) -> None:
    seen = jobs(version, "asyncio_scheduler", **OFF)
    assert seen.app("one-shot coroutine") == ["A"]
    assert "D" in seen.app("recurring coroutine")
    assert set(seen.app("recurring coroutine")) <= {"A", "B", "C", "D", "E"}


@versions
@pytest.mark.parametrize("variables", [ON, BOTH], ids=["alone", "with OpenTelemetry's"])
def test_on_an_event_loop_recurring_jobs_are_minted_and_one_shot_jobs_are_their_adders(
    version: str, variables: dict[str, str]
) -> None:
    seen = jobs(version, "asyncio_scheduler", **variables)
    seen.assert_minted("recurring coroutine", "cron:apscheduler:see_in_task:")
    seen.assert_minted("recurring function", "cron:apscheduler:other:")
    seen.assert_inherited("one-shot coroutine", "E")
    seen.assert_inherited("one-shot function", "E")
    assert (seen.alerts, seen.errors) == ([], {})


@versions
def test_a_run_has_a_root_span_with_a_link_to_whoever_has_added_the_job_or_asked_for_the_run(version: str) -> None:
    seen = jobs(version, "asyncio_scheduler", **ON)
    turns = {span["span"]: span["name"].removeprefix("turn ") for span in seen.spans if span["name"].startswith("turn")}
    runs = [span for span in seen.spans if span["name"] == "cron see_in_task"]
    assert runs
    assert all(span["parent"] is None and span["wait"] < 10 for span in runs)
    assert {turns[link] for span in runs for link in span["links"]} == {"B"}
    of_the_other = [turns[link] for span in seen.spans if span["name"] == "cron other" for link in span["links"]]
    assert {of_the_other[0], of_the_other[-1]} == {"C", "E"}
    one_shot = [span for span in seen.spans if span["name"].startswith("deferred see")]
    assert [turns[span["parent"]] for span in one_shot] == ["E", "E"]
    assert [span["session"] for span in one_shot] == ["E", "E"]


@versions
@pytest.mark.parametrize(
    "executor, leaks", [("threads", {None}), ("debug", {None, "D"})], ids=["pool", "debug executor"]
)
def test_with_a_scheduler_in_a_thread_of_its_own(version: str, executor: str, leaks: set[str | None]) -> None:
    off = jobs(version, executor, **OFF)
    assert set(off.app("one-shot")) <= leaks
    for variables in (ON, BOTH):
        seen = jobs(version, executor, **variables)
        seen.assert_minted("recurring", "cron:apscheduler:recurring:")
        seen.assert_inherited("one-shot", "C")
        seen.assert_inherited("one-shot of D", "D")
        assert [(run["key"], run["app"], run["baggage"]) for run in seen.of("nobody's")] == [(None, None, None)]
        assert (seen.alerts, seen.errors) == ([], {})


def test_with_opentelemetrys_own_instrumentation_a_job_runs_as_whoever_was_there_when_its_worker_was_started() -> None:
    seen = jobs("highest", "threads", **OPENTELEMETRY)
    assert {run["baggage"] for run in seen.of("recurring")} == {"A"}
    assert {run["baggage"] for run in seen.of("one-shot")} == {"A"}


@versions
def test_with_a_blocking_scheduler_jobs_are_not_whose_has_started_it(version: str) -> None:
    assert set(jobs(version, "blocking", **OFF).app("recurring")) == {"A"}
    seen = jobs(version, "blocking", **ON)
    seen.assert_minted("recurring", "cron:apscheduler:see:")
    seen.assert_inherited("one-shot", "C")


@versions
def test_what_a_job_sets_and_never_resets_is_gone_for_the_next(version: str) -> None:
    assert "left by leaves" in jobs(version, "leaving", **OFF).app("leaves")
    seen = jobs(version, "leaving", **ON)
    seen.assert_minted("leaves", "cron:apscheduler:see_and_leave:")
    assert seen.alerts == []


@versions
def test_missed_runs_that_are_made_up_for_have_a_key_each(version: str) -> None:
    seen = jobs(version, "late", **ON)
    seen.assert_minted("late", "cron:apscheduler:see:")
    assert len(seen.of("late")) == 3


@versions
def test_jobs_in_a_process_pool_still_pickle_and_are_as_in_threads(version: str) -> None:
    seen = jobs(version, "processes", **ON)
    assert all(run["is_elsewhere"] for run in seen.seen)
    seen.assert_minted("recurring", "cron:apscheduler:elsewhere:")
    seen.assert_inherited("one-shot", "C")
    assert seen.errors == {}


@pytest.mark.parametrize("scheduler", ["greenlets", "tornado"])
def test_with_gevents_and_tornados_schedulers(scheduler: str) -> None:
    seen = jobs("highest", scheduler, **ON)
    seen.assert_minted("recurring", "cron:apscheduler:see:")
    seen.assert_inherited("one-shot", "C")
    if scheduler == "tornado":
        seen.assert_minted("recurring coroutine", "cron:apscheduler:see_in_task:")
    assert (seen.alerts, seen.errors) == ([], {})


def test_with_twisteds_scheduler_and_the_threads_of_its_reactor() -> None:
    off = jobs("highest", "twisted", **OFF)
    assert (off.app("one-shot"), off.app("nobody's")) == ([None, None], ["left by leaves"])
    for variables in (ON, BOTH):
        seen = jobs("highest", "twisted", **variables)
        seen.assert_minted("recurring", "cron:apscheduler:recurring:")
        seen.assert_inherited("one-shot", "C")
        assert [(run["key"], run["app"], run["baggage"]) for run in seen.of("nobody's")] == [(None, None, None)]
        assert (seen.alerts, seen.errors) == ([], {})


@versions
def test_it_is_remembered_of_each_job_who_has_added_it_until_the_job_goes(version: str) -> None:
    seen = jobs(version, "table_of_jobs", **ON)
    seen.assert_inherited("pending", "A")
    seen.assert_inherited("postponed", "A")
    seen.assert_inherited("made once", "D")
    seen.assert_inherited("replaced", "B")
    assert seen.keys("same") == ["A", "B"]
    assert seen.alerts == ["ConflictingIdError"]
    (left,) = seen.of("remembered")
    assert left["places"] == [["default", "left"]]
    assert seen.errors == {}


def test_a_job_that_another_process_has_put_into_the_store_is_minted(tmp_path: Path) -> None:
    store = str(tmp_path / "jobs.sqlite")
    jobs("highest", "persistent", store, **ON)
    seen = jobs("highest", "persistent", store, "again", **ON)
    seen.assert_minted("persistent", "cron:apscheduler:see:")
    jobs_of_this_process = jobs("highest", "persistent", str(tmp_path / "other.sqlite"), "here", **ON)
    jobs_of_this_process.assert_inherited("here", "A")


@versions
def test_observe_says_whose_the_jobs_would_have_run_as_and_changes_nothing(version: str) -> None:
    seen = jobs(version, "asyncio_scheduler", **OBSERVE)
    assert "D" in seen.app("recurring coroutine")
    assert seen.app("one-shot function") == [None]
    assert any(alert.startswith("leaked cron:apscheduler:see_in_task:") for alert in seen.alerts)
    assert "lost E None" in seen.alerts
    assert seen.errors == {}
