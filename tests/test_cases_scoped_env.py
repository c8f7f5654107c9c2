"""The cases from the field that the scoped environment is for: 22 to 26, and 51."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar
from typing import Any, Protocol
from unittest import mock

import pytest

import otelctx
from otelctx import Mismatch

KEY, CRON, TASK, RUN = "CASE_SESSION_KEY", "CASE_CRON_SESSION", "CASE_TASK", "CASE_TASK_RUN"
APP: ContextVar[str] = ContextVar("app")


class Install(Protocol):
    def __call__(self, **settings: Any) -> None: ...


Scope = Callable[..., None]


@pytest.fixture
def scope(install: Install) -> Scope:
    def turn_on(mode: str = "repair", *, scoped: str = "scope") -> None:
        install(
            mode=mode,
            keys={"session": {"sources": [{"contextvar": f"{__name__}:APP", "empty": [""]}, {"env": KEY}]}},
            claim={"env": {"task_id": TASK}, "env_prefix": "CASE_TASK"},
            scoped_env={"mode": scoped, "names": [KEY, CRON]},
        )

    return turn_on


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The variables that the process was started with; after the test they are still there, and nothing else is."""
    variables: dict[str, str] = request.param
    os.environ.update(variables)
    yield variables
    otelctx.uninstall()
    left = {name: os.environ.pop(name, None) for name in (KEY, CRON, TASK, RUN)}
    assert {name: value for name, value in left.items() if value is not None} == variables


def started_with(**variables: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("process", [variables], indirect=True)


def really() -> dict[str, str]:
    held: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return {name: os.fsdecode(held[os.fsencode(name)]) for name in (KEY, CRON, TASK, RUN) if os.fsencode(name) in held}


def elsewhere(fn: Callable[[], Any]) -> Any:
    return Context().run(fn)


def turn(session: str, work: Callable[[], Any]) -> Any:
    """A turn of the application: it binds its key, and mirrors it where its fallback reads it."""

    def run() -> Any:
        APP.set(session)
        os.environ[KEY] = session
        return work()

    return elsewhere(run)


def env_of_child() -> dict[str, str]:
    child = subprocess.run(["env", "-0"], capture_output=True, check=True)
    variables = (os.fsdecode(line).partition("=") for line in child.stdout.split(b"\0") if line)
    return {name: value for name, _, value in variables if name.startswith("CASE_")}


@started_with()
@pytest.mark.usefixtures("process")
def test_case_22_a_worker_reads_its_own_key_though_another_session_wrote_last(scope: Scope) -> None:
    scope()
    with ThreadPoolExecutor(1) as pool:

        def as_a() -> str | None:
            turn("B", lambda: None)
            return pool.submit(os.environ.get, KEY).result()

        assert turn("A", as_a) == "A"
        assert pool.submit(os.environ.get, KEY).result() is None


@started_with()
@pytest.mark.usefixtures("process")
def test_case_22_observe_names_the_variable(scope: Scope, alerts: list[Mismatch]) -> None:
    scope("observe")

    def as_a() -> str | None:
        turn("B", lambda: None)
        return os.environ.get(KEY)

    assert turn("A", as_a) == "B"
    assert {(alert.reason, alert.source) for alert in alerts} == {
        ("raced", f"env:{KEY}"),
        ("foreign", f"env:{KEY}"),
    }
    del os.environ[KEY]


@started_with()
@pytest.mark.usefixtures("process")
def test_case_23_when_the_turns_have_ended_a_job_without_a_session_reads_nothing(scope: Scope) -> None:
    scope()
    turn("B", lambda: None)
    turn("A", lambda: None)
    assert elsewhere(lambda: os.environ.get(KEY)) is None
    with otelctx.cron_run("nightly"):
        assert os.environ.get(KEY) is None


@started_with()
@pytest.mark.usefixtures("process")
def test_case_24_what_a_cron_job_sets_and_never_clears_is_not_in_a_users_session(scope: Scope) -> None:
    scope()

    def job() -> str:
        with otelctx.cron_run("nightly"):
            os.environ[CRON] = "1"
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(os.environ.get, CRON).result() == "1"
            return os.environ[CRON]

    assert elsewhere(job) == "1"
    assert turn("A", lambda: os.environ.get(CRON)) is None
    assert turn("A", env_of_child) == {KEY: "A"}
    with otelctx.cron_run("nightly"):
        assert os.environ.get(CRON) is None


@started_with(CASE_SESSION_KEY="B", CASE_TASK="t1", CASE_TASK_RUN="7")
def test_case_25_a_childs_variable_says_the_key_of_the_context_that_started_it(
    scope: Scope, process: dict[str, str]
) -> None:
    scope()
    assert elsewhere(env_of_child)[KEY] == "B"

    def spawn() -> dict[str, str]:
        APP.set("A")
        return env_of_child()

    assert elsewhere(spawn)[KEY] == "A"
    with otelctx.bind(session="A"):
        os.environ[KEY] = "A.sub"
        assert env_of_child()[KEY] == "A.sub"
        explicit = subprocess.run(["env"], env={"PATH": os.environ["PATH"], KEY: "C"}, capture_output=True, check=True)
        assert f"{KEY}=C".encode() in explicit.stdout
    assert really() == process


@started_with(CASE_TASK="t1", CASE_TASK_RUN="7")
def test_case_26_a_shed_context_and_its_children_see_no_claim_and_the_process_keeps_it(
    scope: Scope, process: dict[str, str]
) -> None:
    scope()
    over, seen = threading.Event(), []

    def heartbeat() -> None:
        while not over.is_set():
            seen.append((os.environ.get(TASK), os.environ.get(RUN)))

    thread = threading.Thread(target=heartbeat)
    thread.start()
    try:
        with otelctx.shed_claim():
            for env in (None, dict(os.environ), os.environ.copy(), os.environ):
                child = subprocess.run(["env"], env=env, capture_output=True, check=True)
                assert b"CASE_TASK" not in child.stdout
            assert (os.environ.get(TASK), RUN in os.environ, otelctx.claim_state()) == (None, False, "shed")
            assert really() == process
    finally:
        over.set()
        thread.join()
    assert set(seen) == {("t1", "7")}
    holders = elsewhere(env_of_child)
    assert (holders[TASK], holders[RUN]) == ("t1", "7")


@started_with(CASE_SESSION_KEY="B", CASE_TASK="t1", CASE_TASK_RUN="7")
@pytest.mark.parametrize("enters_inside", [True, False])
def test_case_51_patch_dict_and_monkeypatch_across_a_bind_leave_the_real_environment_as_found(
    scope: Scope, process: dict[str, str], enters_inside: bool
) -> None:
    scope()
    whole = dict(os.environ)

    def straddle() -> None:
        patch, cleared = pytest.MonkeyPatch(), mock.patch.dict(os.environ, {CRON: "1"}, clear=True)

        def enter() -> None:
            patch.setenv(CRON, "patched")
            patch.setenv(KEY, "patched")
            cleared.start()

        def leave() -> None:
            cleared.stop()
            patch.undo()

        if enters_inside:
            with otelctx.bind(session="A"), otelctx.shed_claim():
                enter()
                assert really() == process
            leave()
        else:
            enter()
            with otelctx.bind(session="A"), otelctx.shed_claim():
                leave()
                assert (os.environ.get(TASK), os.environ.get(KEY)) == (None, "A")
        assert really() == process
        assert dict(os.environ) == whole

    elsewhere(straddle)
