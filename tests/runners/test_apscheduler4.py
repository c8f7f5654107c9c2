"""APScheduler 4 (an alpha), with its schedulers, executors and stores: whose a job is.

`programs/apscheduler4_jobs.py` is what runs.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.runners import scheduled
from tests.runners.scheduled import BOTH, OBSERVE, OFF, ON, OPENTELEMETRY, Report, run
from tests.runners.table import APSCHEDULER_4

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install

SECRET = "a secret that is long enough to be one"


def jobs(*scenario: str, **variables: str) -> Report:
    return run(APSCHEDULER_4, "apscheduler4_jobs.py", *scenario, **variables)


def assert_inherited(seen: Report, label: str, session: str) -> None:
    """Each run is the session's. A message takes otelctx's own baggage along, and nobody else's."""
    runs = seen.of(label)
    assert runs, label
    for one in runs:
        assert (one["key"], one["app"], one["baggage"], one["claim"]) == (session, session, None, "shed"), one


def assert_nobodys(seen: Report, label: str) -> None:
    """Each run has a key of its own, since its message brings none."""
    runs = seen.of(label)
    assert runs, label
    assert len({run["key"] for run in runs}) == len(runs)
    for one in runs:
        assert one["key"].startswith("task:apscheduler:"), one
        assert (one["app"], one["baggage"], one["claim"]) == (None, None, "shed"), one


def test_without_otelctx_a_job_is_whose_has_started_the_scheduler() -> None:
    seen = jobs("async_scheduler", **OFF)
    labels = ["recurring coroutine", "recurring function", "one-shot coroutine", "one-shot in a thread", "date"]
    assert {app for label in labels for app in seen.app(label)} == {"A"}
    assert seen.app("nobody's") == ["A"]


