"""Undoing: what `uninstall` puts back, and what it leaves inert where somebody has wrapped otelctx since."""

from __future__ import annotations

import _thread
import functools
import importlib
import inspect
import logging
import os
import pkgutil
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import pytest
import wrapt  # type: ignore[import-untyped,unused-ignore]
from opentelemetry import trace

import otelctx
import otelctx_instrumentation
from otelctx import metrics
from otelctx_instrumentation import patching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otelctx import Mismatch
    from tests.conftest import Install

KEY: ContextVar[str] = ContextVar("KEY")
SCOPE = {"mode": "scope"}  # without it `os.environ` is not patched at all
KEYS = {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}]}}
TIMEOUT = 20.0
ABSENT = object()


def instrumentations() -> list[Any]:
    """Every module of the instrumentation that has a table of patches."""
    found = []
    for info in pkgutil.iter_modules(otelctx_instrumentation.__path__):
        module = importlib.import_module(f"otelctx_instrumentation.{info.name}")
        if hasattr(module, "PATCHES"):
            found.append(module)
    return found


def patches() -> list[patching.Patch]:
    """Every patch whose library is there, with its library imported."""
    there = []
    for module in instrumentations():
        for patch in module.PATCHES:
            try:
                library = importlib.import_module(patch.module)
            except ImportError:
                continue  # a newer Python's, or a library that is not installed
            if hasattr(library, patch.path.partition(".")[0]):  # or a newer Python's function
                there.append(patch)
    return there


PATCHES = {f"{patch.module}:{patch.path}": patch for patch in patches()}


def owner_of(patch: patching.Patch) -> tuple[Any, str]:
    owner: Any = sys.modules[patch.module]
    *parents, name = patch.path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def own(patch: patching.Patch) -> Any:
    """What the owner itself has under the name, `ABSENT` where it inherits it; never what `getattr` makes of it."""
    owner, name = owner_of(patch)
    return vars(owner).get(name, ABSENT)


@pytest.fixture(params=PATCHES)
def patch(request: pytest.FixtureRequest) -> patching.Patch:
    return PATCHES[request.param]


# --- one by one -------------------------------------------------------------------------------------------------------


def test_the_tables_name_what_this_file_is_about() -> None:
    assert {
        "threading:Thread.start",
        "threading:Timer.start",
        "concurrent.futures.thread:ThreadPoolExecutor.submit",
        "concurrent.futures.thread:ThreadPoolExecutor.map",
        "concurrent.futures._base:Future.add_done_callback",
        "multiprocessing.pool:ThreadPool.apply_async",
        "opentelemetry.sdk.trace:Tracer.start_span",
    } <= PATCHES.keys()


def test_uninstall_leaves_the_attribute_as_it_was(install: Install, patch: patching.Patch) -> None:
    before = own(patch)
    for _ in range(2):
        install(scoped_env=SCOPE, keys=KEYS)
        assert own(patch) is not before
        otelctx.uninstall()
        assert own(patch) is before


def test_uninstall_leaves_everything_else_in_the_owners_as_it_was(install: Install) -> None:
    def everything() -> dict[str, dict[str, Any]]:
        return {key: dict(vars(owner_of(patch)[0])) for key, patch in PATCHES.items()}

    before = everything()
    install(scoped_env=SCOPE, keys=KEYS)
    assert everything() != before
    otelctx.uninstall()
    after = everything()
    for key in before:
        assert after[key].keys() == before[key].keys(), key
        assert all(after[key][name] is before[key][name] for name in before[key]), key


def looks_of(function: Any) -> list[object]:
    """What can be asked of a function about itself."""
    try:
        signature: object = inspect.signature(function)
    except (TypeError, ValueError) as error:  # a built-in one may have none, or one that cannot be read
        signature = type(error)
    names = ("__name__", "__qualname__", "__doc__", "__text_signature__")
    return [signature, inspect.iscoroutinefunction(function), *(getattr(function, name, None) for name in names)]


def test_what_is_patched_says_of_itself_what_it_said_before(install: Install, patch: patching.Patch) -> None:
    owner, name = owner_of(patch)
    before = looks_of(getattr(owner, name))
    install(keys=KEYS, scoped_env=SCOPE)
    assert own(patch) is not ABSENT
    assert looks_of(getattr(owner, name)) == before


