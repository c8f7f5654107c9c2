"""What only says whose work it is (environment variables, getters), in the cases that people reported."""

from __future__ import annotations

import _thread
import asyncio
import importlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import pytest

import otelctx
from otelctx import ambient, faults, metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from otelctx import Mismatch
    from tests.conftest import Install

VARIABLE = "CASES_ENVIRONMENT_SESSION"
KEY: ContextVar[str] = ContextVar("KEY", default="")
IN_VARIABLE = {"contextvar": f"{__name__}:KEY", "empty": [""]}
IN_ENVIRONMENT = {"env": VARIABLE}
TIMEOUT = 20.0


def getter(name: str, **more: Any) -> dict[str, Any]:
    return {"getter": f"{__name__}:{name}", **more}


def keys(*sources: dict[str, Any]) -> dict[str, Any]:
    return {"session": {"sources": list(sources)}}


def approver(*_: object) -> str:
    """The gateway's own way to find whose approval this is: its variable, else what the process's environment says."""
    return KEY.get() or os.environ.get(VARIABLE, "")


@contextmanager
def turn_of(who: str) -> Iterator[None]:
    """A turn as such gateways run it: the key in a ContextVar, mirrored in the one environment."""
    token = KEY.set(who)
    os.environ[VARIABLE] = who
    try:
        yield
    finally:
        KEY.reset(token)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, "")  # so that it is what it was, after the test
    monkeypatch.delenv(VARIABLE)
    ambient.forget()
    faults.forget()
    yield
    ambient.forget()


# --- hops -------------------------------------------------------------------------------------------------------------


def by_submit(fn: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fn).result(TIMEOUT)


def by_map(fn: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return next(iter(pool.map(lambda _: fn(), [1])))


def by_thread(fn: Callable[[], Any]) -> Any:
    seen: Future[Any] = Future()
    thread = threading.Thread(target=lambda: seen.set_result(fn()))
    thread.start()
    thread.join(TIMEOUT)
    return seen.result(0)


def by_callback(fn: Callable[[], Any]) -> Any:
    seen: Future[Any] = Future()
    hold = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold.wait, TIMEOUT).add_done_callback(lambda _: seen.set_result(fn()))
        hold.set()
        return seen.result(TIMEOUT)


def by_thread_pool(fn: Callable[[], Any]) -> Any:
    with ThreadPool(1) as pool:
        return pool.apply(fn)


def by_loop(fn: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, fn)

    return asyncio.run(main())


HOPS = [by_submit, by_map, by_thread, by_callback, by_thread_pool, by_loop]
hops = pytest.mark.parametrize("hop", HOPS)


def nothing() -> None:
    return None


def overtaken(hop: Callable[..., Any]) -> tuple[str, str]:
    """A's turn and then B's, both mirrored in the environment; then the hop out of A's turn, and out of B's."""
    a_mirrored, b_mirrored = threading.Event(), threading.Event()
    found: dict[str, str] = {}

    def turn(who: str, mine: threading.Event, before: threading.Event | None, after: threading.Event | None) -> None:
        if before is not None:
            before.wait(TIMEOUT)
        with turn_of(who):
            mine.set()
            if after is not None:
                after.wait(TIMEOUT)
            found[who] = hop(approver)

    # Not `threading.Thread`, which is patched: the turns do not begin as anybody's.
    done = [threading.Event(), threading.Event()]

    def run(number: int, *arguments: Any) -> None:
        try:
            turn(*arguments)
        finally:
            done[number].set()

    _thread.start_new_thread(run, (0, "A", a_mirrored, None, b_mirrored))
    _thread.start_new_thread(run, (1, "B", b_mirrored, a_mirrored, None))
    assert all(event.wait(TIMEOUT) for event in done)
    return found["A"], found["B"]


# --- 22: one variable, two sessions -----------------------------------------------------------------------------------


@hops
def test_without_otelctx_as_worker_takes_bs_key_from_the_environment(hop: Callable[..., Any]) -> None:
    assert overtaken(hop) == ("B", "B")


@hops
@pytest.mark.parametrize("sources", [[IN_VARIABLE, IN_ENVIRONMENT], [IN_VARIABLE]])
def test_in_repair_as_worker_finds_a_although_b_wrote_the_environment_last(
    install: Install, alerts: list[Mismatch], hop: Callable[..., Any], sources: list[dict[str, Any]]
) -> None:
    install(keys=keys(*sources))
    assert overtaken(hop) == ("A", "B")
    assert alerts == []


