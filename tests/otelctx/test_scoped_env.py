"""The scoped environment: what each context sees and writes, by all ways of reading and writing at once."""

from __future__ import annotations

import asyncio
import copy
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from itertools import count, product
from types import FrameType
from typing import Any, Protocol
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import otelctx
from otelctx import Claim, Mismatch, env_view, flow, keys, scoped_env

KEY, TASK, RUN, MODE, FLAG = "APP_SESSION_KEY", "APP_TASK", "APP_TASK_RUN", "APP_TASK_MODE", "APP_FLAG"
DECLARED = (KEY, TASK, RUN, FLAG)
APP: ContextVar[str] = ContextVar("app")

SETTINGS: dict[str, Any] = {
    "keys": {"session": {"sources": [{"contextvar": f"{__name__}:APP", "empty": [""]}, {"env": KEY}]}},
    "claim": {"env": {"task_id": TASK}, "env_prefix": "APP_TASK", "behaviour_only": [MODE]},
}


class Install(Protocol):
    def __call__(self, **settings: Any) -> None: ...


class Scope(Protocol):
    def __call__(self, mode: str = "scope", *, hide_claim: Any = "auto", **settings: Any) -> None: ...


def declared(mode: str = "scope", *, hide_claim: Any = "auto") -> dict[str, Any]:
    return {**SETTINGS, "scoped_env": {"mode": mode, "hide_claim": hide_claim, "names": [KEY, FLAG]}}


@pytest.fixture
def scope(install: Install) -> Scope:
    def turn_on(mode: str = "scope", *, hide_claim: Any = "auto", **settings: Any) -> None:
        install(**{**declared(mode, hide_claim=hide_claim), **settings})

    return turn_on


@pytest.fixture(autouse=True)
def _found() -> Iterator[None]:
    """The variables are not there at first, and the real environment is after the test what it was before."""
    found = real()
    yield
    otelctx.uninstall()
    changing = {b"PYTEST_CURRENT_TEST": b""}
    left = real()
    data().update(found)
    for extra in left.keys() - found.keys():
        del data()[extra]
    for name in DECLARED:
        os.unsetenv(name)
    assert left | changing == found | changing


def data() -> dict[bytes, bytes]:
    held: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return held


def real() -> dict[bytes, bytes]:
    """The real environment, byte for byte."""
    return dict(data())


def really(name: str) -> str | None:
    value = data().get(os.fsencode(name))
    return None if value is None else os.fsdecode(value)