@pytest.mark.parametrize("inherited", ["threading:Timer.start", "concurrent.futures.thread:ThreadPoolExecutor.map"])
def test_an_inherited_method_is_inherited_again(install: Install, inherited: str) -> None:
    patch = PATCHES[inherited]
    owner, name = owner_of(patch)
    assert own(patch) is ABSENT
    install(scoped_env=SCOPE, keys=KEYS)
    otelctx.uninstall()
    assert own(patch) is ABSENT
    assert inspect.getattr_static(owner, name) is inspect.getattr_static(owner.__mro__[1], name)


def test_patches_are_applied_by_any_settings_and_undone_by_one_uninstall(install: Install) -> None:
    before = {key: own(patch) for key, patch in PATCHES.items()}
    for mode in ("observe", "repair", "enforce"):
        install(mode=mode, scoped_env=SCOPE, keys=KEYS, spans="always")
    otelctx.uninstall()
    otelctx.uninstall()
    assert all(own(patch) is before[key] for key, patch in PATCHES.items())


def test_uninstall_takes_nothing_from_the_logging_that_was_there(install: Install) -> None:
    root = logging.getLogger()
    before = [*root.handlers], [*logging.getLogger("otelctx").handlers], logging.Logger.handle, logging.Handler.handle
    install(mode="observe", keys=KEYS)
    with otelctx.bind(session="A"), ThreadPoolExecutor(1) as pool:
        pool.submit(whose).result(TIMEOUT)  # an alert
    otelctx.uninstall()
    assert before == (
        [*root.handlers],
        [*logging.getLogger("otelctx").handlers],
        logging.Logger.handle,
        logging.Handler.handle,
    )


def test_a_patch_of_a_module_that_is_imported_after_uninstall_is_not_applied(install: Install) -> None:
    name = "otelctx_test_imported_after_uninstall"
    install(scoped_env=SCOPE, keys=KEYS)
    patching.apply([patching.Patch(name, "function", lambda original, active: lambda: "patched")])
    otelctx.uninstall()
    module: Any = type(sys)(name)
    module.function = lambda: "original"
    sys.modules[name] = module
    try:
        wrapt.notify_module_loaded(module)
        assert module.function() == "original"
    finally:
        del sys.modules[name]


# --- what works afterwards --------------------------------------------------------------------------------------------


def whose(*_: object) -> str | None:
    return otelctx.get("session")


def by_submit() -> str | None:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(whose).result(TIMEOUT)


def by_map() -> str | None:
    with ThreadPoolExecutor(1) as pool:
        return next(iter(pool.map(whose, [1])))


def by_thread() -> str | None:
    seen: Future[str | None] = Future()
    thread = threading.Thread(target=lambda: seen.set_result(whose()))
    thread.start()
    thread.join(TIMEOUT)
    return seen.result(0)


def by_timer() -> str | None:
    seen: Future[str | None] = Future()
    thread = threading.Timer(0, lambda: seen.set_result(whose()))
    thread.start()
    thread.join(TIMEOUT)
    return seen.result(0)


def by_callback() -> str | None:
    seen: Future[str | None] = Future()
    hold = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold.wait, TIMEOUT).add_done_callback(lambda _: seen.set_result(whose()))
        hold.set()
        return seen.result(TIMEOUT)


def by_thread_pool() -> str | None:
    with ThreadPool(1) as pool:
        found = {pool.apply(whose), *pool.map(whose, [1]), *pool.imap(whose, [1]), *pool.imap_unordered(whose, [1])}
    assert len(found) == 1
    return found.pop()


def by_span() -> str | None:
    span: Any = trace.get_tracer(__name__).start_span("labelled")
    span.end()
    session: str | None = span.attributes.get("session.id")
    return session


HOPS = [by_submit, by_map, by_thread, by_timer, by_callback, by_thread_pool, by_span]
hops = pytest.mark.parametrize("hop", HOPS)

