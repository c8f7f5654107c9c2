"""The mode that is in force: ``observe``, ``repair`` or ``enforce``."""

from __future__ import annotations

from typing import Literal

Mode = Literal["observe", "repair", "enforce"]

_mode: Mode = "repair"


def current() -> Mode:
    """The mode that is in force."""
    return _mode


def configure(mode: Mode) -> None:
    """Let `mode` be in force from now on."""
    global _mode
    _mode = mode
