"""`schedule`, python-telegram-bot's JobQueue and discord.py's loops: whose a job is."""

from __future__ import annotations

import pytest

from tests.runners.scheduled import BOTH, OBSERVE, OFF, ON, Report, run

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install

SCHEDULE = {"lowest": ("schedule==0.6.0",), "highest": ("schedule==1.2.2",)}
TELEGRAM = {
    "lowest": ("python-telegram-bot[job-queue]==21.0.1",),
    "highest": ("python-telegram-bot[job-queue]==22.8",),
}
DISCORD = {"lowest": ("discord.py==2.0.0", "audioop-lts; python_version >= '3.13'"), "highest": ("discord.py==2.7.1",)}

AIOCRON = {"lowest": ("aiocron==1.8",), "highest": ("aiocron==2.1",)}

versions = pytest.mark.parametrize("version", ["lowest", "highest"])


def schedule(version: str, scenario: str, **variables: str) -> Report:
    return run(SCHEDULE[version], "schedule_jobs.py", scenario, **variables)


@versions
def test_a_job_of_schedule_runs_as_the_caller_of_run_pending_without_otelctx_and_minted_with_it(version: str) -> None:
    assert schedule(version, "turns", **OFF).app("job") == ["B", None, "A"]
    for variables in (ON, BOTH):
        seen = schedule(version, "turns", **variables)
        assert len(seen.of("job")) == 3
        seen.assert_minted("job", "cron:schedule:see:")
        assert [(run["key"], run["app"], run["claim"]) for run in seen.of("A, afterwards")] == [("A", "A", "none")]
        assert (seen.alerts, seen.errors) == ([], {})


@versions
def test_a_run_of_schedules_has_a_root_span_with_a_link_to_whoever_has_set_the_job_up(version: str) -> None:
    seen = schedule(version, "turns", **ON)
    turns = {span["span"]: span["name"] for span in seen.spans if span["name"].startswith("turn")}
    runs = [span for span in seen.spans if span["name"] == "cron see"]
    assert [span["parent"] for span in runs] == [None] * 3
    assert [[turns[link] for link in span["links"]] for span in runs] == [["turn A"]] * 3


@versions
def test_what_a_job_of_schedules_sets_and_never_resets_is_gone_for_the_next(version: str) -> None:
    off = schedule(version, "leaving", **OFF)
    assert off.app("leaves") == [None, *["left by leaves"] * 2]
    assert off.app("after it") == ["left by leaves"]
    seen = schedule(version, "leaving", **ON)
    seen.assert_minted("leaves", "cron:schedule:see_and_leave:")
    assert seen.app("after it") == [None]


@versions
def test_in_observe_a_job_of_schedules_runs_where_it_is_and_its_caller_is_told_of(version: str) -> None:
    seen = schedule(version, "turns", **OBSERVE)
    assert seen.app("job") == ["B", None, "A"]
    assert [alert.split()[0] for alert in seen.alerts] == ["leaked", "leaked"]
    assert [alert.split()[2] for alert in seen.alerts] == ["B", "A"]


@versions
def test_a_bots_repeating_jobs_are_minted_and_its_one_shot_jobs_are_whose_turn_has_set_them(version: str) -> None:
    off = run(TELEGRAM[version], "telegram_bot.py", **OFF)
    assert set(off.app("repeating")) & {"A", "B", "C", "D"}
    seen = run(TELEGRAM[version], "telegram_bot.py", **ON)
    seen.assert_minted("repeating", "cron:apscheduler:repeating:")
    seen.assert_inherited("once", "C")
    seen.assert_inherited("once of D", "D")
    by_hand, now = seen.of("daily")
    assert (by_hand["key"], by_hand["app"]) == ("A", "A")  # a call of its function, and no hop
    assert now["key"].startswith("cron:apscheduler:daily:")
    assert now["app"] is None
    assert (seen.alerts, seen.errors) == ([], {})


@versions
def test_a_discord_loop_that_goes_on_when_otelctx_is_gone_is_as_without_it(version: str) -> None:
    seen = run(DISCORD[version], "discord_loops.py", "uninstalls", **ON)
    assert seen.keys("with")[0].startswith("cron:discord:")
    assert [(one["key"], one["claim"]) for one in seen.of("without")] == [(None, "none")] * 2
    assert seen.errors == {}


