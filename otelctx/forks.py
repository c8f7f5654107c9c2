"""Locks that a forked child finds free: another thread, which the child does not have, may hold one at the fork."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def renew_in_child(module: dict[str, object], name: str, make: Callable[[], object]) -> None:
    """After a fork, give the child's `module` (its ``globals()``) a new lock, made by `make`, under `name`.

    Whoever is inside ``with`` at the fork keeps the one that it took, and gives that one back.
    """

    def renew() -> None:
        module[name] = make()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
