"""What both programs of green threads share: an application's variable, its sessions, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

KEY: ContextVar[str] = ContextVar(f"{__name__}:KEY")

alerts: list[list[Any]] = []


def install(mode: str) -> None:
    """Turn otelctx on, unless `mode` is "off"."""
    if mode == "off":
        return
    import otelctx

    sources = [{"contextvar": f"{__name__}:KEY"}]
    otelctx.install({}, mode=mode, keys={"session": {"sources": sources}})
    otelctx.on_mismatch(lambda alert: alerts.append([alert.reason, alert.expected, alert.observed, alert.hop_kind]))


def look(*_: Any) -> str | None:
    return KEY.get(None)


@contextmanager
def session(key: str | None) -> Iterator[None]:
    if key is None:
        yield
        return
    token = KEY.set(key)
    try:
        yield
    finally:
        KEY.reset(token)


def report(hops: dict[str, Callable[[], Any]], mode: str, gone: Callable[[], dict[str, Any]]) -> None:
    """Send work through each hop under A, under B and under nothing, and print what it saw; then without us."""
    seen: dict[str, list[Any]] = {name: [] for name in hops}
    for key in ("A", "B", None):
        for name, hop in hops.items():
            with session(key):
                seen[name].append(hop())
    after: dict[str, Any] = {}
    errors: dict[str, int] = {}
    counts: dict[str, int] = {}
    if mode != "off":
        import otelctx
        from otelctx import metrics

        errors = metrics.error_counts()
        counts = {" ".join(label): n for label, n in metrics.hop_counts().items() if n}
        otelctx.uninstall()
        with session("A"):
            after = gone()
    print(json.dumps({"seen": seen, "alerts": alerts, "errors": errors, "counts": counts, "uninstalled": after}))
