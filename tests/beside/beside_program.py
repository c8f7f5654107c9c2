"""``beside_program.py OTHER ORDER``: what work sees of its session, and of another instrumentation's trace.

ORDER: otelctx is installed ``before`` the other, ``after`` it, or it is ``off``. What is seen of a trace is told by the
session whose turn began it. Then otelctx is uninstalled, and the same work is done again.
"""

# ruff: noqa: E402
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import sys
from typing import Any

name, order = sys.argv[1:]

import greenlet_program as application

if order == "before":
    application.install("repair")

import others

other: others.Other = getattr(others, name)()
if order == "after":
    application.install("repair")

import work

hops = work.Hops(lambda *_: (application.look(), other.trace()))


def seen() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {hop: [] for hop in hops.by_name}
    for key in ("A", "B"):
        with application.session(key), other.turn(key):
            for hop, send in hops.by_name.items():
                found[hop].append(send())
    for hop, send in hops.by_name.items():
        found[hop].append(send())
    return found


report: dict[str, Any] = {"seen": seen(), "alerts": application.alerts, "errors": {}}
if order != "off":
    import otelctx
    from otelctx import metrics

    otelctx.uninstall()
    report["errors"] = metrics.error_counts()
    report["afterwards"] = seen()
hops.close()
print(json.dumps(report))