@hops
def test_observe_changes_nothing_and_its_alert_names_the_variable(
    install: Install, alerts: list[Mismatch], hop: Callable[..., Any]
) -> None:
    install(mode="observe", keys=keys(IN_VARIABLE, IN_ENVIRONMENT))
    assert overtaken(hop) == ("B", "B")
    kind = {by_thread: "thread", by_callback: "callback"}.get(hop, "executor")
    assert [
        (alert.key, alert.reason, alert.expected, alert.observed, alert.source, alert.action)
        for alert in alerts
        if alert.hop_kind == kind
    ] == [("session", "foreign", "A", "B", f"env:{VARIABLE}", "observed")]
    assert {alert.reason for alert in alerts} == {"foreign"}


@hops
def test_observe_names_the_variable_behind_a_getter_that_only_hands_it_on(
    install: Install, alerts: list[Mismatch], hop: Callable[..., Any]
) -> None:
    install(mode="observe", keys=keys(IN_VARIABLE, getter("approver", empty=[""]), IN_ENVIRONMENT))
    assert overtaken(hop) == ("B", "B")
    assert {alert.source for alert in alerts} == {f"env:{VARIABLE}"}


def test_observe_names_the_getter_where_no_declared_source_lies_behind_it(
    install: Install, alerts: list[Mismatch]
) -> None:
    install(mode="observe", keys=keys(IN_VARIABLE, getter("approver", empty=[""])))
    assert overtaken(by_submit) == ("B", "B")
    assert [(alert.reason, alert.source) for alert in alerts] == [("foreign", f"getter:{__name__}:approver")]


def test_enforce_does_not_run_the_work_where_the_environment_read_alone_says_another_key(
    install: Install, alerts: list[Mismatch]
) -> None:
    install(mode="enforce", keys=keys(IN_VARIABLE, IN_ENVIRONMENT))
    ran: list[object] = []
    with turn_of("A"), ThreadPoolExecutor(1) as pool:
        os.environ[VARIABLE] = "B"
        with pytest.raises(otelctx.MismatchError) as raised:
            pool.submit(ran.append, 1).result(TIMEOUT)
    assert ran == []
    assert raised.value.mismatch.source == f"env:{VARIABLE}"
    assert [(alert.reason, alert.action) for alert in alerts] == [("foreign", "raised")]


@pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
def test_an_environment_that_agrees_is_no_alert(install: Install, alerts: list[Mismatch], mode: str) -> None:
    install(mode=mode, keys=keys(IN_VARIABLE, IN_ENVIRONMENT))
    with turn_of("A"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(approver).result(TIMEOUT) == "A"
    assert alerts == []


@pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
@hops
def test_work_of_nobody_sees_the_environment_as_ever_and_that_is_no_alert(
    install: Install, alerts: list[Mismatch], mode: str, hop: Callable[..., Any]
) -> None:
    install(mode=mode, keys=keys(IN_VARIABLE, IN_ENVIRONMENT))
    os.environ[VARIABLE] = "B"
    assert hop(approver) == "B"
    assert hop(lambda: otelctx.get("session")) is None
    assert alerts == []


@pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
def test_the_environment_is_left_alone(install: Install, mode: str) -> None:
    install(mode=mode, keys=keys(IN_VARIABLE, IN_ENVIRONMENT))
    os.environ[VARIABLE] = "A"
    before = dict(os.environ)
    token = KEY.set("A")
    try:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: dict(os.environ)).result(TIMEOUT) == before
    finally:
        KEY.reset(token)
    assert dict(os.environ) == before


# --- a getter that raises, blocks, or hops itself ---------------------------------------------------------------------


def raises() -> str:
    raise ValueError("the getter's own fault")


def exits() -> str:
    raise SystemExit("the getter's own fault")


lock = threading.Lock()


def waits_for_a_lock() -> str:
    with lock:
        return "never in time"


