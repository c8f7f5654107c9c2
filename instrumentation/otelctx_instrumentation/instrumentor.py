"""The entry point ``opentelemetry_instrumentor: otelctx``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from collections.abc import Collection


class OtelctxInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Turns otelctx on for ``opentelemetry-instrument``.

    Obeys ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS``, which the loader reads, and ``OTELCTX_ENABLED=false``.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing but the standard library has to be there."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        from otelctx import bootstrap, installation

        if bootstrap.switched_by(os.environ) is not False:
            installation.install_from_environment()

    def _uninstrument(self, **kwargs: Any) -> None:
        from otelctx import installation

        installation.uninstall()