def c_getenv(name: str) -> str | None:
    """What C, and so a child that gets no environment of its own, has."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value = getenv(os.fsencode(name))
    return None if value is None else os.fsdecode(value)


@contextmanager
def process_has(**variables: str) -> Iterator[None]:
    """Variables that the process was started with; otelctx is off when they go."""
    os.environ.update(variables)
    try:
        yield
    finally:
        otelctx.uninstall()
        for name in variables:
            os.environ.pop(name, None)


def seen(name: str) -> str | None:
    """What the current context sees in `name`, by every way there is, which all agree."""
    value = os.environ.get(name)
    raw = None if value is None else os.fsencode(value)
    whole, raw_whole = dict(os.environ), dict(os.environb)
    assert os.getenv(name) == value
    assert os.getenvb(os.fsencode(name)) == raw
    assert os.environb.get(os.fsencode(name)) == raw
    assert (name in os.environ, os.fsencode(name) in os.environb) == (value is not None, value is not None)
    assert (name in list(os.environ), name in os.environ.keys()) == (value is not None, value is not None)  # noqa: SIM118
    assert len(os.environ) == len(list(os.environ)) == len(whole) == len(os.environb) == len(raw_whole)
    assert whole.get(name) == os.environ.copy().get(name) == dict(os.environ.items()).get(name) == value
    assert raw_whole.get(os.fsencode(name)) == raw
    assert (os.environ | {}).get(name) == ({} | os.environ).get(name) == value
    assert (f"{name!r}: {value!r}" in repr(os.environ)) == (value is not None)
    assert (repr(os.fsencode(name)) in repr(os.environb)) == (value is not None)
    assert os.environ == whole
    assert sorted(os.environ.values()) == sorted(whole.values())
    assert copy.copy(os.environ).get(name) == value
    if value is None:
        with pytest.raises(KeyError, match=name) as raised:
            os.environ[name]
        assert raised.value.args == (name,)
        assert raised.value.__suppress_context__ or raised.value.__context__ is None
    else:
        assert os.environ[name] == value
        assert os.environ.setdefault(name, "other") == value
    return value


def in_context(fn: Callable[[], Any]) -> Any:
    """Call `fn` in an empty context: as another part of the program, which nobody started from here."""
    return Context().run(fn)


# --- off -------------------------------------------------------------------------------------------------------------


def test_nothing_is_patched_while_it_is_off(scope: Scope) -> None:
    before = dict(vars(os._Environ)), os.environ, os.environb
    scope("off")
    assert (dict(vars(os._Environ)), os.environ, os.environb) == before
    with otelctx.bind(session="A"):
        os.environ[FLAG] = "1"
    assert os.environ.pop(FLAG) == "1"


@pytest.mark.parametrize("mode", ["observe", "scope"])
def test_every_attribute_is_what_it_was_after_uninstall(scope: Scope, mode: str) -> None:
    before, kept = dict(vars(os._Environ)), (os.environ, os.environb)
    functions = {name: getattr(os, name) for name in dir(os)}
    scope(mode)
    assert (os.environ, os.environb) == kept
    assert os.environ is kept[0]
    assert vars(os._Environ)["__getitem__"] is not before["__getitem__"]
    otelctx.uninstall()
    after = dict(vars(os._Environ))
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert {name: getattr(os, name) for name in dir(os)} == functions


def test_a_wrapper_that_somebody_put_over_ours_does_nothing_after_uninstall(scope: Scope) -> None:
    original = os._Environ.__getitem__
    scope()
    ours = os._Environ.__getitem__

    def theirs(self: Any, key: Any) -> Any:
        return ours(self, key)

    os._Environ.__getitem__ = theirs  # type: ignore[method-assign]
    try:
        otelctx.uninstall()
        with process_has(**{FLAG: "real"}), otelctx.bind(session="A"):
            assert os.environ[FLAG] == "real"
    finally:
        os._Environ.__getitem__ = original  # type: ignore[method-assign]


def test_a_wrapper_of_an_earlier_installation_does_not_write_twice(scope: Scope) -> None:
    original = os._Environ.__setitem__
    scope()
    ours = os._Environ.__setitem__

    def theirs(self: Any, key: Any, value: Any) -> None:
        ours(self, key, value)

    def write() -> int:
        os.environ[FLAG] = "1"
        view = env_view.VIEW.get()
        return 0 if view is None else len(view.open[FLAG])

    os._Environ.__setitem__ = theirs  # type: ignore[method-assign]
    try:
        otelctx.uninstall()
        scope()
        assert in_context(write) == 1
        otelctx.uninstall()
        del os.environ[FLAG]
    finally:
        os._Environ.__setitem__ = original  # type: ignore[method-assign]


def test_a_view_of_an_earlier_installation_does_not_come_back(scope: Scope) -> None:
    scope()
    with otelctx.bind(session="A"):
        os.environ[FLAG] = "1"
    otelctx.uninstall()
    scope()
    with otelctx.bind(session="A"):
        assert seen(FLAG) is None


def test_otelctxs_own_observe_changes_nothing_that_the_application_sees(scope: Scope) -> None:
    otelctx.install({}, mode="observe", **declared())
    with otelctx.bind(session="A"):
        os.environ[FLAG] = "1"
        assert really(FLAG) == "1"
        del os.environ[FLAG]


# --- one context -----------------------------------------------------------------------------------------------------


def test_a_write_is_read_back_by_its_context_and_never_reaches_the_real_environment(scope: Scope) -> None:
    scope()
    found = real()
    with otelctx.bind(session="A"):
        os.environ[FLAG] = "1"
        assert (seen(FLAG), in_context(lambda: seen(FLAG))) == ("1", None)
        os.environ |= {FLAG: "2"}
        assert seen(FLAG) == "2"
        os.environb[os.fsencode(FLAG)] = b"\xff3"
        assert seen(FLAG) == os.fsdecode(b"\xff3")
        assert os.environ.pop(FLAG) == os.fsdecode(b"\xff3")
        assert (seen(FLAG), os.environ.pop(FLAG, "none")) == (None, "none")
        assert os.environ.setdefault(FLAG, "4") == "4"
        assert real() == found
    assert (seen(FLAG), real()) == (None, found)


def test_a_deletion_hides_the_real_value_from_its_context_alone(scope: Scope) -> None:
    with process_has(**{FLAG: "real"}):
        scope()
        with otelctx.bind(session="A"):
            assert seen(FLAG) == "real"
            del os.environ[FLAG]
            assert (seen(FLAG), in_context(lambda: seen(FLAG))) == (None, "real")
            with pytest.raises(KeyError):
                del os.environ[FLAG]
        assert seen(FLAG) == "real"


def test_a_context_without_an_identity_reads_and_writes_the_real_environment(scope: Scope) -> None:
    scope()
    os.environ[FLAG] = "1"
    assert (really(FLAG), c_getenv(FLAG)) == ("1", "1")
    assert in_context(lambda: seen(FLAG)) == "1"
    del os.environ[FLAG]
    assert really(FLAG) is None
    with pytest.raises(KeyError):
        del os.environ[FLAG]


def test_a_key_in_the_environment_alone_is_no_identity(scope: Scope) -> None:
    with process_has(**{KEY: "cli"}):
        scope()
        os.environ[FLAG] = "1"
        assert really(FLAG) == "1"
        del os.environ[FLAG]


def test_the_applications_own_variable_is_an_identity(scope: Scope) -> None:
    scope()

    def as_session() -> None:
        APP.set("A")
        os.environ[FLAG] = "1"
        assert (seen(FLAG), really(FLAG)) == ("1", None)
        APP.set("")
        assert seen(FLAG) is None
        APP.set("A")
        assert seen(FLAG) == "1"

    in_context(as_session)


def test_a_view_of_one_identity_is_not_seen_under_another(scope: Scope) -> None:
    scope()
    with otelctx.bind(session="A"):
        os.environ[FLAG] = "A's"
        with otelctx.bind(session="B"):
            assert seen(FLAG) is None
            os.environ[FLAG] = "B's"
            assert seen(FLAG) == "B's"
        assert seen(FLAG) == "A's"
    with otelctx.bind(session="B"):
        assert seen(FLAG) == "B's"


def test_a_source_of_a_key_says_the_contexts_own_key_until_it_is_written(scope: Scope) -> None:
    with process_has(**{KEY: "stale"}):
        scope()
        with otelctx.bind(session="A"):
            assert seen(KEY) == "A"
            os.environ[KEY] = "A.sub"
            assert seen(KEY) == "A.sub"
            del os.environ[KEY]
            assert seen(KEY) is None
        assert seen(KEY) == "stale"


def test_a_minted_key_is_not_in_the_environment_and_the_old_one_does_not_come_back(
    scope: Scope, alerts: list[Mismatch]
) -> None:
    with process_has(**{KEY: "A"}):
        scope()
        with otelctx.bind(session="A"), otelctx.cron_run("nightly"):
            assert seen(KEY) is None
        assert [alert.reason for alert in alerts] == []


def test_another_sessions_leftover_is_not_seen_by_a_context_that_has_no_such_key(scope: Scope) -> None:
    scope(keys={**SETTINGS["keys"], "tenant": {}})
    with otelctx.bind(session="A"):
        pass
    in_context(lambda: os.environ.__setitem__(KEY, "A"))
    with otelctx.bind(tenant="T"):
        assert seen(KEY) is None
    in_context(lambda: os.environ.__delitem__(KEY))


@pytest.mark.parametrize("bad", [3, b"1", None])
def test_a_value_that_is_no_string_is_refused_as_it_is_outside(scope: Scope, bad: Any) -> None:
    scope()

    def error() -> str:
        with pytest.raises(TypeError) as raised:
            os.environ[FLAG] = bad
        return str(raised.value)

    outside = error()
    with otelctx.bind(session="A"):
        assert error() == outside
        with pytest.raises(ValueError, match="null byte"):
            os.environ[FLAG] = "a\0b"
        assert seen(FLAG) is None


@pytest.mark.parametrize("bad", [3, b"APP_FLAG", None, ["APP_FLAG"]])
def test_a_key_that_is_no_string_is_refused_as_it_is_outside(scope: Scope, bad: Any) -> None:
    def errors() -> list[str]:
        with pytest.raises(TypeError) as reading:
            os.environ[bad]
        with pytest.raises(TypeError) as deleting:
            del os.environ[bad]
        with pytest.raises(TypeError) as writing:
            os.environ[bad] = "1"
        return [str(raised.value) for raised in (reading, deleting, writing)]

    expected = errors()
    scope()
    with otelctx.bind(session="A"):
        assert errors() == expected


def test_a_subclass_of_str_means_the_same_name(scope: Scope) -> None:
    class Name(str):
        __slots__ = ()

    scope()
    with otelctx.bind(session="A"):
        os.environ[Name(FLAG)] = Name("1")
        assert (seen(FLAG), os.environ[Name(FLAG)], really(FLAG)) == ("1", "1", None)


def test_emptying_by_popitem_comes_to_an_end_and_leaves_what_is_declared(scope: Scope) -> None:
    with process_has(**{FLAG: "real", KEY: "stale"}):
        scope()
        undeclared = {name: value for name, value in os.environ.items() if name not in DECLARED}
        with otelctx.bind(session="A"):
            while os.environ:
                os.environ.popitem()
            assert (seen(FLAG), seen(KEY), len(os.environ)) == (None, None, 0)
            os.environ.update(undeclared)
        assert (really(FLAG), really(KEY)) == ("real", "stale")


def test_names_that_are_not_declared_are_the_processs(scope: Scope) -> None:
    scope()
    with otelctx.bind(session="A"):
        os.environ["APP_OTHER"] = "1"
    assert os.environ.pop("APP_OTHER") == "1"


def test_an_error_of_ours_leaves_the_environment_working(scope: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    with process_has(**{FLAG: "real"}):
        scope()

        def broken(*_: Any) -> Any:
            raise RuntimeError("broken")

        with otelctx.bind(session="A"):
            with monkeypatch.context() as patch:
                patch.setattr(scoped_env, "place_of", broken)
                with mock.patch("otelctx.faults.internal_error") as told:
                    assert os.environ[FLAG] == "real"
                    assert FLAG in list(os.environ)
                    assert len(os.environ) == len(data())
                assert told.call_count >= 3


# --- the claim -------------------------------------------------------------------------------------------------------


def test_a_shed_claims_variables_are_hidden_and_what_is_behaviour_only_is_not(scope: Scope) -> None:
    with process_has(**{TASK: "t1", RUN: "7", MODE: "fast"}):
        scope()
        with otelctx.shed_claim():
            assert (seen(TASK), seen(RUN), seen(MODE)) == (None, None, "fast")
            assert in_context(lambda: (seen(TASK), otelctx.is_claim_holder())) == ("t1", True)
        assert (seen(TASK), seen(RUN)) == ("t1", "7")


@pytest.mark.parametrize(
    ("hide", "predicate", "hidden"),
    [("auto", None, True), ("auto", f"{__name__}:is_worker", False), (True, f"{__name__}:is_worker", True),
     (False, None, False)],
)  # fmt: skip
def test_hide_claim_says_whether_a_shed_claims_variables_are_hidden(
    scope: Scope, hide: Any, predicate: str | None, hidden: bool
) -> None:
    with process_has(**{TASK: "t1"}):
        claim = {**SETTINGS["claim"], **({"predicate": predicate} if predicate else {})}
        scope(hide_claim=hide, claim=claim)
        with otelctx.shed_claim():
            assert seen(TASK) == (None if hidden else "t1")


def is_worker() -> bool:
    return True


def test_a_variable_of_the_claims_that_appears_later_is_declared_by_its_prefix(scope: Scope) -> None:
    scope()
    os.environ["APP_TASK_LATER"] = "1"
    with otelctx.shed_claim():
        assert seen("APP_TASK_LATER") is None
        os.environ["APP_TASK_OWN"] = "2"
        assert (seen("APP_TASK_OWN"), really("APP_TASK_OWN")) == ("2", None)
    del os.environ["APP_TASK_LATER"]


@pytest.mark.skipif(not hasattr(os, "reload_environ"), reason="new in 3.14")
def test_a_variable_of_the_claims_that_a_reload_brings_is_hidden(scope: Scope) -> None:
    scope()
    before = set(os.environ)
    os.putenv("APP_TASK_LATER", "1")
    os.reload_environ()  # type: ignore[attr-defined,unused-ignore]
    with otelctx.shed_claim():
        assert seen("APP_TASK_LATER") is None
    assert os.environ["APP_TASK_LATER"] == "1"
    for name in set(os.environ) - before:  # and what else C had, from readline for one
        del os.environ[name]


def test_a_sessions_own_variables_stay_its_own_while_it_sheds_the_claim(scope: Scope) -> None:
    with process_has(**{TASK: "t1"}):
        scope()
        with otelctx.bind(session="A"):
            os.environ[FLAG] = "A's"
            os.environ[TASK] = "t2"
            with otelctx.shed_claim():
                assert (seen(FLAG), seen(TASK)) == ("A's", None)
                with otelctx.grant_claim(Claim("t3")):
                    assert (seen(FLAG), seen(TASK)) == ("A's", "t3")
                assert seen(TASK) is None
            assert seen(TASK) == "t2"
        assert seen(TASK) == "t1"


# --- other contexts --------------------------------------------------------------------------------------------------


def by_pool(fn: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fn).result()


def by_warm_pool(fn: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1, initializer=lambda: WARM.set("warm")) as pool:
        return pool.submit(fn).result()


WARM: ContextVar[str] = ContextVar("warm")


def by_thread(fn: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(fn()))
    thread.start()
    thread.join()
    return answers[0]


def by_task(fn: Callable[[], Any]) -> Any:
    async def work() -> Any:
        return fn()

    async def main() -> Any:
        return await asyncio.create_task(work())

    return asyncio.run(main())


def by_snapshot(fn: Callable[[], Any]) -> Any:
    snapshot = otelctx.capture()
    return in_context(lambda: snapshot.run(fn))


def by_attached_snapshot(fn: Callable[[], Any]) -> Any:
    snapshot = otelctx.capture()

    def attached() -> Any:
        with snapshot.attached():
            return fn()

    return in_context(attached)


HOPS = [by_pool, by_warm_pool, by_thread, by_task, by_snapshot, by_attached_snapshot]


@pytest.mark.parametrize("hop", HOPS)
def test_work_that_a_context_starts_sees_its_view_and_what_it_writes_stays_its_own(
    scope: Scope, hop: Callable[..., Any]
) -> None:
    with process_has(**{FLAG: "real"}):
        scope()

        def work() -> tuple[str | None, str | None]:
            before = seen(FLAG)
            os.environ[FLAG] = "the worker's"
            return before, seen(FLAG)

        with otelctx.bind(session="A"):
            otelctx.capture()
            os.environ[FLAG] = "A's"
            assert hop(work) == ("A's", "the worker's")
            os.environ[FLAG] = "A's too"
            assert hop(work) == ("A's too", "the worker's")
            assert seen(FLAG) == "A's too"
            del os.environ[FLAG]
            assert hop(work) == (None, "the worker's")
        assert hop(lambda: seen(FLAG)) == "real"


def test_the_next_task_on_a_worker_sees_nothing_of_the_last_ones_view(scope: Scope) -> None:
    scope()
    for initializer in (None, lambda: WARM.set("warm")):
        with ThreadPoolExecutor(1, initializer=initializer) as pool:
            for session in ("A", "B", "A"):
                with otelctx.bind(session=session):
                    assert pool.submit(seen, FLAG).result() is None
                    pool.submit(os.environ.__setitem__, FLAG, session).result()
            assert pool.submit(seen, FLAG).result() is None


def test_work_cannot_undo_what_its_starter_wrote_to_the_real_environment(scope: Scope) -> None:
    scope()
    os.environ[FLAG] = "cli"
    for hop in HOPS:
        with otelctx.bind(session="A"):
            assert hop(lambda: os.environ.pop(FLAG)) == "cli"
        assert really(FLAG) == "cli", hop
    del os.environ[FLAG]


def test_a_cron_job_begins_with_no_view_and_cannot_undo_what_was_written_outside_it(scope: Scope) -> None:
    scope()
    os.environ[FLAG] = "1"
    with otelctx.cron_run("nightly"):
        del os.environ[FLAG]
        assert seen(FLAG) is None
    assert seen(FLAG) == "1"
    del os.environ[FLAG]


def test_a_view_keeps_no_context_alive(scope: Scope) -> None:
    import weakref

    class Request:
        pass

    held: ContextVar[Request] = ContextVar("held")
    scope()
    snapshots = []

    def turn() -> weakref.ref[Request]:
        request = Request()
        held.set(request)
        with otelctx.bind(session="A"):
            os.environ[FLAG] = "1"
            snapshots.append(otelctx.capture())
        return weakref.ref(request)

    gone = in_context(turn)
    assert gone() is None
    assert in_context(lambda: snapshots[0].run(seen, FLAG)) == "1"


def test_what_a_context_remembers_is_bounded(scope: Scope) -> None:
    scope()

    def turns() -> tuple[int, int]:
        for number in range(1000):
            with otelctx.bind(session=f"S{number}"):
                os.environ[FLAG] = str(number)
        view = env_view.VIEW.get()
        assert view is not None
        return len(view.decided), len(view.open[FLAG])

    places, writes = in_context(turns)
    assert places <= env_view.PLACES
    assert writes <= env_view.WRITES


# --- undo ------------------------------------------------------------------------------------------------------------

Bracket = Callable[[], AbstractContextManager[Any]]


@contextmanager
def by_monkeypatch(act: Callable[[pytest.MonkeyPatch], None]) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    act(patch)
    yield
    patch.undo()


def _set_all(patch: pytest.MonkeyPatch) -> None:
    for name in DECLARED:
        patch.setenv(name, "patched")


def _set_twice(patch: pytest.MonkeyPatch) -> None:
    _set_all(patch)
    patch.setenv(FLAG, "patched again")
    patch.delenv(FLAG)


def _delete_all(patch: pytest.MonkeyPatch) -> None:
    for name in DECLARED:
        patch.delenv(name, raising=False)


@contextmanager
def by_hand() -> Iterator[None]:
    """Save single variables, and put them back."""
    saved = {name: os.environ.get(name) for name in DECLARED}
    for name in DECLARED:
        os.environ[name] = "patched"
    yield
    for name, value in saved.items():
        if value is None:
            with suppress(KeyError):
                del os.environ[name]
        else:
            os.environ[name] = value


@contextmanager
def by_copy() -> Iterator[None]:
    """What a ``setUp`` and a ``tearDown`` do."""
    saved = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(saved)


BRACKETS: dict[str, Bracket] = {
    "setenv": lambda: by_monkeypatch(_set_all),
    "setenv twice": lambda: by_monkeypatch(_set_twice),
    "delenv": lambda: by_monkeypatch(_delete_all),
    "by hand": by_hand,
    "by copy": by_copy,
    "patch.dict": lambda: mock.patch.dict(os.environ, dict.fromkeys(DECLARED, "patched")),
    "patch.dict of another name": lambda: mock.patch.dict(os.environ, {"APP_OTHER": "1"}),
    "patch.dict of environb": lambda: mock.patch.dict(os.environb, {os.fsencode(FLAG): b"patched"}, clear=True),
    "patch.dict, cleared": lambda: mock.patch.dict(os.environ, clear=True),
    "patch.dict, cleared, with values": lambda: mock.patch.dict(
        os.environ, {FLAG: "patched", TASK: "patched"}, clear=True
    ),
}


@contextmanager
def as_shed(session: str) -> Iterator[None]:
    with otelctx.bind(session=session), otelctx.shed_claim():
        yield


PLACES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nobody": nullcontext,
    "A": lambda: otelctx.bind(session="A"),
    "B": lambda: otelctx.bind(session="B"),
    "shed": otelctx.shed_claim,
    "A, shed": lambda: as_shed("A"),
}


FOUND: dict[str, dict[str, str]] = {
    "nothing": {},
    "all": {KEY: "stale", TASK: "t1", RUN: "7", FLAG: "real"},
    "the same key": {KEY: "A", TASK: "t1"},
}


@pytest.mark.parametrize("found", FOUND)
@pytest.mark.parametrize(("enter", "leave"), list(product(PLACES, PLACES)))
def test_a_bracket_leaves_the_real_environment_as_it_found_it_wherever_it_is_entered_and_left(
    scope: Scope, enter: str, leave: str, found: str
) -> None:
    with process_has(**FOUND[found]):
        scope()

        def straddle(kind: str, *, writes: bool) -> None:
            bracket = BRACKETS[kind]()
            with PLACES[enter]():
                bracket.__enter__()
                if enter != "nobody":
                    assert {name: really(name) for name in FOUND[found]} == FOUND[found]
            with PLACES[leave]():
                if writes and leave != "nobody":
                    os.environ[FLAG] = "in between"
                bracket.__exit__(None, None, None)
                for name in DECLARED:
                    os.environ.get(name)

        before = real()
        for kind, writes in product(BRACKETS, (False, True)):
            in_context(partial(straddle, kind, writes=writes))
            assert real() == before, (kind, writes)
            assert {name: c_getenv(name) for name in DECLARED} == {name: really(name) for name in DECLARED}


@pytest.mark.parametrize("inside", [place for place in PLACES if place != "nobody"])
def test_a_bracket_that_stays_in_one_identity_leaves_its_view_as_it_found_it(scope: Scope, inside: str) -> None:
    with process_has(**FOUND["all"]):
        scope()

        def bracket(kind: str) -> None:
            with PLACES[inside]():
                os.environ[RUN] = "own"
                before = dict(os.environ)
                with BRACKETS[kind]():
                    assert {name: really(name) for name in FOUND["all"]} == FOUND["all"]
                assert dict(os.environ) == before, kind
            assert {name: os.environ.get(name) for name in FOUND["all"]} == FOUND["all"]

        for kind in BRACKETS:
            in_context(partial(bracket, kind))


@pytest.mark.parametrize("kind", ["patch.dict, cleared", "by copy", "patch.dict of another name"])
def test_a_bracket_that_ends_in_a_shed_context_does_not_bring_the_claim_into_it(scope: Scope, kind: str) -> None:
    with process_has(**FOUND["all"]):
        scope()

        def straddle() -> None:
            bracket = BRACKETS[kind]()
            bracket.__enter__()
            with as_shed("A"):
                bracket.__exit__(None, None, None)
                assert (seen(TASK), seen(RUN), seen(KEY), seen(FLAG)) == (None, None, "A", "real")
            assert {name: seen(name) for name in FOUND["all"]} == FOUND["all"]

        in_context(straddle)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_brackets_within_brackets_across_binds_leave_everything_as_found(scope: Scope, order: tuple[int, int]) -> None:
    with process_has(**FOUND["all"]):
        scope()
        before = real()

        def nested() -> None:
            kinds = [BRACKETS["patch.dict, cleared, with values"], BRACKETS["setenv twice"]]
            outer, inner = (kinds[index]() for index in order)
            outer.__enter__()
            with otelctx.bind(session="A"):
                inner.__enter__()
                with otelctx.shed_claim():
                    inner.__exit__(None, None, None)
            outer.__exit__(None, None, None)

        in_context(nested)
        assert real() == before


def test_deleting_what_was_written_under_an_identity_that_has_ended_never_raises(scope: Scope) -> None:
    with process_has(**{TASK: "t1"}):
        scope()

        def turns() -> None:
            with otelctx.bind(session="A"), otelctx.shed_claim():
                os.environ[FLAG] = "1"
                os.environ[TASK] = "t2"
            del os.environ[FLAG]
            del os.environ[TASK]
            assert (seen(FLAG), seen(TASK)) == (None, "t1")
            with otelctx.bind(session="A"):
                os.environ[FLAG] = "1"
            with otelctx.bind(session="B"):
                del os.environ[FLAG]
                with pytest.raises(KeyError):
                    del os.environ[FLAG]
            with otelctx.bind(session="A"):
                assert seen(FLAG) is None

        in_context(turns)


def test_a_name_that_was_written_anew_without_an_identity_is_deleted_as_ever(scope: Scope) -> None:
    with process_has(**{TASK: "t1"}):
        scope()

        def turns() -> None:
            with otelctx.shed_claim():
                os.environ[TASK] = "own"
            os.environ[TASK] = "t2"
            del os.environ[TASK]
            assert really(TASK) is None

        in_context(turns)


def test_an_undo_does_not_undo_what_another_context_has_written_since(scope: Scope) -> None:
    scope()

    def turns() -> None:
        os.environ[FLAG] = "1"
        in_context(lambda: os.environ.__setitem__(FLAG, "another's"))
        with otelctx.bind(session="A"):
            del os.environ[FLAG]
            assert seen(FLAG) is None
        assert really(FLAG) == "another's"

    in_context(turns)
    del os.environ[FLAG]


def test_deleting_what_one_identity_sees_is_no_undo_of_what_another_wrote(scope: Scope) -> None:
    scope()

    def turns() -> None:
        with otelctx.bind(session="A"):
            os.environ[FLAG] = "A's"
        in_context(lambda: os.environ.__setitem__(FLAG, "real"))
        with otelctx.bind(session="B"):
            del os.environ[FLAG]
            assert seen(FLAG) is None
        with otelctx.bind(session="A"):
            assert seen(FLAG) == "A's"

    in_context(turns)
    del os.environ[FLAG]


def test_brackets_that_are_left_in_another_order_are_each_undone_where_they_wrote(scope: Scope) -> None:
    with process_has(**{FLAG: "real"}):
        scope()

        def turns() -> None:
            with otelctx.bind(session="A"):
                os.environ[FLAG] = "A's"
            os.environ[FLAG] = "1"
            os.environ[FLAG] = "2"
            with otelctx.bind(session="B"):
                os.environ[FLAG] = "real"
                assert really(FLAG) == "2"
                os.environ[FLAG] = "1"
                os.environ[FLAG] = "real"
            assert really(FLAG) == "real"
            with otelctx.bind(session="A"):
                assert seen(FLAG) == "real"

        in_context(turns)


def test_a_context_reads_what_it_has_put_back_though_the_real_value_has_changed_meanwhile(scope: Scope) -> None:
    with process_has(**{FLAG: "real"}):
        scope()

        def turn() -> None:
            with otelctx.bind(session="A"):
                os.environ[FLAG] = "A's"
                in_context(lambda: os.environ.__setitem__(FLAG, "new"))
                os.environ[FLAG] = "real"
                assert seen(FLAG) == "real"
            assert seen(FLAG) == "new"

        in_context(turn)


def test_a_deletion_that_undoes_a_real_write_is_one_for_the_identity_too(scope: Scope) -> None:
    scope()

    def turn() -> None:
        os.environ[KEY] = "patched"
        with otelctx.bind(session="A"):
            assert seen(KEY) == "A"
            del os.environ[KEY]
            assert seen(KEY) is None
        assert really(KEY) is None

    in_context(turn)


def test_deleting_after_the_identity_has_ended_takes_its_write_back_and_leaves_the_real_value(scope: Scope) -> None:
    for found in ({KEY: "stale", FLAG: "real"}, {}):
        with process_has(**found):
            scope()

            def turn() -> None:
                with otelctx.bind(session="A"):
                    os.environ.update({KEY: "A.sub", FLAG: "A's"})
                del os.environ[KEY]
                del os.environ[FLAG]
                with otelctx.bind(session="A"):
                    assert seen(KEY) == "A"

            in_context(turn)
            assert {name: value for name in (KEY, FLAG) if (value := really(name))} == found


def test_clear_empties_what_the_context_sees_and_no_more(scope: Scope) -> None:
    with process_has(**FOUND["all"]):
        scope()
        rest = {name: value for name, value in os.environ.items() if name not in DECLARED}

        def clear() -> None:
            with as_shed("A"):
                os.environ.clear()
                assert (len(os.environ), list(os.environ), dict(os.environb)) == (0, [], {})
                assert {name: really(name) for name in FOUND["all"]} == FOUND["all"]
                os.environ.update(rest)

        in_context(clear)
        assert {name: seen(name) for name in FOUND["all"]} == FOUND["all"]


def test_clear_of_a_context_without_an_identity_empties_the_real_environment(scope: Scope) -> None:
    scope()
    saved = dict(os.environ)

    def clear() -> tuple[dict[bytes, bytes], dict[str, str]]:
        os.environ[FLAG] = "1"
        os.environ.clear()
        os.environ["PATH"] = saved["PATH"]
        return real(), child_by_run()

    try:
        left, child = in_context(clear)
    finally:
        os.environ.update(saved)
    assert (set(left), set(child) & {*saved, FLAG}) == ({b"PATH"}, {"PATH"})


# --- children --------------------------------------------------------------------------------------------------------


def child_by_run(**kwargs: Any) -> dict[str, str]:
    return _parsed(subprocess.run(["env", "-0"], capture_output=True, check=True, **kwargs).stdout)


def child_by_popen() -> dict[str, str]:
    with os.popen("env -0") as pipe:
        return _parsed(os.fsencode(pipe.read()))


def child_by_system() -> dict[str, str]:
    return _by_file(lambda path: os.system(f"env -0 > {path}"))


def child_by_spawn() -> dict[str, str]:
    return _by_file(lambda path: os.spawnvp(os.P_WAIT, "sh", ["sh", "-c", f"env -0 > {path}"]))


def child_by_posix_spawn() -> dict[str, str]:
    def spawn(path: str) -> None:
        os.waitpid(os.posix_spawnp("sh", ["sh", "-c", f"env -0 > {path}"], os.environ), 0)

    return _by_file(spawn)


def child_by_asyncio() -> dict[str, str]:
    async def main() -> bytes:
        child = await asyncio.create_subprocess_exec("env", "-0", stdout=asyncio.subprocess.PIPE)
        return (await child.communicate())[0]

    return _parsed(asyncio.run(main()))


def _by_file(spawn: Callable[[str], object]) -> dict[str, str]:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        spawn(file.name)
        return _parsed(file.read())


def _parsed(output: bytes) -> dict[str, str]:
    variables = (os.fsdecode(line).partition("=") for line in output.split(b"\0") if line)
    return {name: value for name, _, value in variables}


CHILDREN: dict[str, Callable[[], dict[str, str]]] = {
    "run": child_by_run,
    "run with a copy": lambda: child_by_run(env=os.environ.copy()),
    "run with environ": lambda: child_by_run(env=os.environ),
    "run with environb": lambda: child_by_run(env=dict(os.environb)),
    "popen": child_by_popen,
    "system": child_by_system,
    "spawn": child_by_spawn,
    "posix_spawn": child_by_posix_spawn,
    "asyncio": child_by_asyncio,
}


@pytest.mark.parametrize("kind", CHILDREN)
@pytest.mark.parametrize("inside", [place for place in PLACES if place != "nobody"])
def test_a_childs_environment_agrees_with_what_its_context_sees(scope: Scope, inside: str, kind: str) -> None:
    with process_has(**FOUND["all"]):
        scope()

        def spawn() -> None:
            with PLACES[inside]():
                for change in (lambda: None, lambda: os.environ.update({KEY: "own", FLAG: "own", RUN: "own"}),
                               lambda: [os.environ.pop(name, None) for name in DECLARED]):  # fmt: skip
                    change()
                    expected = {name: seen(name) for name in DECLARED}
                    child = CHILDREN[kind]()
                    assert {name: child.get(name) for name in DECLARED} == expected
            assert {name: really(name) for name in FOUND["all"]} == FOUND["all"]

        in_context(spawn)


def test_a_copy_of_the_real_environment_gives_a_child_of_a_shed_context_no_claim(scope: Scope) -> None:
    with process_has(**FOUND["all"]):
        scope()
        base = dict(os.environ)
        with as_shed("A"):
            child = child_by_run(env=base)
            assert (child.get(TASK), child.get(RUN), child[KEY], child[FLAG]) == (None, None, "A", "real")
            child = child_by_run(env={**base, TASK: "t9"})
            assert child[TASK] == "t9"


# --- installed again --------------------------------------------------------------------------------------------------


def test_what_a_context_wrote_counts_on_where_its_name_is_still_declared(scope: Scope) -> None:
    scope()
    with otelctx.bind(session="A"):
        os.environ[FLAG], os.environ[KEY], os.environ[RUN] = "A's", "another", "1"
        scope(spans="never")
        assert (seen(FLAG), seen(KEY), seen(RUN)) == ("A's", "another", "1")
        assert (really(FLAG), really(KEY), really(RUN)) == (None, None, None)
        os.environ[RUN] = "2"  # and so it does after a write of now
        scope(spans="auto")
        assert (seen(FLAG), seen(RUN)) == ("A's", "2")
        del os.environ[FLAG]
        assert seen(FLAG) is None


def test_a_bracket_that_is_open_when_it_is_installed_again_is_undone_where_it_wrote(scope: Scope) -> None:
    scope()
    with otelctx.bind(session="A"), process_has_as_well(FLAG, "the process's"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(FLAG, "A's")
            scope(spans="never")
        data()[os.fsencode(FLAG)] = b"newer"
        assert seen(FLAG) == "newer"


def test_what_was_written_to_a_name_that_was_not_declared_in_between_does_not_come_back(scope: Scope) -> None:
    scope()
    without = {"mode": "scope", "names": [KEY]}
    with otelctx.bind(session="A"):
        os.environ[FLAG], os.environ[KEY] = "old", "kept"
        scope(scoped_env=without)
        assert seen(FLAG) is None
        with process_has_as_well(FLAG, "the process's"):
            os.environ[KEY] = "newer"  # a view that is made anew does not take the old one along
            scope()
            assert (seen(FLAG), seen(KEY)) == ("the process's", "newer")


@contextmanager
def process_has_as_well(name: str, value: str) -> Iterator[None]:
    data()[os.fsencode(name)] = os.fsencode(value)
    try:
        yield
    finally:
        del data()[os.fsencode(name)]


def test_installing_again_from_within_a_session_does_not_take_its_view_for_what_the_process_started_with(
    scope: Scope,
) -> None:
    scope()
    keys._initial.clear()
    with otelctx.bind(session="A"):
        os.environ[KEY] = "A's"
        scope(spans="never")
    assert keys._initial[KEY] is None


def test_while_it_is_installed_again_and_again_no_write_of_a_session_reaches_the_real_environment(scope: Scope) -> None:
    scope()
    before = real()
    interval = sys.getswitchinterval()
    started, over = threading.Barrier(4), threading.Event()
    faults: list[str] = []

    def run(session: str) -> None:
        with otelctx.bind(session=session):
            started.wait(10)
            for number in count():
                if over.is_set():
                    return
                for name in (FLAG, RUN):
                    os.environ[name] = f"{session} {number}"
                    if (found := os.environ.get(name)) != f"{session} {number}":
                        faults.append(f"{session} reads {found}")
                if left := {name: really(name) for name in (FLAG, RUN) if really(name) is not None}:
                    faults.append(f"the process has {left}")
                if faults:
                    return

    threads = [threading.Thread(target=run, args=(session,)) for session in "ABC"]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        started.wait(10)
        for number in range(60):
            scope(spans=("never", "auto")[number % 2])
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert faults == []
    assert real() == before


# --- all at once -----------------------------------------------------------------------------------------------------


def test_sessions_that_read_and_write_at_once_see_their_own_values_only(scope: Scope) -> None:
    """For ``OTELCTX_SCOPE_SECONDS`` (3), eight sessions in one process; the real environment never changes."""
    seconds = float(SECONDS)
    with process_has(**FOUND["all"]):
        scope()
        before = real()
        started, over = threading.Barrier(9), threading.Event()
        faults: list[str] = []
        rounds = count()

        def check(session: str, expected: dict[str, str | None]) -> None:
            found = {name: os.environ.get(name) for name in expected}
            if found != expected:
                faults.append(f"{session}: {found} instead of {expected}")
                over.set()

        def turn(session: str, number: int, pool: ThreadPoolExecutor) -> None:
            own: dict[str, str | None] = {KEY: session, TASK: None, RUN: None, FLAG: f"{session} {number}"}
            os.environ[KEY] = session
            os.environ[FLAG] = f"{session} {number}"
            check(session, own)
            whole = dict(os.environ)
            if {name: whole.get(name) for name in own} != own:
                faults.append(f"{session}: {whole}")
            pool.submit(check, session, own).result()
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(TASK, session)
                check(session, {**own, TASK: session})
            check(session, own)
            os.environ.pop(FLAG)
            check(session, {**own, FLAG: None})

        def run(session: str) -> None:
            with ThreadPoolExecutor(1) as pool, otelctx.bind(session=session), otelctx.shed_claim():
                started.wait(10)
                while not over.is_set():
                    turn(session, next(rounds), pool)

        threads = [threading.Thread(target=run, args=(f"S{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        started.wait(10)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not over.is_set():
            assert real() == before
            assert os.environ[TASK] == "t1"
        over.set()
        for thread in threads:
            thread.join()
        assert faults == []
        assert next(rounds) > 8
        assert real() == before


SECONDS = os.environ.get("OTELCTX_SCOPE_SECONDS", "3")


class Environment(RuleBasedStateMachine):
    """Contexts with identities read and write at random, and a plain model says what each of them sees.

    A context here has an identity always, or never: what a bracket across both does is another test. Values are never
    written twice, so that no write looks like an undo.
    """

    IDENTITIES = ("A", "B", "A, shed", "shed")

    @initialize(found=st.sampled_from(sorted(FOUND)))
    def begin(self, found: str) -> None:
        self.stack = ExitStack()
        self.stack.enter_context(process_has(**FOUND[found]))
        keys._initial.clear()  # each machine is a process of its own
        keys._ever_bound.clear()
        otelctx.install({}, **declared())
        self.outside = Context()
        self.contexts: list[tuple[Context, dict[tuple[str, str], str | None]]] = [(Context(), {}), (Context(), {})]
        self.real: dict[str, str] = dict(FOUND[found])
        self.values = count()

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()
            for name in DECLARED:
                os.environ.pop(name, None)

    def run(self, index: int, identity: str, fn: Callable[[], Any]) -> Any:
        def inside() -> Any:
            with PLACES[identity]():
                return fn()

        return self.contexts[index % len(self.contexts)][0].run(inside)

    def decided(self, index: int, identity: str) -> View:
        return View(self.contexts[index % len(self.contexts)][1], identity, self.real)

    @rule(
        index=st.integers(0, 5),
        identity=st.sampled_from(IDENTITIES),
        name=st.sampled_from(DECLARED),
        how=st.sampled_from(["set", "setb", "update", "ior", "setdefault"]),
    )
    def write(self, index: int, identity: str, name: str, how: str) -> None:
        value, model = f"value {next(self.values)}", self.decided(index, identity)
        if how == "setdefault":
            model.setdefault(name, value)
        else:
            model[name] = value
        self.run(index, identity, lambda: WAYS[how](name, value))

    @rule(
        index=st.integers(0, 5),
        identity=st.sampled_from(IDENTITIES),
        name=st.sampled_from(DECLARED),
        how=st.sampled_from(["pop", "del"]),
    )
    def delete(self, index: int, identity: str, name: str, how: str) -> None:
        model = self.decided(index, identity)
        if name in model:
            del model[name]
            self.run(index, identity, lambda: os.environ.pop(name) if how == "pop" else os.environ.__delitem__(name))
        else:
            assert self.run(index, identity, lambda: os.environ.pop(name, None)) is None

    @rule(name=st.sampled_from(DECLARED), there=st.booleans())
    def write_outside(self, name: str, there: bool) -> None:
        # A deletion that takes back the context's own write leaves nothing decided, and the context then sees what
        # comes later; one of something else is a decision. Which it was is what the tests of undo are about.
        removed = any(
            of == name and value is None for _, decided in self.contexts for (_, of), value in decided.items()
        )
        if removed:
            return
        if there:
            self.real[name] = f"value {next(self.values)}"
            self.outside.run(os.environ.__setitem__, name, self.real[name])
        elif name in self.real:
            del self.real[name]
            self.outside.run(os.environ.__delitem__, name)

    @rule(index=st.integers(0, 5), identity=st.sampled_from(IDENTITIES), hop=st.sampled_from(["copy", "snapshot"]))
    def start_work(self, index: int, identity: str, hop: str) -> None:
        if len(self.contexts) > 5:
            return
        views = dict(self.contexts[index % len(self.contexts)][1])

        def start() -> Context:
            if hop == "copy":
                return copy_context()
            return otelctx.capture().run(copy_context)

        context: Context = self.run(index, identity, start)
        context.run(flow.STATE.set, None)  # what is bound there is not what this is about
        self.contexts.append((context, views))

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "stack"):
            return
        assert {name: really(name) for name in DECLARED} == {name: self.real.get(name) for name in DECLARED}
        for index in range(len(self.contexts)):
            for identity in self.IDENTITIES:
                model = self.decided(index, identity)
                found = self.run(index, identity, lambda: {name: os.environ.get(name) for name in DECLARED})
                assert found == {name: model.get(name) for name in DECLARED}, (index, identity)

    @rule(index=st.integers(0, 5), identity=st.sampled_from(IDENTITIES), name=st.sampled_from(DECLARED))
    def look_in_every_way(self, index: int, identity: str, name: str) -> None:
        found = self.contexts[index % len(self.contexts)][0].copy().run(self.look, identity, name)
        assert found == self.decided(index, identity).get(name)

    @staticmethod
    def look(identity: str, name: str) -> str | None:
        with PLACES[identity]():
            return seen(name)


WAYS: dict[str, Callable[[str, str], Any]] = {
    "set": lambda name, value: os.environ.__setitem__(name, value),
    "setb": lambda name, value: os.environb.__setitem__(os.fsencode(name), os.fsencode(value)),
    "update": lambda name, value: os.environ.update({name: value}),
    "ior": lambda name, value: os.environ.__ior__({name: value}),
    "setdefault": lambda name, value: os.environ.setdefault(name, value),
}


class View(MutableMapping[str, str]):
    """The model: a dictionary for each context and identity, over what the identity implies, over the real one."""

    def __init__(self, decided: dict[tuple[str, str], str | None], identity: str, actual: dict[str, str]) -> None:
        self.decided = decided
        self.identity = identity
        self.actual = actual

    def place(self, name: str) -> tuple[str, str]:
        session = self.identity.partition(",")[0]
        return (self.identity if name in (TASK, RUN) else session, name)

    def __getitem__(self, name: str) -> str:
        found = self.decided.get(self.place(name), self.implied(name))
        if found is None:
            raise KeyError(name)
        return found

    def implied(self, name: str) -> str | None:
        if "shed" in self.identity and name in (TASK, RUN):
            return None
        if name == KEY and self.identity != "shed":
            return self.identity[0]
        if name == KEY and self.actual.get(KEY) not in ("stale", "A"):
            return None  # since sessions were bound, nobody knows whose it is
        return self.actual.get(name)

    def __setitem__(self, name: str, value: str) -> None:
        self.decided[self.place(name)] = value

    def __delitem__(self, name: str) -> None:
        self[name]
        self.decided[self.place(name)] = None

    def __iter__(self) -> Iterator[str]:
        return (name for name in DECLARED if self.get(name) is not None)

    def __len__(self) -> int:
        return len(list(iter(self)))


TestEnvironment = Environment.TestCase
TestEnvironment.settings = settings(
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


# --- observe ---------------------------------------------------------------------------------------------------------


def told(alerts: list[Mismatch]) -> list[tuple[str, str, str | None, str | None, str | None, str]]:
    return [(a.key, a.reason, a.expected, a.observed, a.source, a.action) for a in alerts]


def test_observe_changes_nothing(scope: Scope) -> None:
    with process_has(**FOUND["all"]):
        scope("observe")
        with as_shed("A"):
            assert {name: seen(name) for name in FOUND["all"]} == FOUND["all"]
            os.environ[FLAG] = "written"
        assert in_context(lambda: seen(FLAG)) == "written"


def test_observe_tells_of_a_read_that_gives_another_sessions_key_once(scope: Scope, alerts: list[Mismatch]) -> None:
    scope("observe")

    def mirror(session: str) -> None:
        with otelctx.bind(session=session):
            os.environ[KEY] = session

    in_context(lambda: mirror("B"))
    with otelctx.bind(session="A"):
        for _ in range(3):
            os.environ.get(KEY)
    assert told(alerts) == [("session", "foreign", "A", "B", f"env:{KEY}", "observed")]
    assert alerts[0].place is not None
    assert alerts[0].place.file == __file__
    del os.environ[KEY]


def test_observe_tells_of_two_sessions_that_write_one_name(scope: Scope, alerts: list[Mismatch]) -> None:
    scope("observe")
    for session in ("A", "A", "B", "A"):
        with otelctx.bind(session=session):
            os.environ[FLAG] = session
    assert told(alerts) == [
        ("session", "raced", "A", "B", f"env:{FLAG}", "observed"),
        ("session", "raced", "B", "A", f"env:{FLAG}", "observed"),
    ]
    del os.environ[FLAG]


def test_observe_says_nothing_of_sessions_that_tidy_up_and_of_contexts_without_an_identity(
    scope: Scope, alerts: list[Mismatch]
) -> None:
    with process_has(**FOUND["all"]):
        scope("observe")
        for session in ("A", "B"):
            with otelctx.bind(session=session):
                with mock.patch.dict(os.environ, {FLAG: session}):
                    assert os.environ[FLAG] == session
                assert os.environ.get("APP_TASK") == "t1"
        os.environ[FLAG] = "real"
        assert os.environ[KEY] == "stale"
        assert told(alerts) == [
            ("session", "foreign", session, "stale", f"env:{KEY}", "observed") for session in ("A", "B")
        ]  # patch.dict reads the whole environment


def test_observe_tells_of_a_flag_that_another_session_left_behind(scope: Scope, alerts: list[Mismatch]) -> None:
    scope("observe")
    with otelctx.bind(session="A"):
        os.environ[FLAG] = "1"
        assert os.environ[FLAG] == "1"
    with otelctx.bind(session="B"):
        assert os.environ[FLAG] == "1"
    assert told(alerts) == [("session", "foreign", None, "1", f"env:{FLAG}", "observed")]
    del os.environ[FLAG]


@pytest.mark.parametrize(("hide", "expected"), [(True, 1), (False, 0)])
def test_observe_tells_of_a_shed_claim_that_can_be_read_all_the_same(
    scope: Scope, alerts: list[Mismatch], hide: bool, expected: int
) -> None:
    with process_has(**FOUND["all"]):
        scope("observe", hide_claim=hide)
        with otelctx.shed_claim():
            assert os.environ[TASK] == "t1"
            assert not otelctx.is_claim_holder()
        assert told(alerts) == [("claim", "leaked", None, "t1", f"env:{TASK}", "observed")] * expected


def test_observe_tells_of_an_old_key_that_a_cron_job_reads(scope: Scope, alerts: list[Mismatch]) -> None:
    with process_has(**{KEY: "A"}):
        scope("observe")
        with otelctx.bind(session="A"):
            pass
        with otelctx.cron_run("nightly"):
            assert os.environ[KEY] == "A"
        assert ("session", "leaked", None, "A", f"env:{KEY}", "observed") in told(alerts)


def test_a_key_that_an_arrival_finds_in_the_environment_is_told_of_by_the_arrival_alone(
    scope: Scope, alerts: list[Mismatch]
) -> None:
    with process_has(**{KEY: "A"}):
        scope("observe")
        with otelctx.bind(session="A"), otelctx.cron_run("nightly"):
            pass
        assert [(alert.reason, alert.hop_kind, alert.source) for alert in alerts] == [("leaked", "cron", f"env:{KEY}")]


def test_what_otelctx_reads_itself_is_no_read(scope: Scope, alerts: list[Mismatch]) -> None:
    with process_has(**FOUND["all"]):
        scope("observe")
        with as_shed("A"):
            assert otelctx.claim_state() == "shed"
            otelctx.current_claim()
            by_pool(lambda: None)
            subprocess.run(["true"], check=True)
        with otelctx.bind(session="A"):
            assert otelctx.is_claim_holder()
        assert told(alerts) == []


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no signal to raise on this system")
def test_a_signal_handler_may_name_another_variable_of_the_claims_while_one_is_declared(scope: Scope) -> None:
    scope()
    found: list[bool] = []

    def handle(number: int, frame: FrameType | None) -> None:
        found.append(scoped_env.declares(f"{TASK}_TWO"))

    def trace(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is env_view.declare_too.__code__:
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    tracing = sys.gettrace()
    try:
        sys.settrace(trace)
        found.append(scoped_env.declares(f"{TASK}_ONE"))
    finally:
        sys.settrace(tracing)
        signal.signal(signal.SIGUSR1, before)
    assert found == [True, True]
    assert {f"{TASK}_ONE", f"{TASK}_TWO"} <= scoped_env.names