DRIVEN = {
    "threading:Thread.start",
    "threading:Timer.start",
    "concurrent.futures.thread:ThreadPoolExecutor.submit",
    "concurrent.futures.thread:ThreadPoolExecutor.map",
    "concurrent.futures._base:Future.add_done_callback",
    "multiprocessing.pool:ThreadPool.apply_async",
    "multiprocessing.pool:ThreadPool._map_async",
    "multiprocessing.pool:ThreadPool.imap",
    "multiprocessing.pool:ThreadPool.imap_unordered",
    # Which a ThreadPool inherits.
    "multiprocessing.pool:Pool.apply_async",
    "multiprocessing.pool:Pool._map_async",
    "multiprocessing.pool:Pool.imap",
    "multiprocessing.pool:Pool.imap_unordered",
    "opentelemetry.sdk.trace:Tracer.start_span",
}
"""The patches that these hops go through."""


def hops_of(kind: str) -> int:
    return sum(count for (counted, _), count in metrics.hop_counts().items() if counted == kind)


@hops
@pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
def test_every_hop_works_as_before_after_uninstall(
    install: Install, alerts: list[Mismatch], hop: Callable[[], str | None], mode: str
) -> None:
    install(mode=mode, keys=KEYS)
    otelctx.uninstall()
    with otelctx.bind(session="A"):
        assert hop() is None
    assert alerts == []


@hops
def test_what_is_installed_again_works_again(install: Install, hop: Callable[[], str | None]) -> None:
    for _ in range(2):
        install(scoped_env=SCOPE, keys=KEYS)
        with otelctx.bind(session="A"):
            assert hop() == "A"
        otelctx.uninstall()


def test_what_departed_before_uninstall_still_runs_and_as_it_departed(install: Install) -> None:
    install(scoped_env=SCOPE, keys=KEYS)
    hold, late, future = threading.Event(), Future[str | None](), Future[None]()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold.wait, TIMEOUT)
        thread_seen: Future[str | None] = Future()

        def wait_and_ask() -> None:
            hold.wait(TIMEOUT)
            thread_seen.set_result(whose())

        thread = threading.Thread(target=wait_and_ask)
        with otelctx.bind(session="A"):
            queued, mapped = pool.submit(whose), pool.map(whose, [1, 2])
            future.add_done_callback(lambda _: late.set_result(whose()))
            thread.start()
        otelctx.uninstall()
        hold.set()
        future.set_result(None)
        assert queued.result(TIMEOUT) == "A"
        assert list(mapped) == ["A", "A"]
        assert late.result(TIMEOUT) == "A"
        assert thread_seen.result(TIMEOUT) == "A"
        thread.join(TIMEOUT)
        assert pool.submit(whose).result(TIMEOUT) is None


def test_what_is_bound_stays_readable_after_uninstall(install: Install) -> None:
    install(scoped_env=SCOPE, keys=KEYS)
    with otelctx.bind(session="A"):
        otelctx.uninstall()
        assert otelctx.get("session") == "A"
    assert otelctx.get("session") is None


# --- somebody has wrapped us since ------------------------------------------------------------------------------------


@pytest.fixture
def wrapped(install: Install, patch: patching.Patch) -> Iterator[tuple[patching.Patch, Any, list[str]]]:
    """Otelctx installed, and its replacement wrapped by somebody else; everything is put back after the test."""
    owner, name = owner_of(patch)
    before = own(patch)
    install(scoped_env=SCOPE, keys=KEYS)
    ours = inspect.getattr_static(owner, name)
    calls: list[str] = []

    @functools.wraps(ours)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return ours(*args, **kwargs)

    setattr(owner, name, theirs)
    yield patch, theirs, calls
    otelctx.uninstall()
    put_back(patch, before)


def test_uninstall_leaves_a_wrapper_of_somebody_else_in_place(wrapped: tuple[patching.Patch, Any, list[str]]) -> None:
    patch, theirs, _ = wrapped
    for _ in range(2):
        otelctx.uninstall()
        assert own(patch) is theirs
        otelctx.install({}, keys=KEYS)


