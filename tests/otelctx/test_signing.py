"""Secrets and what they prove: which are usable, which sign, what a signature covers, and what is seen twice."""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from otelctx import faults, signing
from otelctx.signing import ReplayWindow, SecretError, digest, has_secret, sign, verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OLD = "old-old-old-old-old-old"
NEW = "new-new-new-new-new-new"


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    signing._read = None
    faults.forget()
    yield
    signing._read = None


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("OTELCTX_SECRET", NEW)
    return monkeypatch


@pytest.mark.usefixtures("secret")
def test_a_signature_is_for_its_purpose_and_its_parts_and_no_others() -> None:
    signature = sign("task", "ab", b"c")
    assert verify(signature, "task", "ab", b"c")
    assert verify(signature, "task", b"ab", "c")  # a string is its UTF-8
    others: list[tuple[str | bytes, ...]] = [("a", "bc"), ("abc",), ("ab", "c", ""), ("", "ab", "c"), ("ab", "C"), ()]
    assert not any(verify(signature, "task", *parts) for parts in others)
    assert not verify(signature, "border", "ab", "c")
    assert not verify(signature, "taska", "b", "c")


@pytest.mark.usefixtures("secret")
def test_a_signature_fits_into_a_header_and_a_url() -> None:
    for part in ("", "ü,;= %\n", "\udcff", b"\x00\xff", "x" * 100_000):
        signature = sign("task", part)
        assert len(signature) == 43
        assert set(signature) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
        assert verify(signature, "task", part)


@pytest.mark.usefixtures("secret")
def test_no_changed_character_of_a_signature_is_accepted() -> None:
    signature = sign("task", "a")
    for index, character in enumerate(signature):
        for other in "AQgw-_9":  # the last character has two bits that a decoder would pass over
            if other != character:
                assert not verify(signature[:index] + other + signature[index + 1 :], "task", "a")


@pytest.mark.parametrize("signature", [None, 1, b"x" * 43, "", "ü" * 43, "x" * 10_000, "x" * 43, ["x"]])
@pytest.mark.usefixtures("secret")
def test_what_is_no_signature_is_false_and_never_raises(signature: object) -> None:
    assert verify(signature, "task", "a") is False


@pytest.mark.usefixtures("secret")
def test_a_part_of_another_type_cannot_be_signed_and_is_never_verified() -> None:
    wrong: Any = 5
    with pytest.raises(TypeError):
        sign("task", wrong)
    assert verify(sign("task", "5"), "task", wrong) is False


def test_without_a_secret_nothing_is_signed_and_nothing_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTELCTX_SECRET", NEW)
    signature = sign("task", "a")
    monkeypatch.setenv("OTELCTX_SECRET", " ")
    assert not has_secret()
    with pytest.raises(SecretError, match="set OTELCTX_SECRET"):
        sign("task", "a")
    assert not verify(signature, "task", "a")


def test_in_a_rotation_the_first_secret_signs_and_all_verify(secret: pytest.MonkeyPatch) -> None:
    by_new = sign("task", "a")
    secret.setenv("OTELCTX_SECRET", OLD)
    by_old = sign("task", "a")
    assert not verify(by_new, "task", "a")
    secret.setenv("OTELCTX_SECRET", f"{NEW}, {OLD}")
    assert sign("task", "a") == by_new
    assert verify(by_new, "task", "a")
    assert verify(by_old, "task", "a")
    secret.setenv("OTELCTX_SECRET", NEW)
    assert not verify(by_old, "task", "a")


def test_a_file_has_a_secret_a_line_and_is_read_anew_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    monkeypatch.setenv("OTELCTX_SECRET_FILE", str(file))
    file.write_text(f"{OLD}\n")
    by_old = sign("task", "a")
    file.write_text(f"\n  {NEW}\r\n{OLD}\n")
    assert sign("task", "a") != by_old
    assert verify(by_old, "task", "a")
    replaced = tmp_path / "replaced"
    replaced.write_text(NEW)
    replaced.replace(file)
    assert not verify(by_old, "task", "a")
    monkeypatch.setenv("OTELCTX_SECRET", OLD)  # the variable goes before the file
    assert sign("task", "a") == by_old


