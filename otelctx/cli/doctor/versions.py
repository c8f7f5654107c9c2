"""Which distributions are here, and whether they fit each other."""

import sys
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from otelctx.cli.doctor.report import Tool

_OURS = ("otelctx", "wrapt")

_TOOLS = {
    # A tool's distribution, and the module by which one sees that the process has loaded it.
    "opentelemetry-instrumentation-threading": "opentelemetry.instrumentation.threading",
    "opentelemetry-instrumentation-asyncio": "opentelemetry.instrumentation.asyncio",
    "opentelemetry-instrumentation-logging": "opentelemetry.instrumentation.logging",
    "opentelemetry-instrumentation-celery": "opentelemetry.instrumentation.celery",
    "sentry-sdk": "sentry_sdk",
    "ddtrace": "ddtrace",
    "logfire": "logfire",
    "newrelic": "newrelic",
    "elastic-apm": "elasticapm",
    "gevent": "gevent",
    "eventlet": "eventlet",
    "uvloop": "uvloop",
    "trio": "trio",
    "anyio": "anyio",
}


def installed() -> dict[str, str]:
    """The versions of otelctx and of all that it stands on or works with."""
    return {
        name: distribution.version
        for name, distribution in sorted(_distributions().items())
        if name in _OURS or name.startswith("opentelemetry-")
    }


def conflicts() -> Iterator[str]:
    """One line for each requirement, of otelctx or an OpenTelemetry distribution, that is not met."""
    here = _distributions()
    for name in sorted(here):
        if name not in _OURS and not name.startswith("opentelemetry-"):
            continue
        for text in here[name].requires or ():
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            needed = here.get(canonicalize_name(requirement.name))
            if needed is None:
                yield f"{name} {here[name].version} needs {requirement}, which is not installed"
            elif not requirement.specifier.contains(needed.version, prereleases=True):
                yield f"{name} {here[name].version} needs {requirement}, and {needed.version} is installed"


def tools() -> Iterator[Tool]:
    """Other tools that are installed or loaded, and work where otelctx does."""
    here = _distributions()
    for name, module in _TOOLS.items():
        loaded = module in sys.modules
        if name in here or loaded:
            yield Tool(name, here[name].version if name in here else None, loaded)


def _distributions() -> dict[str, metadata.Distribution]:
    found: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a broken one has none; the first on the path is the one that is imported
            found.setdefault(canonicalize_name(name), distribution)
    return found
