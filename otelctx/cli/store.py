"""The embedded store: telemetry as OTLP JSON lines in files, read back.

The format is OpenTelemetry's own (the OTLP file exporter's), so that a collector's files can be read as well.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What an attribute may hold: OTLP's AnyValue, as Python has it.
Value = str | bool | int | float | list["Value"] | dict[str, "Value"] | None

_DELTA = 1
_STATUS_ERROR = 2


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened during a span."""

    name: str
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Span:
    """A finished span. Times are nanoseconds since the epoch; `parent_id` is empty for a root."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start: int
    end: int
    attributes: Mapping[str, Value]
    events: tuple[Event, ...]
    failed: bool


def read_spans(path: Path) -> list[Span]:
    """The spans in a file of OTLP JSON lines, in the order of their starts; none where there is no such file."""
    spans = [
        _span(span)
        for line in _lines(path)
        for resource in line.get("resourceSpans", ())
        for scope in resource.get("scopeSpans", ())
        for span in scope.get("spans", ())
    ]
    return sorted(spans, key=lambda span: span.start)


def read_counter(path: Path, name: str) -> int | None:
    """The total of the counter `name` over all its attributes; None where the file or the counter is not there.

    Of cumulative points the last one of each series counts, of delta points all.
    """
    series: dict[str, int] = {}
    for line in _lines(path):
        for resource in line.get("resourceMetrics", ()):
            for scope in resource.get("scopeMetrics", ()):
                for metric in scope.get("metrics", ()):
                    if metric.get("name") != name or "sum" not in metric:
                        continue
                    delta = _enumeration(metric["sum"].get("aggregationTemporality")) == _DELTA
                    for point in metric["sum"].get("dataPoints", ()):
                        key = json.dumps(_attributes(point), sort_keys=True)
                        value = int(point.get("asInt", 0))
                        series[key] = series.get(key, 0) + value if delta else value
    return sum(series.values()) if series else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # half a line: the process that wrote it was killed
        if isinstance(record, dict):
            yield record


def _span(span: dict[str, Any]) -> Span:
    return Span(
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        name=span.get("name", ""),
        start=int(span.get("startTimeUnixNano", 0)),
        end=int(span.get("endTimeUnixNano", 0)),
        attributes=_attributes(span),
        events=tuple(Event(event.get("name", ""), _attributes(event)) for event in span.get("events", ())),
        failed=_enumeration(span.get("status", {}).get("code")) == _STATUS_ERROR,
    )


def _attributes(record: dict[str, Any]) -> dict[str, Value]:
    return {item["key"]: _value(item.get("value", {})) for item in record.get("attributes", ())}


def _value(value: dict[str, Any]) -> Value:
    for kind, content in value.items():
        match kind:
            case "intValue":  # 64 bits: a string in JSON
                return int(content)
            case "doubleValue":
                return float(content)
            case "arrayValue":
                return [_value(item) for item in content.get("values", ())]
            case "kvlistValue":
                return {item["key"]: _value(item.get("value", {})) for item in content.get("values", ())}
            case "stringValue" | "bytesValue":
                return str(content)
            case "boolValue":
                return bool(content)
    return None


def _enumeration(code: object) -> int:
    """OTLP JSON has enumerations as numbers; writers that spell their names are out there all the same."""
    if isinstance(code, int):
        return code
    return {"STATUS_CODE_ERROR": _STATUS_ERROR, "AGGREGATION_TEMPORALITY_DELTA": _DELTA}.get(str(code), 0)