def test_inside_a_wrapper_of_somebody_else_ours_does_nothing_any_more(
    wrapped: tuple[patching.Patch, Any, list[str]], alerts: list[Mismatch]
) -> None:
    otelctx.uninstall()
    before = metrics.hop_counts()
    with otelctx.bind(session="A"), trace.get_tracer(__name__).start_as_current_span("turn"):
        assert {hop() for hop in HOPS} == {None}
    patch, _, calls = wrapped
    if patch.module != "os":  # anything may look at the environment meanwhile
        assert bool(calls) == (f"{patch.module}:{patch.path}" in DRIVEN)
    assert metrics.hop_counts() == before
    assert alerts == []


def test_installed_again_around_a_wrapper_of_somebody_else_each_hop_is_one_hop(
    wrapped: tuple[patching.Patch, Any, list[str]],
) -> None:
    patch, theirs, calls = wrapped
    otelctx.uninstall()
    otelctx.install({}, keys=KEYS)
    try:
        for hop, kind in ((by_submit, "executor"), (by_map, "executor"), (by_thread, "thread"), (by_timer, "thread")):
            before = hops_of(kind)
            with otelctx.bind(session="A"):
                assert hop() == "A"
            assert hops_of(kind) - before == 1
        with otelctx.bind(session="A"):
            assert {hop() for hop in HOPS} == {"A"}
        if patch.module != "os":  # anything may look at the environment meanwhile
            assert bool(calls) == (f"{patch.module}:{patch.path}" in DRIVEN)
    finally:
        otelctx.uninstall()
    assert own(patch) is theirs


def test_what_was_left_under_somebody_else_is_put_back_once_they_have_gone(
    install: Install, patch: patching.Patch
) -> None:
    before = own(patch)
    owner, name = owner_of(patch)
    for _ in range(2):  # the second time over what was left the first time
        install(scoped_env=SCOPE, keys=KEYS)
        ours = own(patch)

        def theirs(*args: Any, ours: Any = ours, **kwargs: Any) -> Any:
            return ours(*args, **kwargs)

        setattr(owner, name, theirs)
        otelctx.uninstall()
        setattr(owner, name, ours)
        assert own(patch) is ours
    install(scoped_env=SCOPE, keys=KEYS)
    otelctx.uninstall()
    assert own(patch) is before


def test_a_method_that_somebody_kept_while_otelctx_was_on_works_and_does_nothing_after_uninstall(
    install: Install,
) -> None:
    install(scoped_env=SCOPE, keys=KEYS)
    start = threading.Thread.start
    with ThreadPoolExecutor(1) as pool:
        submit, map_ = pool.submit, pool.map
        otelctx.uninstall()
        with otelctx.bind(session="A"):
            assert submit(whose).result(TIMEOUT) is None
            assert list(map_(whose, [1])) == [None]
            seen: list[str | None] = []
            thread = threading.Thread(target=lambda: seen.append(whose()))
            start(thread)
            thread.join(TIMEOUT)
            assert seen == [None]


def test_uninstall_does_not_undo_what_somebody_put_in_our_place(install: Install) -> None:
    original = threading.Thread.start
    install(scoped_env=SCOPE, keys=KEYS)

    def replacement(self: threading.Thread) -> None:
        original(self)

    ours = threading.Thread.start
    threading.Thread.start = replacement  # type: ignore[method-assign]
    try:
        otelctx.uninstall()
        assert threading.Thread.start is replacement
    finally:
        threading.Thread.start = original  # type: ignore[method-assign]
    assert ours is not original


def put_back(patch: patching.Patch, what: Any) -> None:
    owner, name = owner_of(patch)
    if what is not ABSENT:
        setattr(owner, name, what)
    elif own(patch) is not ABSENT:
        delattr(owner, name)


def test_opentelemetrys_threading_instrumentor_can_be_undone_after_ours_was(install: Install) -> None:
    from opentelemetry.instrumentation.threading import ThreadingInstrumentor

    before = {key: own(patch) for key, patch in PATCHES.items()}
    install(scoped_env=SCOPE, keys=KEYS)
    theirs = ThreadingInstrumentor()
    try:
        theirs.instrument()
        otelctx.uninstall()
        with otelctx.bind(session="A"):
            assert {by_submit(), by_map(), by_thread(), by_timer()} == {None}
        theirs.uninstrument()
        with otelctx.bind(session="A"):
            assert {hop() for hop in HOPS} == {None}
    finally:
        for key, patch in PATCHES.items():  # theirs put our inert functions back, as they found them
            put_back(patch, before[key])