@versions
def test_a_discord_loop_is_minted_at_each_iteration_and_is_never_whose_has_started_it(version: str) -> None:
    off = run(DISCORD[version], "discord_loops.py", **OFF)
    assert off.app("loop") == ["A", *["left by loop"] * 2]
    assert off.app("before the loop") == ["A"]
    seen = run(DISCORD[version], "discord_loops.py", **ON)
    seen.assert_minted("loop", "cron:discord:Cog.tick:")
    assert [(run["key"], run["app"]) for run in seen.of("by hand")] == [("B", "B")]
    for label in ("before the loop", "after the loop"):
        assert [(run["key"], run["app"], run["baggage"]) for run in seen.of(label)] == [(None, None, None)]
    turns = {span["span"]: span["name"] for span in seen.spans}
    runs = [span for span in seen.spans if span["name"] == "cron Cog.tick"]
    assert [(span["parent"], [turns[link] for link in span["links"]]) for span in runs] == [(None, ["turn A"])] * 3
    assert (seen.alerts, seen.errors) == ([], {})


def test_loops_and_timers_that_somebody_has_written_are_never_whose_has_started_them() -> None:
    for scenario in ("thread_loop", "asyncio_loop"):
        seen = run((), "stdlib_jobs.py", scenario, **ON)
        seen.assert_minted("run", "cron:cron:nightly:")
        assert (seen.alerts, seen.errors) == ([], {})
    for scenario, runner in (("timer", "timer"), ("events", "sched")):
        seen = run((), "stdlib_jobs.py", scenario, **ON)
        seen.assert_minted("later runs", f"cron:{runner}:")
        assert seen.keys("first run") == ["A"]
        assert seen.errors == {}


@versions
def test_a_run_of_aiocrons_is_minted_and_never_whose_has_started_it_or_waits_for_it(version: str) -> None:
    off = run(AIOCRON[version], "aiocron_jobs.py", "turns", **OFF)
    assert (set(off.app("coroutine")), set(off.app("function")), off.app("waited for")) == ({"A"}, {"B"}, ["C"])
    for variables in (ON, BOTH):
        seen = run(AIOCRON[version], "aiocron_jobs.py", "turns", **variables)
        seen.assert_minted("coroutine", "cron:aiocron:nightly:")
        seen.assert_minted("function", "cron:aiocron:see_and_leave:")
        seen.assert_minted("waited for", "cron:aiocron:see:")
        assert seen.keys("coroutine, later") == seen.keys("coroutine")[: len(seen.of("coroutine, later"))]
        for label, key in {"C, afterwards": "C", "C, still": "C", "by hand": "D"}.items():
            assert [(run["key"], run["app"], run["baggage"]) for run in seen.of(label)] == [(key, key, key)]
        assert (seen.alerts, seen.errors) == ([], {})


@versions
def test_a_run_of_aiocrons_has_a_root_span_with_a_link_to_whoever_has_started_it_or_waits_for_it(version: str) -> None:
    seen = run(AIOCRON[version], "aiocron_jobs.py", "turns", **ON)
    turns = {span["span"]: span["name"] for span in seen.spans if span["name"].startswith("turn")}
    for name, turn in {"cron nightly": "turn A", "cron see_and_leave": "turn B", "cron see": "turn C"}.items():
        runs = [span for span in seen.spans if span["name"] == name]
        assert runs
        for span in runs:
            assert (span["parent"], [turns.get(link) for link in span["links"]]) == (None, [turn])
    assert not [span for span in seen.spans if "null_callback" in span["name"]]


@versions
def test_aiocrons_timer_is_nobodys_each_time_that_it_is_armed(version: str) -> None:
    assert set(run(AIOCRON[version], "aiocron_jobs.py", "armed", **OFF).app("is armed")) == {"A"}
    for variables in (ON, BOTH):
        seen = run(AIOCRON[version], "aiocron_jobs.py", "armed", **variables)
        assert {(one["key"], one["app"], one["baggage"]) for one in seen.of("is armed")} == {(None, None, None)}
        assert len(seen.of("is armed")) > 2
        assert (seen.alerts, seen.errors) == ([], {})


@versions
def test_in_observe_a_run_of_aiocrons_is_whose_has_started_it_and_that_is_told(version: str) -> None:
    seen = run(AIOCRON[version], "aiocron_jobs.py", "turns", **OBSERVE)
    assert set(seen.app("coroutine")) == {"A"}
    assert {"leaked", "A"} <= {word for alert in seen.alerts for word in alert.split()}
