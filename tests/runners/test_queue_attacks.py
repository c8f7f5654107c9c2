"""Task queues where a message goes an unusual way: several at once, put off, by what another one brings.

`programs/*_attacks.py` are what runs, each in one process.
"""

from __future__ import annotations

import pytest

from tests.runners import test_taskiq as taskiq
from tests.runners.scheduled import OFF, ON, run

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install

SIGNED = {**ON, "OTELCTX_SECRET": "a secret that is long enough to be one"}


@pytest.mark.parametrize("variables", [ON, SIGNED, OFF], ids=["on", "signed", "off"])
def test_a_kicker_of_taskiqs_that_schedules_tasks_of_several_sessions_at_once_schedules_each_as_its_own(
    variables: dict[str, str],
) -> None:
    seen = run(taskiq.VERSIONS["highest"], "taskiq_attacks.py", "at_once", **variables)
    (scheduled,) = seen.of("scheduled")
    assert (scheduled["schedules"], scheduled["kickers"], scheduled["left"]) == (6, True, None)
    if variables is not OFF:
        for session in "ABCDE":
            assert (seen.keys(session), seen.app(session)) == ([session], [session])
    assert (seen.alerts, seen.errors) == ([], {})


def test_a_retry_that_taskiq_puts_off_keeps_its_messages_key_and_is_granted_its_claim() -> None:
    seen = run(taskiq.VERSIONS["highest"], "taskiq_attacks.py", "put_off", **SIGNED)
    assert [(one["key"], one["app"], one["granted"]) for one in seen.of("retried")] == [
        ("A", None, ["task 1", "1"]),
        ("A", None, ["task 1", "2"]),
    ]
    assert (seen.alerts, seen.errors) == ([], {})
