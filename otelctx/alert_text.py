"""What an alert says: one sentence for people, and the attributes for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from otelctx.redaction import redact

if TYPE_CHECKING:
    from otelctx.mismatch import Action, Mismatch, Reason

Attributes: TypeAlias = dict[str, str | int | tuple[str, ...]]

MENDED: Final[frozenset[Action]] = frozenset({"repaired", "rerouted", "dropped"})
"""The actions after which the wrong identity did no harm."""

_HAPPENED: Final[dict[Reason, str]] = {
    "lost": "was lost",
    "foreign": "is another's",
    "leaked": "leaked",
    "split": "is held and shed at once",
    "forged": "came from outside and is not verified",
    "raced": "was written by two sessions at once",
    "undeclared": "went to a child without being declared",
}
_DONE: Final[dict[Action, str]] = {
    "observed": "nothing was changed",
    "repaired": "it was put right",
    "raised": "the work was not run",
    "rerouted": "it went to its owner",
    "dropped": "it was dropped",
}


def sentence(mismatch: Mismatch) -> str:
    """Say the alert in English, on one line, with the values as `telemetry.values` allows."""
    text = f"otelctx: {mismatch.key} {_HAPPENED[mismatch.reason]}"
    if mismatch.hop_kind:
        text += f" at {'an' if mismatch.hop_kind[0] in 'aeiou' else 'a'} {mismatch.hop_kind} hop"
    text += f": expected {_shown(mismatch.expected)}, found {_shown(mismatch.observed)}"
    if mismatch.source:
        text += f" in {mismatch.source}"
    if mismatch.detail:
        text += f" ({mismatch.detail})"
    text += f"; {_DONE[mismatch.action]}."
    if mismatch.place:
        text += f" It departed from {mismatch.place.function} ({mismatch.place.file}:{mismatch.place.line})."
    if mismatch.held_back:
        text += f" Alerts like this that were held back since the last one: {mismatch.held_back}."
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def attributes(mismatch: Mismatch) -> Attributes:
    """Name what is known of the alert, for spans and logs, as telemetry has the names."""
    place = mismatch.place
    known: dict[str, str | int | tuple[str, ...] | None] = {
        "otelctx.key": mismatch.key,
        "otelctx.mismatch.reason": mismatch.reason,
        "otelctx.mismatch.expected": redact(mismatch.expected),
        "otelctx.mismatch.observed": redact(mismatch.observed),
        "otelctx.mismatch.source": mismatch.source,
        "otelctx.mismatch.action": mismatch.action,
        "otelctx.mismatch.held_back": mismatch.held_back or None,
        "otelctx.hop.kind": mismatch.hop_kind,
        "otelctx.hop.trail": mismatch.trail or None,
        "code.function.name": place.function if place else None,
        "code.file.path": place.file if place else None,
        "code.line.number": place.line if place else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _shown(value: str | None) -> str:
    if value is None:
        return "none"
    redacted = redact(value)
    return "a value (not shown)" if redacted is None else repr(redacted)
