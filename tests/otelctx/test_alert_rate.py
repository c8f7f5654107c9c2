"""How often one alert is repeated, by a clock that the test holds."""

from __future__ import annotations

import threading

from otelctx.alert_rate import PLACES, AlertRate


def test_between_threads_every_alert_is_either_delivered_or_held_back() -> None:
    now = 0.0
    rate = AlertRate(10, lambda: now)
    start = threading.Barrier(8)
    delivered: list[int] = []

    def work() -> None:
        start.wait()
        delivered.append(sum(rate.ask("place").deliver for _ in range(2_000)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = 60.0
    assert sum(delivered) == 10
    assert rate.ask("place") == (True, 16_000 - 10)


def test_the_place_whose_minute_began_longest_ago_is_the_first_to_be_forgotten() -> None:
    now = 0.0
    rate = AlertRate(1, lambda: now)
    for place in range(PLACES):
        rate.ask(place)
    now = 60.0
    rate.ask(0)  # begins anew, and is the youngest now
    rate.ask("one more")
    assert len(rate) == PLACES
    assert rate.ask(0).deliver is False
    now = 59.0
    assert rate.ask(1).deliver is True
    assert rate.ask(3).deliver is False


def test_a_signal_handler_may_alert_while_its_own_thread_is_counting_an_alert() -> None:
    rate = AlertRate(10)

    class Interrupted:
        def __init__(self) -> None:
            self.asked = False

        def __hash__(self) -> int:
            if not self.asked and rate._lock._is_owned():  # type: ignore[attr-defined]
                self.asked = True
                rate.ask("from the handler")
            return 1

    asked = threading.Thread(target=rate.ask, args=(Interrupted(),), daemon=True)
    asked.start()
    asked.join(20)
    assert not asked.is_alive()
    assert len(rate) == 2