@pytest.mark.parametrize("variables", [ON, BOTH], ids=["alone", "with OpenTelemetry's"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_recurring_jobs_are_minted_and_one_shot_jobs_are_their_adders(backend: str, variables: dict[str, str]) -> None:
    seen = jobs("async_scheduler", backend, **variables)
    seen.assert_minted("recurring coroutine", "cron:apscheduler:see_in_task:")
    seen.assert_minted("recurring function", "cron:apscheduler:other:")
    for label in ("coroutine", "coroutine of a function", "function", "in a thread"):
        assert_inherited(seen, f"one-shot {label}", "E")
    assert_inherited(seen, "date", "E")
    assert_inherited(seen, "waited for", "E")
    assert_nobodys(seen, "nobody's")
    assert [(run["key"], run["app"], run["claim"]) for run in seen.of("after")] == [("E", "E", "none")]
    assert (seen.alerts, seen.errors) == ([], {})


def test_a_run_has_a_root_span_with_a_link_to_whoever_has_added_the_schedule_and_a_job_is_below_its_adder() -> None:
    seen = jobs("async_scheduler", "asyncio", **ON)
    turns = {span["span"]: span["name"].removeprefix("turn ") for span in seen.spans if span["name"].startswith("turn")}
    for name, adder in {"cron see_in_task": "B", "cron other": "C"}.items():
        runs = [span for span in seen.spans if span["name"] == name]
        assert len(runs) >= 2
        assert all(span["parent"] is None and 0 < span["wait"] < 10 for span in runs)
        assert {turns[link] for span in runs for link in span["links"]} == {adder}
    one_shot = [span for span in seen.spans if span["name"].startswith("task see") and span["parent"] is not None]
    assert len(one_shot) == 6
    assert {(turns[span["parent"]], span["session"], span["kind"]) for span in one_shot} == {("E", "E", "CONSUMER")}


@pytest.mark.parametrize("executor", ["threadpool", "async"])
def test_with_the_scheduler_for_threads(executor: str) -> None:
    off = jobs("threads", executor, **OFF)
    assert {app for label in ("recurring", "one-shot", "nobody's") for app in off.app(label)} == {"A"}
    for variables in (ON, BOTH):
        seen = jobs("threads", executor, **variables)
        seen.assert_minted("recurring", "cron:apscheduler:recurring:")
        assert_inherited(seen, "one-shot", "C")
        assert len(seen.of("one-shot")) == 2
        assert_inherited(seen, "one-shot of D", "D")
        assert_nobodys(seen, "nobody's")
        assert (seen.alerts, seen.errors) == ([], {})


def test_a_scheduler_that_blocks_whoever_has_started_it_is_not_theirs() -> None:
    assert set(jobs("blocking", **OFF).app("recurring")) == {"A"}
    seen = jobs("blocking", **ON)
    seen.assert_minted("recurring", "cron:apscheduler:recurring:")
    assert_inherited(seen, "one-shot", "C")


def test_what_a_job_sets_and_never_resets_is_gone_for_the_next() -> None:
    seen = jobs("leaving", **ON)
    for label in ("leaves", "task leaves"):
        seen.assert_minted(label, f"cron:apscheduler:{label}:")
        assert len(seen.of(label)) >= 4
    for number in range(3):
        assert_inherited(seen, f"one-shot {number}", "B")
        assert_nobodys(seen, f"nobody's {number}")
    assert (seen.alerts, seen.errors) == ([], {})


@pytest.mark.parametrize("how", ["by the environment", "in code"])
def test_jobs_in_a_process_pool_are_as_in_threads(how: str) -> None:
    seen = jobs("processes", how, **(OFF if how == "in code" else ON))
    assert all(run["is_elsewhere"] for run in seen.seen)
    assert len({run["pid"] for run in seen.seen}) == 1
    seen.assert_minted("recurring", "cron:apscheduler:recurring:")
    assert_inherited(seen, "one-shot", "B")
    assert_inherited(seen, "one-shot of C", "C")
    assert_nobodys(seen, "nobody's")
    turns = {span["span"]: span["name"] for span in seen.spans}
    runs = [span for span in seen.spans if span["name"] == "cron recurring"]
    assert runs
    assert {(span["parent"], turns[link]) for span in runs for link in span["links"]} == {(None, "turn D")}
    assert (seen.alerts, seen.errors) == ([], {})


def test_a_process_of_the_pool_is_not_whose_job_has_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = scheduled.CONFIG.replace(" }]", ' }, { env = "APP_SESSION" }]')
    monkeypatch.setattr(scheduled, "CONFIG", config)
    seen = jobs("processes", "with a variable", **ON)
    assert {one["environment"] for one in seen.seen} == {None}
    assert_inherited(seen, "one-shot", "B")
    assert_nobodys(seen, "nobody's")
    assert (seen.alerts, seen.errors) == ([], {})


def test_with_executors_and_schedulers_of_the_applications_own() -> None:
    seen = jobs("own", **ON)
    for name in ("thread", "process", "pool", "awaiting", "inquiring", "processes"):
        assert_inherited(seen, name, "B")
        assert len(seen.of(name)) == 1
        assert seen.of(name)[0].get("is_elsewhere", True)
    assert_inherited(seen, "twice", "B")
    assert len(seen.of("twice")) == 2
    keys = seen.keys("recurring")
    assert len(keys) >= 4
    assert keys[0] == keys[1] != keys[2] == keys[3]  # called twice is run once more, and no other run
    assert all(key.startswith("cron:apscheduler:recurring:") for key in keys)
    assert seen.alerts == ["foreign B A"]  # the thread that an executor has had since A's turn
    assert seen.errors == {}


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_jobs_of_other_processes_arrive_as_they_were_added(serializer: str, tmp_path: Path) -> None:
    store = str(tmp_path / "jobs.sqlite")
    over: list[float] = []
    for what in ("add", "tick"):
        assert jobs("persistent", store, serializer, what, **ON, OTELCTX_SECRET=SECRET).errors == {}
        over.append(time.time())
    seen = jobs("persistent", store, serializer, "work", **ON, OTELCTX_SECRET=SECRET)
    assert_inherited(seen, "one-shot", "A")
    assert_inherited(seen, "date", "B")
    seen.assert_minted("recurring", "cron:apscheduler:recurring:")
    assert_nobodys(seen, "nobody's")
    assert seen.of("late") == []
    assert (seen.alerts, seen.errors) == ([], {})
    queued = {span["name"]: span["start"] - span["wait"] for span in reversed(seen.spans) if span["wait"] is not None}
    assert queued["task see"] < over[0] < queued["task date"] < over[1]
    assert over[0] < queued["cron recurring"] < over[1]  # the first run, and since its time has come
    assert all(span["links"] for span in seen.spans if span["name"] == "cron recurring")


@pytest.mark.parametrize("tick", [ON, OFF], ids=["and", "or not"])
def test_a_message_is_believed_only_with_a_signature_where_a_secret_is_set(
    tick: dict[str, str], tmp_path: Path
) -> None:
    store = str(tmp_path / "jobs.sqlite")
    jobs("persistent", store, "json", "add", **ON, OTELCTX_SECRET="another secret that is long enough")
    jobs("persistent", store, "json", "tick", **tick)
    seen = jobs("persistent", store, "json", "work", **ON, OTELCTX_SECRET=SECRET)
    assert_nobodys(seen, "one-shot")
    for label in ("date", "recurring"):
        seen.assert_minted(label, f"cron:apscheduler:{label}:")
    assert seen.alerts
    assert set(seen.alerts) == {"forged None None"}
    assert seen.errors == {}


def test_processes_with_and_without_otelctx_run_each_others_jobs(tmp_path: Path) -> None:
    store = str(tmp_path / "old.sqlite")
    jobs("persistent", store, "json", "add", **OFF)
    jobs("persistent", store, "json", "tick", **ON)
    seen = jobs("persistent", store, "json", "work", **ON)
    assert_nobodys(seen, "one-shot")
    for label in ("date", "recurring"):
        seen.assert_minted(label, f"cron:apscheduler:{label}:")
    assert (seen.alerts, seen.errors) == ([], {})
    store = str(tmp_path / "new.sqlite")
    jobs("persistent", store, "json", "add", **ON)
    jobs("persistent", store, "json", "tick", **OFF)
    seen = jobs("persistent", store, "json", "work", **OFF)
    for label in ("one-shot", "date", "recurring", "nobody's"):
        assert set(seen.app(label)) == {"E"}, label  # who has started that process's scheduler


def test_a_carrier_that_is_none_is_dropped_with_an_alert_and_the_job_runs() -> None:
    seen = jobs("broken", **ON)
    labels = ["text", "truncated", "oversized", "types", "list", "json"]
    for label in labels:
        assert_nobodys(seen, label)
    seen.assert_minted("schedule", "cron:apscheduler:broken:")
    assert seen.alerts == ["forged None None"] * (len(labels) + 1)
    assert seen.errors == {}


def test_a_carrier_is_good_for_its_own_job_or_schedule_alone() -> None:
    seen = jobs("swapped", **ON, OTELCTX_SECRET=SECRET)
    for label in ("job of A's", "job of B's", "like a schedule"):
        assert_nobodys(seen, label)
    for session in "AB":
        seen.assert_minted(f"schedule of {session}'s", f"cron:apscheduler:{session}'s:")
    assert_inherited(seen, "untouched", "B")
    assert seen.alerts == ["forged None None"] * 5


def test_who_is_told_of_a_job_that_is_added_does_not_add_what_it_touches() -> None:
    seen = jobs("subscribed", **ON)
    assert_inherited(seen, "of B's", "B")
    assert_inherited(seen, "of D's", "D")


def test_what_a_job_adds_is_whose_the_job_is() -> None:
    seen = jobs("spreading", **ON)
    assert_inherited(seen, "one-shot", "A")
    assert_inherited(seen, "one-shot: added", "A")
    assert set(seen.keys("recurring: added")) <= set(seen.keys("recurring"))
    assert {(one["app"], one["claim"]) for one in seen.of("recurring: added")} == {(None, "shed")}
    added = [span for span in seen.spans if span["session"] in seen.keys("recurring: added")]
    ticks = {span["span"] for span in added if span["name"] == "cron recurring"}
    assert {span["parent"] for span in added if span["name"] == "task see"} <= ticks
    assert (seen.alerts, seen.errors) == ([], {})


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_in_a_crowd_each_job_is_its_own_sessions(backend: str) -> None:
    seen = jobs("crowd", backend, **ON)
    own = [one for one in seen.of("crowd") if one["session"] != "nobody's"]
    assert len(own) == 500
    assert all(one["found"] == [one["session"]] * 2 for one in own)
    ticks = [one["found"] for one in seen.of("crowd") if one["session"] == "nobody's"]
    assert len({key for _, key in ticks}) == len(ticks)
    assert all(app is None and key.startswith("cron:apscheduler:crowded:") for app, key in ticks)
    assert (seen.alerts, seen.errors) == ([], {})


def test_a_holders_jobs_are_no_holders() -> None:
    seen = jobs("claims", **ON)
    assert [run["claim"] for run in seen.of("holder")] == ["held"]
    assert_inherited(seen, "one-shot", "A")
    seen.assert_minted("recurring", "cron:apscheduler:recurring:")


def test_what_works_for_everybody_is_nobodys_whoever_has_started_it() -> None:
    off = jobs("services", **OFF)
    labels = ["store starts", "store", "executor", "subscriber"]
    assert {app for label in labels[:2] for app in off.app(label)} == {"A"}
    seen = jobs("services", **ON)
    assert_inherited(seen, "B", "B")
    for label in labels:
        assert seen.of(label), label
        for one in seen.of(label):
            assert (one["key"], one["app"], one["baggage"], one["claim"]) == (None, None, None, "none"), one
    assert (seen.alerts, seen.errors) == ([], {})


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_jobs_end_as_ever_when_they_are_cancelled_late_or_fail(backend: str) -> None:
    off, seen = jobs("outcomes", backend, **OFF), jobs("outcomes", backend, **ON)
    expected = {"label": "outcomes", "found": ["cancelled", "error", "missed_start_deadline"], "left": 0}
    assert off.of("outcomes") == seen.of("outcomes") == [expected]
    assert_inherited(seen, "cancelled", "A")
    assert_inherited(seen, "cancelled, afterwards", "A")
    assert not seen.of("missed")
    assert sorted(span["name"] for span in seen.spans) == ["task fails", "task waits", "turn A"]
    assert (seen.alerts, seen.errors) == ([], {})


def test_what_is_given_up_while_a_job_is_added_is_closed_without_a_word() -> None:
    for variables in (OFF, ON):
        assert jobs("given_up", **variables).seen == [{"label": "given up", "raised": []}]


def test_an_applications_metadata_is_there_and_ours_beside_it_is_each_jobs_own() -> None:
    def own(report: Report) -> dict[str, dict[str, object]]:
        return {one["label"]: {k: v for k, v in one["metadata"].items() if k != "otelctx"} for one in report.seen}

    off, seen = jobs("metadata", **OFF), jobs("metadata", **ON)
    assert own(seen) == own(off)
    assert seen.alerts == off.alerts == ["no has a value that is no"]
    assert len({one["metadata"]["otelctx"] for one in seen.seen}) == len(seen.seen) == 5
    for label in ("job", "by id", "schedule", "configured"):
        assert_inherited(seen, label, "A")
    assert_inherited(seen, "copied", "B")  # by B, with the metadata of a job of A's
    assert seen.errors == {}


def test_enforce_refuses_a_job_as_one_that_has_failed_and_its_scheduler_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = scheduled.CONFIG.replace(" }]", ' }, { env = "APP_SESSION" }]')
    monkeypatch.setattr(scheduled, "CONFIG", config)
    seen = jobs("refused", str(tmp_path / "jobs.sqlite"), **ON, OTELCTX_MODE="enforce", APP_SESSION="B")
    for store in ("memory", "json"):
        for executor in ("async", "threadpool", "processpool"):
            (refused,) = seen.of(f"refused {store} {executor} A")
            assert (refused["type"], refused["text"]) == ("MismatchError", "the key session is foreign")
            assert not seen.of(f"{store} {executor} A")
            assert_inherited(seen, f"{store} {executor} B", "B")
    assert seen.alerts == ["foreign A B"] * 6
    assert seen.errors == {}


def test_what_a_job_raises_is_its_outcome_as_ever_and_is_on_its_span() -> None:
    seen = jobs("failing", **ON)
    assert [(one["label"], one["text"]) for one in seen.seen] == [
        (name, "of the job") for name in ("async", "threadpool", "processpool")
    ]
    assert [span["is_error"] for span in seen.spans if span["name"] == "task fails"] == [True] * 3
    assert (seen.alerts, seen.errors) == ([], {})


def test_installed_twice_is_once_and_uninstalled_is_exactly_what_was_there() -> None:
    seen = jobs("turned_on_and_off", **OFF)
    (patched,), (undone,) = seen.of("patched"), seen.of("undone")
    assert patched["all"]
    assert patched["once"]
    assert all(patched["names"])
    assert undone["exactly"]
    assert_inherited(seen, "on", "A")
    keys = seen.keys("recurring")
    assert keys[0].startswith("cron:apscheduler:")
    assert keys[-1] is None  # while the scheduler runs on
    (off,) = seen.of("off")
    assert (off["key"], off["metadata"]) == (None, {"task": "its own", "both": "task"})


def test_observe_says_whose_the_jobs_would_have_run_as_and_changes_nothing() -> None:
    seen = jobs("async_scheduler", "asyncio", **OBSERVE)
    off = jobs("async_scheduler", **OFF)
    for label in ("recurring coroutine", "recurring function", "one-shot coroutine", "one-shot in a thread", "date"):
        assert set(seen.app(label)) == set(off.app(label)) == {"A"}, label
        assert {run["baggage"] for run in seen.of(label)} == {"A"}, label
    assert any(alert.startswith("leaked cron:apscheduler:see_in_task:") for alert in seen.alerts)
    assert "foreign E A" in seen.alerts
    assert seen.errors == {}


def test_with_opentelemetrys_own_instrumentation_a_job_is_whose_has_started_the_scheduler() -> None:
    seen = jobs("threads", "threadpool", **OPENTELEMETRY)
    for label in ("recurring", "one-shot", "nobody's"):
        assert {run["baggage"] for run in seen.of(label)} == {"A"}
