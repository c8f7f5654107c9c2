"""A small chat gateway: two channels, one agent, tools that run in parallel, and approval cards.

It is an ordinary application. It knows OpenTelemetry and nothing of otelctx, and it has the fault that real
gateways have: ``agent.py`` hands tools to a thread pool without their context, and ``session.py`` falls back to an
environment variable that the last turn wrote.
"""
