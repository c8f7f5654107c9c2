"""Other formats that carry baggage, used directly: prints what each writes and reads, as JSON."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider

import otelctx

FORMATS = {
    "jaeger": ("opentelemetry.propagators.jaeger", "JaegerPropagator", "uberctx-"),
    "ot_trace": ("opentelemetry.propagators.ot_trace", "OTTracePropagator", "ot-baggage-"),
}


def main() -> None:
    trace.set_tracer_provider(TracerProvider())
    seen: dict[str, Any] = {}
    for name, (module, class_name, prefix) in FORMATS.items():
        propagator = getattr(import_module(module), class_name)()
        written: dict[str, str] = {f"{prefix}otelctx.session": "victim"}
        with trace.get_tracer("test").start_as_current_span("span"), otelctx.bind(session="secret-key"):
            token = context.attach(baggage.set_baggage("theirs", "1"))
            propagator.inject(written)
            context.detach(token)
        own = {header: value for header, value in written.items() if not header.startswith(prefix)}
        read = propagator.extract({**own, f"{prefix}otelctx.session": "victim", f"{prefix}theirs": "2"})
        token = context.attach(read)
        seen[name] = {
            "written": sorted(header for header in written if header.startswith(prefix)),
            "leaks": "secret-key" in str(written),
            "read": {key: str(value) for key, value in baggage.get_all().items()},
            "session": otelctx.get("session"),
            "trace": trace.get_current_span().get_span_context().is_valid,
        }
        context.detach(token)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
