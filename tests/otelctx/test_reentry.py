"""The guard against work that leads back into itself."""

from __future__ import annotations

from contextvars import copy_context

from otelctx.reentry import Reentry


def test_it_is_active_within_the_work_and_in_what_inherits_it_and_not_after() -> None:
    guard = Reentry("test")
    assert not guard.active()
    mark = guard.enter()
    inherited = copy_context()
    assert guard.active()
    assert inherited.run(guard.active)
    guard.leave(mark)
    assert not guard.active()
    assert not inherited.run(guard.active)


def test_work_that_ends_without_leaving_is_over() -> None:
    guard = Reentry("test")

    def interrupted() -> None:
        mark = guard.enter()
        assert guard.active()
        del mark
        raise TimeoutError  # as a signal handler may, before the work's own `try`

    try:
        interrupted()
    except TimeoutError:
        pass
    assert not guard.active()
    mark = guard.enter()
    assert guard.active()
    guard.leave(mark)
