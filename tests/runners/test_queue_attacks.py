"""Task queues where a message goes an unusual way: several at once, put off, by what another one brings.

`programs/*_attacks.py` are what runs, each in one process.
"""

from __future__ import annotations

import pytest

from tests.runners.queues import CELERY, DRAMATIQ, HUEY, RQ, TASKIQ
from tests.runners.scheduled import OFF, ON, run

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install

SIGNED = {**ON, "OTELCTX_SECRET": "a secret that is long enough to be one"}


@pytest.mark.parametrize("variables", [ON, SIGNED, OFF], ids=["on", "signed", "off"])
def test_a_kicker_of_taskiqs_that_schedules_tasks_of_several_sessions_at_once_schedules_each_as_its_own(
    variables: dict[str, str],
) -> None:
    seen = run(TASKIQ.versions["highest"], "taskiq_attacks.py", "at_once", **variables)
    (scheduled,) = seen.of("scheduled")
    assert (scheduled["schedules"], scheduled["kickers"], scheduled["left"]) == (6, True, None)
    if variables is not OFF:
        for session in "ABCDE":
            assert (seen.keys(session), seen.app(session)) == ([session], [session])
    assert (seen.alerts, seen.errors) == ([], {})


def test_a_retry_that_taskiq_puts_off_keeps_its_messages_key_and_is_granted_its_claim() -> None:
    seen = run(TASKIQ.versions["highest"], "taskiq_attacks.py", "put_off", **SIGNED)
    assert [(one["key"], one["app"], one["granted"]) for one in seen.of("retried")] == [
        ("A", None, ["task 1", "1"]),
        ("A", None, ["task 1", "2"]),
    ]
    assert (seen.alerts, seen.errors) == ([], {})


def test_what_a_task_of_taskiqs_sends_that_was_scheduled_and_runs_in_place_is_whose_the_task_is_by_then() -> None:
    seen = run(TASKIQ.versions["highest"], "taskiq_attacks.py", "from_in_place", **SIGNED)
    assert (seen.keys("sent"), seen.app("sent")) == (["A.sub"], ["A.sub"])
    assert (seen.alerts, seen.errors) == ([], {})


@pytest.mark.parametrize("version", list(CELERY.versions))
def test_what_a_message_of_celerys_brings_along_is_the_messages_whatever_its_task_has_left(version: str) -> None:
    seen = run(CELERY.versions[version], "celery_attacks.py", "brought", **SIGNED)
    for one in seen.seen:
        if one["label"] == "sends:eager:called back":
            expected = "left"  # an eager task is the work of the task that runs it, and what it leaves is, too
        else:
            expected = "A.sub" if one["label"].startswith("sends:") else "A"
        assert (one["key"], one["app"], one["claim"]) == (expected, expected, "shed"), one
    assert (seen.alerts, seen.errors) == ([], {})


@pytest.mark.parametrize("version", list(CELERY.versions))
def test_what_celery_sends_for_a_task_that_was_revoked_is_the_messages(version: str) -> None:
    seen = run(CELERY.versions[version], "celery_attacks.py", "revoked", **SIGNED)
    for label in ("header", "sent back"):
        assert (seen.keys(label)[0], seen.app(label)[0]) == ("A", "A"), label
    assert (seen.alerts, seen.errors) == ([], {})


@pytest.mark.parametrize("version", list(CELERY.versions))
@pytest.mark.parametrize("protocol", ["1", "2"])
def test_an_application_finds_in_a_task_of_celerys_the_headers_that_it_has_sent(version: str, protocol: str) -> None:
    on, off = (
        run(CELERY.versions[version], "celery_attacks.py", "headers", PROTOCOL=protocol, **variables)
        for variables in (ON, OFF)
    )
    assert [(one["key"], one["app"]) for one in on.seen if one["label"] != "own"] == [("A", "A")] * 4
    for label in ("with headers", "without headers"):
        assert [(one["headers"], one["others"]) for one in on.of(label)] == [
            (one["headers"], []) for one in off.of(label)
        ]
    assert on.of("own")[0]["own"] == {"mine": "1"}


def test_of_a_broken_message_of_celerys_whose_task_fails_too_there_is_one_alert() -> None:
    seen = run(CELERY.versions["highest"], "celery_attacks.py", "broken", **ON)
    assert seen.keys("broken")[0].startswith("task:celery:celery_attacks.fails:")
    assert (seen.keys("next"), seen.alerts, seen.errors) == (["A"], ["forged None None"], {})


@pytest.mark.parametrize("version", list(HUEY.versions))
def test_what_a_message_of_hueys_brings_along_is_the_messages_whatever_its_task_has_left(version: str) -> None:
    seen = run(HUEY.versions[version], "huey_attacks.py", "brought", **SIGNED)
    for one in seen.seen:
        expected = "A.sub" if one["label"] == "sends:sent" else "A"
        assert (one["key"], one["app"], one["claim"]) == (expected, expected, "shed"), one
    assert (seen.alerts, seen.errors) == ([], {})


def test_a_chords_callback_of_hueys_is_its_messages_and_so_it_is_where_a_member_was_revoked() -> None:
    seen = run(HUEY.versions["highest"], "huey_attacks.py", "chords", **SIGNED)
    assert len(seen.of("body")) == 2
    for one in seen.seen:
        assert (one["key"], one["app"], one["claim"]) == ("A", "A", "shed"), one
    assert (seen.alerts, seen.errors) == ([], {})


@pytest.mark.parametrize("version", list(DRAMATIQ.versions))
def test_what_a_message_of_dramatiqs_brings_along_is_the_messages_whatever_its_actor_has_left(version: str) -> None:
    seen = run(DRAMATIQ.versions[version], "dramatiq_attacks.py", "brought", **SIGNED)
    for one in seen.seen:
        expected = "A.sub" if one["label"] == "sends:sent" else "A"
        assert (one["key"], one["app"], one["claim"]) == (expected, expected, "shed"), one
    assert (seen.alerts, seen.errors) == ([], {})


def test_messages_of_dramatiqs_that_are_made_with_the_same_options_are_each_their_own_senders() -> None:
    seen = run(DRAMATIQ.versions["highest"], "dramatiq_attacks.py", "options", **ON)
    assert (seen.keys("A"), seen.app("A"), seen.keys("B"), seen.app("B")) == (["A"], ["A"], ["B"], ["B"])
    assert seen.of("options")[0]["options"] == {"max_retries": 0}
    assert (seen.alerts, seen.errors) == ([], {})


@pytest.mark.parametrize("version", list(RQ.versions))
@pytest.mark.parametrize("late", ["", "late"], ids=["from the start", "installed in code"])
def test_a_callback_of_rqs_runs_as_its_job_has_arrived_whatever_the_job_has_left(
    version: str, late: str, redis: str
) -> None:
    for number, (scenario, labels) in enumerate(
        [("called back", ["leaves", "succeeded", "fails", "failed"]), ("abandoned", ["failed"])]
    ):
        variables = {
            **({} if late else ON),
            "BROKER": f"{redis}/{700 + 4 * number + bool(late) + 2 * (version == 'lowest')}",
        }
        seen = run(RQ.versions[version], "rq_attacks.py", scenario, *filter(None, [late]), **variables)
        assert [one["label"] for one in seen.seen] == labels
        for one in seen.seen:
            assert (one["key"], one["app"], one["claim"]) == ("A", "A", "shed"), one
        assert (seen.alerts, seen.errors) == ([], {})
