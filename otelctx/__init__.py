"""Identity that follows the work.

otelctx makes a session key (and whatever else an application declares) travel with work that hops into thread pools,
threads, timers and callbacks, as ContextVars and as OpenTelemetry baggage, and raises an alert in the traces when a
worker sees a key that is not its parent's. See `install`, or set ``OTELCTX_ENABLED=true`` and change no code.
"""

from __future__ import annotations

# Not from `typing`: it takes longer to import than everything else at interpreter start.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from otelctx.adoption import adopting as adopting
    from otelctx.alerts import on_mismatch as on_mismatch
    from otelctx.binding import attach as attach
    from otelctx.binding import bind as bind
    from otelctx.binding import detach as detach
    from otelctx.binding import get as get
    from otelctx.claim import Claim as Claim
    from otelctx.config import ConfigError as ConfigError
    from otelctx.cron import cron_job as cron_job
    from otelctx.cron import cron_run as cron_run
    from otelctx.installation import install as install
    from otelctx.installation import is_installed as is_installed
    from otelctx.installation import uninstall as uninstall
    from otelctx.mismatch import Mismatch as Mismatch
    from otelctx.mismatch import MismatchError as MismatchError
    from otelctx.owners import (
        Owner as Owner,
    )
    from otelctx.owners import (
        forget_owner as forget_owner,
    )
    from otelctx.owners import (
        owner_of as owner_of,
    )
    from otelctx.owners import (
        record_owner as record_owner,
    )
    from otelctx.owners import (
        resolve_owner as resolve_owner,
    )
    from otelctx.ownership import (
        attach_shed as attach_shed,
    )
    from otelctx.ownership import (
        claim_state as claim_state,
    )
    from otelctx.ownership import (
        current_claim as current_claim,
    )
    from otelctx.ownership import (
        grant_claim as grant_claim,
    )
    from otelctx.ownership import (
        is_claim_holder as is_claim_holder,
    )
    from otelctx.ownership import (
        shed_claim as shed_claim,
    )
    from otelctx.snapshot import Snapshot as Snapshot
    from otelctx.snapshot import capture as capture

# Resolved at first use: the package is imported at interpreter start, where nothing may be loaded that is not needed.
_homes = {
    "Claim": "claim",
    "ConfigError": "config",
    "Mismatch": "mismatch",
    "MismatchError": "mismatch",
    "Owner": "owners",
    "Snapshot": "snapshot",
    "adopting": "adoption",
    "attach": "binding",
    "attach_shed": "ownership",
    "bind": "binding",
    "capture": "snapshot",
    "claim_state": "ownership",
    "cron_job": "cron",
    "cron_run": "cron",
    "current_claim": "ownership",
    "detach": "binding",
    "forget_owner": "owners",
    "get": "binding",
    "grant_claim": "ownership",
    "install": "installation",
    "is_claim_holder": "ownership",
    "is_installed": "installation",
    "on_mismatch": "alerts",
    "owner_of": "owners",
    "record_owner": "owners",
    "resolve_owner": "owners",
    "shed_claim": "ownership",
    "uninstall": "installation",
}

__all__ = [
    "Claim",
    "ConfigError",
    "Mismatch",
    "MismatchError",
    "Owner",
    "Snapshot",
    "adopting",
    "attach",
    "attach_shed",
    "bind",
    "capture",
    "claim_state",
    "cron_job",
    "cron_run",
    "current_claim",
    "detach",
    "forget_owner",
    "get",
    "grant_claim",
    "install",
    "is_claim_holder",
    "is_installed",
    "on_mismatch",
    "owner_of",
    "record_owner",
    "resolve_owner",
    "shed_claim",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    home = _homes.get(name)
    if home is None:
        raise AttributeError(f"module 'otelctx' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"otelctx.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
