"""The package `schedule`: jobs that are set up and run in the turns of several sessions."""

from __future__ import annotations

import sys

import schedule
import seen
from seen import in_turn, see, see_and_leave


def turns() -> None:
    job = in_turn("A", lambda: schedule.every(1).hours.do(see, "job"))

    def late() -> None:
        job.next_run = job.next_run.replace(year=2000)
        schedule.run_pending()

    in_turn("B", late)
    late()

    def now() -> None:
        schedule.run_all()
        see("A, afterwards")

    in_turn("A", now)
    seen.report()


def leaving() -> None:
    schedule.every(1).hours.do(see_and_leave, "leaves")
    for _ in range(3):
        schedule.run_all()
    see("after it")
    seen.report()


def in_a_thread() -> None:
    """As the table of hops has it: a thread that is started in a turn of A's runs what B has set up."""
    import threading

    in_turn("B", lambda: schedule.every(1).hours.do(see, "in a thread"))

    def start() -> None:
        thread = threading.Thread(target=schedule.run_all)
        thread.start()
        thread.join()

    in_turn("A", start)
    seen.report()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
