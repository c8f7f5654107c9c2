"""What a forked child has to find: that it is one, and its locks free.

Another thread, which the child does not have, may hold a lock at the fork.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


_is_child = False


def is_child() -> bool:
    """Whether this process has been made by a fork since otelctx was imported: what was made before is its parent's."""
    return _is_child


def _now_a_child() -> None:
    global _is_child
    _is_child = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_now_a_child)


def renew_in_child(module: dict[str, object], name: str, make: Callable[[], object]) -> None:
    """After a fork, give the child's `module` (its ``globals()``) a new lock, made by `make`, under `name`.

    Whoever is inside ``with`` at the fork keeps the one that it took, and gives that one back.
    """

    def renew() -> None:
        module[name] = make()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
