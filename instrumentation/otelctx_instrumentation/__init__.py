"""The patches that make identity travel, one module per patched library.

Each module says what it patches and why there, and gives its patches as a table, `PATCHES`. They are applied when the
library is imported, never earlier, and undone by `undo`.

Usage, where an application is started by ``opentelemetry-instrument`` or the Kubernetes operator: nothing; the entry
point ``otelctx`` of the group ``opentelemetry_instrumentor`` is found and applied. In code, `otelctx.install` is the
way in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from otelctx.config import Config


def load() -> None:
    """Import what applying the patches needs; nothing of the libraries that they patch."""
    modules()


def modules() -> tuple[ModuleType, ...]:
    """The modules whose patches depend on no setting, in the order in which they are applied."""
    from otelctx_instrumentation import (
        aiocron,
        anyio,
        apscheduler,
        apscheduler4,
        arq,
        baggage,
        callbacks,
        celery,
        discord,
        dramatiq,
        environ,
        eventlet,
        functions,
        futures,
        gevent,
        huey,
        interpreters,
        logging,
        owners,
        pools,
        processes,
        queues,
        rq,
        sched,
        schedule,
        subprocess,
        taskiq,
        threads,
        tracing,
    )

    del environ, functions, owners, queues
    schedulers = apscheduler, apscheduler4, aiocron, discord, sched, schedule
    queued = celery, rq, huey, dramatiq, arq, taskiq
    return (
        threads,
        futures,
        interpreters,
        callbacks,
        pools,
        processes,
        anyio,
        subprocess,
        tracing,
        baggage,
        logging,
        gevent,
        eventlet,
        *schedulers,
        *queued,
    )


def apply(settings: Config) -> None:
    """Patch every library that is imported, and each of the others as soon as it is. Idempotent."""
    from otelctx_instrumentation import (
        baggage,
        celery,
        environ,
        functions,
        gevent,
        patching,
        queues,
        services,
        subprocess,
        tracing,
    )

    services.configure(settings.threads.service)
    for module in modules():
        patching.apply(module.PATCHES)
    patching.hook((*gevent.HOOKS, *celery.HOOKS, *subprocess.HOOKS))
    patching.apply(baggage.patches(settings))
    patching.apply(environ.patches(settings))
    patching.apply(functions.patches(settings.cron.runners))
    patching.apply(subprocess.spawners(settings.dispatch.spawners))
    queues.turn_on(settings.queues.adopt)
    tracing.watch()
    from otelctx_instrumentation import ending  # last, as it says

    del ending


def undo() -> None:
    """Put back what was patched, where it is still ours."""
    from otelctx_instrumentation import patching, queues

    patching.undo()
    queues.turn_off()


def __getattr__(name: str) -> Any:
    # OpenTelemetry's base class imports much; only its loader wants it.
    if name == "OtelctxInstrumentor":
        from otelctx_instrumentation.instrumentor import OtelctxInstrumentor

        return OtelctxInstrumentor
    raise AttributeError(f"module 'otelctx_instrumentation' has no attribute {name!r}")
