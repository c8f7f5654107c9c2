"""Arize Phoenix: spans by both of OTLP's protocols, read back by its API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.backends.conftest import Phoenix, eventually, running

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = '[{contextvar="__main__:SESSION"}, {env="APP_SESSION_KEY"}]'


def sent(phoenix: Phoenix, application: Path, mode: str, protocol: str) -> list[dict[str, Any]]:
    """What the application's run has left in Phoenix, in a project of its own."""
    project = f"{mode}-{protocol}"
    variables = {
        "APP_KEYS": ",".join(keys_of(project)),
        "OTELCTX_ENABLED": "true",
        "OTELCTX_MODE": mode,
        "OTELCTX_ALERTS__PER_MINUTE": "100",
        "OTELCTX_KEYS__SESSION__SOURCES": SOURCES,
        "OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={project}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": phoenix.http if protocol == "http" else phoenix.grpc,
        "APP_SPANS": protocol,
    }
    with running(application, "misrouting_app.py", variables) as process:
        assert process.stdout is not None
        wrong = 10 if mode == "observe" else 0
        assert process.stdout.readline() == f"{wrong} of 20 went astray\n"

    def all_there() -> list[dict[str, Any]]:
        spans = phoenix.spans(project)
        return spans if sum(span["name"] == "tool" for span in spans) == 20 else []

    found: list[dict[str, Any]] = eventually(all_there, "the spans")
    return found


def keys_of(project: str) -> tuple[str, str]:
    """The keys of the two sessions. To Phoenix a session of one name is one session, in whatever project."""
    return f"slack:{project}", f"telegram:{project}"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_alert_is_on_the_span_of_the_work_that_went_astray(
    phoenix: Phoenix, application: Path, protocol: str
) -> None:
    spans = sent(phoenix, application, "observe", protocol)
    slack, telegram = keys_of(f"observe-{protocol}")
    marked = [span for span in spans if _mismatch(span)]
    assert len(marked) == 10
    for span in marked:
        (event,) = [event for event in span["events"] if event["name"] == "otelctx.mismatch"]
        told = event["attributes"]
        assert told["otelctx.mismatch.reason"] == "foreign"
        assert told["otelctx.mismatch.expected"] == slack
        assert told["otelctx.mismatch.observed"] == telegram
        assert told["otelctx.mismatch.source"] == "env:APP_SESSION_KEY"
        assert told["otelctx.mismatch.action"] == "observed"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_session_view_groups_the_work_by_whose_it_is(phoenix: Phoenix, application: Path, protocol: str) -> None:
    spans = sent(phoenix, application, "repair", protocol)
    assert not any(map(_mismatch, spans))
    turns = {span["context"]["trace_id"]: _session(span) for span in spans if span["name"] == "turn"}
    keys = keys_of(f"repair-{protocol}")
    assert sorted(turns.values()) == [keys[0]] * 10 + [keys[1]] * 10
    for span in spans:
        assert _session(span) == turns[span["context"]["trace_id"]], span["name"]
    listed = eventually(lambda: phoenix.sessions(f"repair-{protocol}"), "the sessions")
    assert {session["session_id"]: {trace["trace_id"] for trace in session["traces"]} for session in listed} == {
        key: {trace for trace, whose in turns.items() if whose == key} for key in keys
    }


def _session(span: dict[str, Any]) -> str:
    return str(span["attributes"].get("session.id"))


def _mismatch(span: dict[str, Any]) -> object:
    return span["attributes"].get("otelctx.mismatch")