# --- twice ------------------------------------------------------------------------------------------------------------


def test_installing_twice_is_installing_once(install: Install, patch: patching.Patch) -> None:
    before = own(patch)
    install(scoped_env=SCOPE, keys=KEYS)
    ours = own(patch)
    otelctx.install()
    install(mode="observe", keys=KEYS)
    install(scoped_env=SCOPE, keys=KEYS)
    assert own(patch) is ours
    assert patching.applied().count((patch.module, patch.path, True)) == 1
    otelctx.uninstall()
    assert own(patch) is before


@pytest.mark.parametrize("hop, kind", [(by_submit, "executor"), (by_thread, "thread"), (by_callback, "callback")])
def test_installed_twice_a_hop_is_one_hop_and_one_span(
    install: Install, hop: Callable[[], str | None], kind: str, spans: Any
) -> None:
    install(scoped_env=SCOPE, keys=KEYS)
    install(scoped_env=SCOPE, keys=KEYS)
    otelctx.install()

    before = hops_of(kind)
    with otelctx.bind(session="A"), trace.get_tracer(__name__).start_as_current_span("turn"):
        assert hop() == "A"
    assert hops_of(kind) - before == 1
    kinds = [span.attributes.get("otelctx.hop.kind") for span in spans.get_finished_spans()]
    assert kinds.count(kind) == 1


def test_installing_from_many_threads_at_once_is_installing_once(install: Install) -> None:
    before = {key: own(patch) for key, patch in PATCHES.items()}
    everybody, failures = threading.Barrier(8), []

    def turn_on() -> None:
        try:
            everybody.wait(TIMEOUT)
            install(scoped_env=SCOPE, keys=KEYS)
            otelctx.install()
        except Exception as exc:
            failures.append(exc)

    done = [threading.Event() for _ in range(8)]

    def run(number: int) -> None:
        turn_on()
        done[number].set()

    for number in range(8):
        _thread.start_new_thread(run, (number,))
    assert all(event.wait(TIMEOUT) for event in done)
    assert failures == []
    assert otelctx.is_installed()
    names = [(module, path) for module, path, _ in patching.applied()]
    assert len(names) == len(set(names))
    with otelctx.bind(session="A"):
        assert by_submit() == "A"
    otelctx.uninstall()
    assert all(own(patch) is before[key] for key, patch in PATCHES.items())


def test_what_stands_in_for_a_function_can_what_that_can(install: Install) -> None:
    before = set(os.supports_fd)
    could = os.execve in before
    install()
    assert (os.execve in os.supports_fd) == could
    otelctx.uninstall()
    assert os.supports_fd == before
    assert (os.execve in os.supports_fd) == could


class Subscripted:
    def __getitem__(self, key: str) -> str:
        return "plain"


def _twice(original: Callable[..., Any], active: patching.Active) -> Callable[..., Any]:
    def __getitem__(self: Subscripted, key: str) -> str:  # noqa: N807
        return f"patched {original(self, key)}"

    return __getitem__


def test_a_subscription_is_what_is_patched_however_often_that_was_done() -> None:
    def read() -> set[str]:
        return {thing["key"] for _ in range(300)}  # often enough for CPython to specialise it

    thing = Subscripted()
    for _ in range(600):  # CPython 3.13 gives a class a thousand versions
        patching.apply([patching.Patch(__name__, "Subscripted.__getitem__", _twice)])
        assert read() == {"patched plain"}
        patching.undo()
        assert read() == {"plain"}


def test_an_install_with_wrong_settings_leaves_everything_as_it_was(install: Install) -> None:
    before = {key: own(patch) for key, patch in PATCHES.items()}
    with pytest.raises(otelctx.ConfigError):
        install(mode="no such mode")
    assert not otelctx.is_installed()
    assert all(own(patch) is before[key] for key, patch in PATCHES.items())
    install(scoped_env=SCOPE, keys=KEYS)
    with pytest.raises(otelctx.ConfigError):
        install(mode="no such mode")
    assert otelctx.is_installed()
    with otelctx.bind(session="A"):
        assert by_submit() == "A"
