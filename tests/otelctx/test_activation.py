"""The installation at the first hop, where a signal handler makes a hop in the middle of it."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from otelctx import activation

if TYPE_CHECKING:
    from types import FrameType

RUN = activation._Activation.run.__code__
LINES = len({line for _, _, line in RUN.co_lines() if line is not None})


@pytest.mark.parametrize("number", range(LINES))
def test_a_hop_in_the_middle_of_the_first_one_does_not_wait_for_itself(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    installed: list[int] = []
    monkeypatch.setattr(activation, "_install", lambda: installed.append(number))
    first, lines = activation._Activation(), 0

    def handler(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code is not RUN:
            return None
        if event == "line":
            lines += 1
            if lines == number + 1:
                sys.settrace(None)
                frame.f_trace = None
                first.run()
        return handler

    def work() -> None:
        sys.settrace(handler)
        try:
            first.run()
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert installed
    assert (first.closed, first.owner) == (True, None)
