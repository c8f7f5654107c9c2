"""What becomes of a fault of ours: it is counted, logged once, and reaches nobody's work."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from otelctx import faults, metrics
from otelctx.faults import internal_error, wrong_setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def nothing_logged_yet() -> Iterator[None]:
    faults.forget()
    yield
    faults.forget()


@pytest.fixture
def attach_handler() -> Iterator[Callable[[logging.Handler, str], None]]:
    attached: list[tuple[logging.Logger, logging.Handler]] = []

    def attach(handler: logging.Handler, name: str = "otelctx") -> None:
        attached.append((logging.getLogger(name), handler))
        attached[-1][0].addHandler(handler)

    yield attach
    for logger, handler in attached:
        logger.removeHandler(handler)


def errors(component: str) -> int:
    return metrics.error_counts().get(component, 0)


def python(script: str, *options: str) -> str:
    """Run a program of its own, where nothing is imported or set yet; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.stdout.strip()


def test_a_fault_is_counted_each_time_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    before = errors("test.fault")
    for _ in range(3):
        internal_error("test.fault", ValueError("bad"), "a thing does not work")
    internal_error("test.fault", KeyError("bad"), "a thing does not work")
    internal_error("test.fault", ValueError("bad"), "another thing does not work")
    assert errors("test.fault") == before + 5
    assert [(record.name, record.levelname) for record in caplog.records] == [("otelctx", "WARNING")] * 3
    assert "internal error in test.fault" in caplog.text
    assert "a thing does not work: ValueError" in caplog.text
    assert caplog.records[0].exc_info is not None


def test_a_wrong_setting_is_counted_each_time_and_logged_once_as_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    before = errors("test.setting")
    for _ in range(3):
        wrong_setting("test.setting", "a path leads nowhere")
    assert errors("test.setting") == before + 3
    assert caplog.messages == ["otelctx: a setting is wrong and left out: a path leads nowhere"]


def test_a_fault_never_raises_whatever_it_is_given_or_wherever_it_is_logged(
    attach_handler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    class Raising(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("the disk is full")

    monkeypatch.setattr(logging, "raiseExceptions", True)
    internal_error("test.unprintable", UnprintableError())
    attach_handler(Raising(), "otelctx")
    internal_error("test.raising", ValueError("bad"))
    internal_error("test.unhashable", None, ["no", "text"])  # type: ignore[arg-type]


def test_a_log_handler_that_has_a_new_fault_for_each_that_it_is_given_comes_to_an_end(attach_handler: Any) -> None:
    seen: list[str] = []

    class Faulty(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())
            internal_error("test.faulty", None, f"fault {len(seen)}")

    attach_handler(Faulty(), "otelctx")
    internal_error("test.faulty", None, "fault 0")
    assert len(seen) == 1
    internal_error("test.faulty", None, "fault x")
    assert any("fault 1" in message for message in seen)


def test_the_faults_that_are_remembered_are_bounded() -> None:
    for number in range(faults.REMEMBERED * 2):
        internal_error("test.many", None, str(number))
    assert len(faults._logged) == faults.REMEMBERED


def test_a_fault_while_logging_is_half_imported_is_logged_at_the_next_occasion() -> None:
    printed = python("""
        import sys
        from otelctx.faults import internal_error
        assert "threading" not in sys.modules and "logging" not in sys.modules

        class Finder:  # `logging` imports `threading`: the fault happens in the middle of its import
            def find_spec(self, name, path=None, target=None):
                if name == "threading":
                    internal_error("test", ValueError("bad"), "too early")
                return None

        sys.meta_path.insert(0, Finder())
        import logging
        sys.meta_path.pop(0)
        messages = []
        handler = logging.Handler()
        handler.handle = lambda record: messages.append(record.getMessage())
        logging.getLogger().addHandler(handler)
        assert messages == [] == logging.getLogger().filters
        internal_error("test", None, "later")
        print([message.partition("(")[2] for message in messages])
    """)
    assert printed == "['too early: ValueError)', 'later)']"
