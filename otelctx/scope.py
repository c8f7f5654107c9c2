"""The instrumentation scope of everything that otelctx emits."""

from __future__ import annotations

from typing import Final

NAME: Final = "otelctx"
"""The scope's name, and that of the logger."""

VERSION: Final = "0.1.0"
"""The version of the package: written here, so that nothing has to be looked up in the metadata of a distribution."""
