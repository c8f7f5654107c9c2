"""What of a value may be seen, by each setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from otelctx import redaction
from otelctx.redaction import Values, redact

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def plain_afterwards() -> Iterator[None]:
    yield
    redaction.configure("plain")


def test_a_digest_is_the_same_for_the_same_value_and_secret_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def digest(value: str, **environ: str) -> str:
        for name in ("OTELCTX_SECRET", "OTELCTX_SECRET_FILE"):
            monkeypatch.delenv(name, raising=False)
        for name, text in environ.items():
            monkeypatch.setenv(name, text)
        redaction.configure("hash")
        redacted = redact(value)
        assert redacted is not None
        assert redacted == redact(value)
        return redacted

    file = tmp_path / "secret"
    file.write_text("first secret\nsecond secret\n")
    of_secret = digest("slack:A", OTELCTX_SECRET="first secret")
    assert of_secret.startswith("hash:")
    assert len(of_secret) == len("hash:") + 16
    assert digest("slack:A", OTELCTX_SECRET_FILE=str(file)) == of_secret
    others = [
        digest("slack:B", OTELCTX_SECRET="first secret"),
        digest("slack:A", OTELCTX_SECRET="x" * 1000),
        digest("slack:A"),
        digest("slack:A"),  # configured anew without a secret: another random key
    ]
    assert len({of_secret, *others}) == 5


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