class Odd:
    """Cannot be compared, shown or made a string."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        raise ValueError("not a string")

    __repr__ = __str__


def answers_oddly() -> Odd:
    return Odd()


asked: list[int] = []


def starts_a_thread() -> str:
    asked.append(1)
    answer: list[str] = []
    thread = threading.Thread(target=lambda: answer.append(os.environ.get(VARIABLE, "")))
    thread.start()
    thread.join(TIMEOUT)
    return answer[0]


def submits() -> str:
    asked.append(1)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(os.environ.get, VARIABLE, "").result(TIMEOUT)


def errors(component: str) -> int:
    return metrics.error_counts().get(component, 0)


@pytest.mark.parametrize("name", ["raises", "exits"])
@pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
def test_work_runs_whatever_a_getter_raises_and_it_is_logged_once(
    install: Install, caplog: pytest.LogCaptureFixture, mode: str, name: str
) -> None:
    install(mode=mode, keys=keys(IN_VARIABLE, getter(name)))
    before = errors("getter")
    with caplog.at_level(logging.WARNING, "otelctx"), turn_of("A"), ThreadPoolExecutor(1) as pool:
        assert [pool.submit(len, "four").result(TIMEOUT) for _ in range(3)] == [4, 4, 4]
    complaints = [record for record in caplog.records if "internal error" in record.message]
    if mode == "repair":  # nothing asks it
        assert (errors("getter") - before, complaints) == (0, [])
    else:
        assert errors("getter") - before >= 1
        assert [f"getter:{__name__}:{name}" in record.message for record in complaints] == [True]


def test_a_getter_that_raises_does_not_hide_the_next_source(install: Install, alerts: list[Mismatch]) -> None:
    install(mode="observe", keys=keys(IN_VARIABLE, getter("raises"), IN_ENVIRONMENT))
    assert overtaken(by_submit) == ("B", "B")
    assert [(alert.reason, alert.source) for alert in alerts] == [("foreign", f"env:{VARIABLE}")]


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_work_runs_although_a_getter_waits_for_a_lock_that_its_caller_holds(
    install: Install, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    install(mode=mode, keys=keys(IN_VARIABLE, getter("waits_for_a_lock")))
    before = errors("getter")
    with caplog.at_level(logging.WARNING, "otelctx"), turn_of("A"), ThreadPoolExecutor(1) as pool:
        with lock:
            began = time.monotonic()
            assert [pool.submit(len, "four").result(TIMEOUT) for _ in range(20)] == [4] * 20
            took = time.monotonic() - began
    # Twenty hops wait for one answer: it is not asked again.
    assert took < 4 * ambient.PATIENCE
    assert errors("getter") - before == 1
    assert ["internal error" in record.message for record in caplog.records if record.name == "otelctx"].count(
        True
    ) == 1


def test_a_getter_that_waited_is_asked_again_once_otelctx_is_installed_anew(
    install: Install, alerts: list[Mismatch]
) -> None:
    install(mode="observe", keys=keys(IN_VARIABLE, getter("waits_for_a_lock")))
    with turn_of("A"), ThreadPoolExecutor(1) as pool:
        with lock:
            pool.submit(nothing).result(TIMEOUT)
        otelctx.uninstall()
        install(mode="observe", keys=keys(IN_VARIABLE, getter("waits_for_a_lock")))
        pool.submit(nothing).result(TIMEOUT)
    assert [alert.observed for alert in alerts if alert.reason == "foreign"] == ["never in time"]


@pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
def test_work_runs_whatever_a_getter_answers(install: Install, alerts: list[Mismatch], mode: str) -> None:
    install(mode=mode, keys=keys(IN_VARIABLE, getter("answers_oddly", empty=[""])))
    with turn_of("A"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(len, "four").result(TIMEOUT) == 4
    assert [alert for alert in alerts if alert.reason != "lost"] == []


@pytest.mark.parametrize("name", ["starts_a_thread", "submits"])
@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_a_getter_that_hops_itself_is_asked_once_for_each_hop(install: Install, mode: str, name: str) -> None:
    asked.clear()
    install(mode=mode, keys=keys(IN_VARIABLE, getter(name, empty=[""])))
    before = errors("getter")
    with turn_of("A"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(len, "four").result(TIMEOUT) == 4
    assert len(asked) == 1
    assert errors("getter") == before


def test_a_getter_that_is_not_there_is_one_wrong_setting_and_the_work_runs(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install(mode="observe", keys=keys(IN_VARIABLE, getter("no_such_function"), {"getter": "no.such.module:function"}))
    with caplog.at_level(logging.WARNING, "otelctx"), turn_of("A"), ThreadPoolExecutor(1) as pool:
        assert [pool.submit(len, "four").result(TIMEOUT) for _ in range(3)] == [4, 4, 4]
    complaints = [record for record in caplog.records if "no_such_function" in record.message]
    assert len(complaints) == 1
    assert complaints[0].message.startswith("otelctx: a setting is wrong and left out: ")
    assert complaints[0].exc_info is None


def test_a_getter_whose_module_is_just_being_imported_is_no_wrong_setting(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "app_of_the_getter.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "import otelctx\n"
        "with otelctx.bind(session='A'), ThreadPoolExecutor(1) as pool:\n"
        "    pool.submit(len, 'four').result()\n"
        "def current(): return None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    install(mode="observe", keys=keys(IN_VARIABLE, {"getter": "app_of_the_getter:current"}))
    before = errors("getter")
    importlib.import_module("app_of_the_getter")
    assert errors("getter") == before
    assert "app_of_the_getter:current" not in caplog.text


def test_a_getter_is_asked_in_the_workers_context_and_with_its_arguments(
    install: Install, alerts: list[Mismatch]
) -> None:
    install(mode="observe", keys=keys(IN_VARIABLE, getter("sees_worker", kwargs={"otherwise": "nothing"})))
    with turn_of("A"), ThreadPoolExecutor(1, initializer=WORKER.set, initargs=("worker's",)) as pool:
        pool.submit(nothing).result(TIMEOUT)
    assert [alert.observed for alert in alerts] == ["worker's and nothing"]


WORKER: ContextVar[str] = ContextVar("WORKER")


def sees_worker(otherwise: str) -> str:
    return f"{WORKER.get('?')} and {otherwise}"


def test_a_source_that_its_module_turns_out_not_to_have_is_told_once_when_the_module_has_run(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "app_of_the_source.py").write_text(
        "from contextvars import ContextVar\nCURRENT = ContextVar('CURRENT')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    install(keys={"session": {"sources": [{"contextvar": "app_of_the_source:CURENT"}]}})
    assert caplog.text == ""
    importlib.import_module("app_of_the_source")
    assert caplog.text.count("app_of_the_source:CURENT is not there") == 1
    assert "a setting is wrong" in caplog.text
    assert "has no attribute 'CURENT'; did you mean 'CURRENT'?" in caplog.text
    otelctx.capture()
    assert caplog.text.count("is not there") == 1


# --- a key that an operator keeps from child processes ----------------------------------------------------------------


def child(**options: Any) -> tuple[str | None, str | None]:
    """What a child process has for the key: in the declared variable, and in its baggage."""
    program = f"import json, os; print(json.dumps([os.environ.get({VARIABLE!r}), os.environ.get('BAGGAGE')]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, **options)
    variable, baggage = json.loads(done.stdout)
    return variable, baggage


@pytest.mark.parametrize("wanted", ["shed", "mint"])
@pytest.mark.parametrize("scoped", ["off", "scope"])
@pytest.mark.parametrize("given", [False, True])
def test_a_key_that_is_shed_at_child_processes_is_not_shown_to_them(
    install: Install, alerts: list[Mismatch], wanted: str, scoped: str, given: bool
) -> None:
    declared = keys(IN_VARIABLE, IN_ENVIRONMENT)
    declared["session"]["policy"] = {"subprocess": wanted}
    install(keys=declared, subprocess={"carrier": True}, scoped_env={"mode": scoped, "names": [VARIABLE]})
    with turn_of("A"), otelctx.bind(session="A"):
        assert child(**({"env": dict(os.environ)} if given else {})) == (None, None)
        assert child(env={**os.environ, VARIABLE: "on purpose"}) == ("on purpose", None)
        assert os.environ[VARIABLE] == "A"
    assert alerts == []


def test_in_observe_a_key_that_is_to_be_shed_at_child_processes_is_told_of(
    install: Install, alerts: list[Mismatch]
) -> None:
    declared = keys(IN_VARIABLE, IN_ENVIRONMENT)
    declared["session"]["policy"] = {"subprocess": "shed"}
    install(mode="observe", keys=declared)
    with turn_of("A"):
        assert child() == ("A", None)
    assert [(one.reason, one.expected, one.observed, one.hop_kind) for one in alerts] == [
        ("leaked", None, "A", "subprocess")
    ]


def test_a_service_thread_has_no_policy(install: Install) -> None:
    with pytest.raises(otelctx.ConfigError, match=r"keys\.session\.policy\.service"):
        install(keys={"session": {"policy": {"service": "inherit"}}})
