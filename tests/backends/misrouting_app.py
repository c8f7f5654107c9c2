"""An application that loses its session at a hop. Knows OpenTelemetry, and nothing of otelctx.

Two sessions, whose keys are in a ContextVar, and a fallback: an environment variable that the last one wrote. Each turn
hands a tool to a pool without its context. It does ten turns of each, says so in a line, and again for each line of its
input.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

from opentelemetry import context, metrics, trace

SESSION: ContextVar[str] = ContextVar("SESSION")
KEYS = tuple(os.environ.get("APP_KEYS", "slack:ops,telegram:family").split(","))

tracer = trace.get_tracer("application")


def session_key() -> str:
    """Whose work this is, as such applications ask."""
    return SESSION.get("") or os.environ.get("APP_SESSION_KEY", "")


def tool(turn: context.Context) -> str:
    """One tool of a turn, in the turn's trace."""
    with tracer.start_as_current_span("tool", context=turn):
        return session_key()


def turn(key: str, pool: ThreadPoolExecutor) -> str:
    """One turn of a session: a span, and a tool in the pool."""
    SESSION.set(key)
    os.environ["APP_SESSION_KEY"] = KEYS[1]  # the other channel's turn began later
    with tracer.start_as_current_span("turn"):
        return pool.submit(tool, context.get_current()).result()


def configure() -> None:
    """OpenTelemetry as such applications set it up, by its own variables."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

    readers: list[MetricReader] = []
    if os.environ.get("APP_METRICS") == "scraped":
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import start_http_server

        readers.append(PrometheusMetricReader())
        server, _ = start_http_server(0, "127.0.0.1")
        print(server.server_port, flush=True)
    elif os.environ.get("APP_METRICS") == "pushed":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=500))
    metrics.set_meter_provider(MeterProvider(readers))

    provider = TracerProvider()
    exporter: SpanExporter | None = None
    if os.environ.get("APP_SPANS") == "http":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HTTPExporter

        exporter = HTTPExporter()
    elif os.environ.get("APP_SPANS") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GRPCExporter

        exporter = GRPCExporter(insecure=True)
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=200))
    trace.set_tracer_provider(provider)


def main() -> None:
    """Do turns until the input ends."""
    configure()
    with ThreadPoolExecutor(2) as pool:
        while True:
            seen = [turn(key, pool) == key for _ in range(10) for key in KEYS]
            print(f"{seen.count(False)} of {len(seen)} went astray", flush=True)
            if not sys.stdin.readline():
                return


if __name__ == "__main__":
    main()
