"""What of a value may be seen, by each setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from otelctx import redaction
from otelctx.redaction import Values, redact

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def plain_afterwards() -> Iterator[None]:
    yield
    redaction.configure("plain")


@pytest.mark.parametrize("secret", [None, "0123456789abcdef"])
def test_a_digest_is_the_same_for_the_same_value_and_no_other(
    secret: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if secret is not None:
        monkeypatch.setenv("OTELCTX_SECRET", secret)
    redaction.configure("hash")
    digest = redact("slack:A")
    assert digest is not None
    assert digest.startswith("hash:")
    assert len(digest) == len("hash:") + 16
    assert redact("slack:A") == digest
    assert redact("slack:B") != digest


def test_a_value_is_left_out_rather_than_shown_when_its_digest_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTELCTX_SECRET_FILE", "/does/not/exist")
    redaction.configure("hash")
    assert redact("slack:A") is None


@pytest.mark.parametrize(
    ("values", "value", "redacted"),
    [
        ("plain", "a,b\n%😀", "a,b\n%😀"),
        ("plain", "lone \udcff", "lone \\udcff"),
        ("plain", "", ""),
        ("plain", None, None),
        ("hash", None, None),
        ("omit", "slack:A", None),
    ],
)
def test_redact_shows_what_the_setting_allows(values: Values, value: str | None, redacted: str | None) -> None:
    redaction.configure(values)
    assert redact(value) == redacted


def test_a_lone_surrogate_has_a_digest() -> None:
    redaction.configure("hash")
    assert str(redact("\udcff")).startswith("hash:")