@pytest.mark.parametrize("content", ["", "\n\n", "short"])
def test_a_file_that_turns_bad_leaves_the_last_secrets_in_force_and_is_reported(
    content: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "secret"
    monkeypatch.setenv("OTELCTX_SECRET_FILE", str(file))
    file.write_text(NEW)
    signature = sign("task", "a")
    file.write_text(content)
    assert verify(signature, "task", "a")
    assert "stay in force" in caplog.text
    file.unlink()
    assert sign("task", "a") == signature
    assert NEW not in caplog.text


@pytest.mark.parametrize("given", ["short", f"{NEW},short", f"{NEW} , {'x' * 15}", ",", " , "])
def test_a_short_secret_is_refused_aloud_and_not_shown(
    given: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTELCTX_SECRET", given)
    assert not has_secret()
    assert caplog.text.count("shorter than 16 bytes") == 1
    assert not has_secret()
    assert caplog.text.count("shorter than 16 bytes") == 1
    with pytest.raises(SecretError):
        sign("task", "a")
    with pytest.raises(SecretError):
        digest("a")
    assert "xxx" not in caplog.text
    assert NEW not in caplog.text


def test_a_digest_is_keyed_by_the_first_secret_however_it_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without = digest("slack:A")
    assert digest("slack:A") == without
    monkeypatch.setenv("OTELCTX_SECRET", f"{NEW},{OLD}")
    of_variable = digest("slack:A")
    monkeypatch.delenv("OTELCTX_SECRET")
    (tmp_path / "secret").write_text(f"{NEW}\n")
    monkeypatch.setenv("OTELCTX_SECRET_FILE", str(tmp_path / "secret"))
    assert digest("slack:A") == digest(b"slack:A") == of_variable
    assert len({without, of_variable, digest("slack:B")}) == 3
    assert len(of_variable) == 16


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_signs_as_its_parent_and_knows_what_that_had_seen(secret: pytest.MonkeyPatch) -> None:
    window = ReplayWindow(300, 10, clock=lambda: 1000.0)
    window.is_fresh(1000, "a")
    signature, keyed = sign("task", "a"), digest("a")
    signing._lock.acquire()  # as another thread may hold it at the fork
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        same = sign("task", "a") == signature and digest("a") == keyed
        done: list[bool] = []
        asking = threading.Thread(
            target=lambda: done.extend([window.is_fresh(1000, "a"), window.is_fresh(1000, "b")]), daemon=True
        )
        asking.start()
        asking.join(20)
        os.write(write, b"ok" if same and done == [False, True] else b"no")
        os._exit(0)
    signing._lock.release()
    os.waitpid(pid, 0)
    assert os.read(read, 2) == b"ok"
    os.close(read)
    os.close(write)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_message_counts_once_and_only_near_its_time() -> None:
    clock = Clock()
    window = ReplayWindow(60, 100, clock)
    assert window.is_fresh(1000, "a")
    assert not window.is_fresh(1000, "a")
    assert not window.is_fresh(1000, b"a")
    assert window.is_fresh(1000, "b")
    assert window.is_fresh(940, "c")
    assert window.is_fresh(1060, "d")
    assert not window.is_fresh(939, "e")
    assert not window.is_fresh(1061, "f")
    clock.now = 1060.0
    assert not window.is_fresh(1000, "a")
    clock.now = 1120.5
    assert not window.is_fresh(1060, "d")
    assert window.is_fresh(1120, "g")
    assert len(window) == 1  # what is too old to count is forgotten


@pytest.mark.parametrize("timestamp", [float("nan"), float("inf"), -float("inf"), None, "1000", 10**400])
def test_what_is_no_time_is_not_fresh_and_never_raises(timestamp: Any) -> None:
    assert ReplayWindow(60, 100, Clock()).is_fresh(timestamp, "a") is False


@pytest.mark.parametrize("nonce", [None, 5, "\udcff" * 3])
def test_what_is_no_nonce_never_raises(nonce: Any) -> None:
    window = ReplayWindow(60, 100, Clock())
    assert window.is_fresh(1000, nonce) is isinstance(nonce, str)


def test_a_full_window_gets_shorter_and_lets_nothing_through_twice() -> None:
    clock = Clock()
    window = ReplayWindow(60, 10, clock)
    messages = [(1000 + index / 100, f"n{index}") for index in range(100)]
    assert all(window.is_fresh(*message) for message in messages)
    assert len(window) == 10
    assert not any(window.is_fresh(*message) for message in messages)
    assert window.is_fresh(1001, "another")
    assert not window.is_fresh(1000, "late")


def test_a_clock_that_goes_back_brings_no_message_back() -> None:
    clock = Clock()
    window = ReplayWindow(60, 100, clock)
    assert window.is_fresh(1000, "a")
    clock.now = 5000.0
    assert window.is_fresh(5000, "b")
    clock.now = 1001.0
    assert not window.is_fresh(1000, "a")
    assert window.is_fresh(1001, "c")


def test_of_many_threads_with_one_message_one_is_told_that_it_is_fresh(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    window = ReplayWindow(60, 10_000, Clock())
    start = threading.Barrier(8)
    fresh: list[int] = []

    def ask() -> None:
        start.wait(20)
        fresh.extend(index for index in range(500) if window.is_fresh(1000, f"n{index}"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(fresh) == list(range(500))
