"""The application around CPython's tests: one that keeps its session in a ContextVar and mirrors it in the environment.

It is the same with otelctx and without. Installed beside otelctx, so that every process that a test starts is one, too.
"""

from __future__ import annotations

import os
from contextvars import ContextVar

SESSION: ContextVar[str] = ContextVar("SESSION")

if "CPYTHON_SESSION" in os.environ:
    SESSION.set(os.environ["CPYTHON_SESSION"])
