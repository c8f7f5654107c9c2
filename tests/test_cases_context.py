"""Binding and unbinding, values of any kind, and what never travels, in the cases that people reported."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context

import otelctx
from otelctx import faults, metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.conftest import Install

KEY: ContextVar[Any] = ContextVar("KEY")
TENANT: ContextVar[Any] = ContextVar("TENANT")
UNDECLARED: ContextVar[Any] = ContextVar("UNDECLARED")
NO_VARIABLE = "a string"
IN_VARIABLE = {"contextvar": f"{__name__}:KEY", "empty": [""]}
KEYS = {
    "session": {"sources": [IN_VARIABLE]},
    "tenant": {"attribute": "tenant.id", "sources": [{"contextvar": f"{__name__}:TENANT"}]},
}
TIMEOUT = 20.0


@pytest.fixture(params=["carried", "recorded", "enforced"])
def on(request: pytest.FixtureRequest, install: Install) -> Iterator[None]:
    """Otelctx on, for each way that work can arrive: the hot path, a hop with a span, and enforce."""
    install(mode="enforce" if request.param == "enforced" else "repair", keys=KEYS)
    if request.param == "recorded":
        with trace.get_tracer(__name__).start_as_current_span("turn"):
            yield
    else:
        yield


def whose() -> object:
    """The session here; a set where the binding and the baggage do not agree."""
    answers = {otelctx.get("session"), baggage.get_baggage("otelctx.session")}
    return answers.pop() if len(answers) == 1 else answers


# --- 17: closed in another context ------------------------------------------------------------------------------------


def with_bind() -> Iterator[object]:
    with otelctx.bind(session="A"):
        yield whose()
        yield whose()


def with_tokens() -> Iterator[object]:
    token = otelctx.attach(session="A")
    try:
        yield whose()
        yield whose()
    finally:
        otelctx.detach(token)


def with_snapshot() -> Iterator[object]:
    with as_a().attached():
        yield whose()
        yield whose()


def as_a() -> otelctx.Snapshot:
    with otelctx.bind(session="A"):
        return otelctx.capture()


GENERATORS: list[Callable[[], Iterator[object]]] = [with_bind, with_tokens, with_snapshot]
generators = pytest.mark.parametrize("make", GENERATORS)


async def async_bind() -> AsyncIterator[object]:
    with otelctx.bind(session="A"):
        yield whose()
        yield whose()


async def async_tokens() -> AsyncIterator[object]:
    token = otelctx.attach(session="A")
    try:
        yield whose()
        yield whose()
    finally:
        otelctx.detach(token)


async def async_snapshot() -> AsyncIterator[object]:
    with as_a().attached():
        yield whose()
        yield whose()


async_generators = pytest.mark.parametrize("make", [async_bind, async_tokens, async_snapshot])


@async_generators
@pytest.mark.usefixtures("on")
def test_an_async_generator_bound_under_a_is_closed_by_the_loops_shutdown_without_a_complaint(
    make: Callable[[], AsyncIterator[object]], caplog: pytest.LogCaptureFixture
) -> None:
    complaints: list[dict[str, Any]] = []
    kept: list[AsyncIterator[object]] = []

    async def begin() -> object:
        generator = make()
        kept.append(generator)
        return await anext(generator)

    async def main() -> object:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        first = await asyncio.create_task(begin())  # a context of its own, which nothing enters again
        with otelctx.bind(session="B"):
            assert whose() == "B"
        assert whose() is None
        return first

    with caplog.at_level(logging.DEBUG):
        assert asyncio.run(main()) == "A"
    assert complaints == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert whose() is None


@async_generators
@pytest.mark.usefixtures("on")
def test_an_async_generator_closed_under_b_leaves_b_alone(make: Callable[[], AsyncIterator[object]]) -> None:
    async def main() -> list[object]:
        generator = make()
        found = [await asyncio.create_task(first(generator))]
        with otelctx.bind(session="B"):
            await generator.aclose()  # type: ignore[attr-defined]
            found.append(whose())
        return [*found, whose()]

    assert asyncio.run(main()) == ["A", "B", None]


async def first(generator: AsyncIterator[object]) -> object:
    return await anext(generator)


@generators
@pytest.mark.usefixtures("on")
def test_a_generator_closed_in_another_context_leaves_that_context_alone(make: Callable[[], Iterator[object]]) -> None:
    tracer = trace.get_tracer(__name__)
    generator = make()
    here = copy_context()
    assert here.run(next, generator) == "A"

    def elsewhere() -> tuple[object, object, bool]:
        with otelctx.bind(session="B"), tracer.start_as_current_span("theirs") as span:
            generator.close()  # type: ignore[attr-defined]
            return whose(), baggage.get_baggage("otelctx.session"), trace.get_current_span() is span

    assert Context().run(elsewhere) == ("B", "B", True)


@generators
@pytest.mark.usefixtures("on")
def test_a_generator_closed_in_another_thread_or_by_the_collector_leaves_everybody_alone(
    make: Callable[[], Iterator[object]],
) -> None:
    with ThreadPoolExecutor(1) as pool:
        generator = make()
        assert pool.submit(next, generator).result(TIMEOUT) == "A"
        with otelctx.bind(session="B"):
            assert pool.submit(lambda: (generator.close(), whose())[1]).result(TIMEOUT) == "B"  # type: ignore[attr-defined]
        assert pool.submit(whose).result(TIMEOUT) is None

        another = [make()]
        assert pool.submit(next, another[0]).result(TIMEOUT) == "A"
        with otelctx.bind(session="B"):
            another.clear()
            gc.collect()
            assert whose() == "B"
        assert whose() is None


@generators
@pytest.mark.usefixtures("on")
def test_a_generator_consumed_to_its_end_in_one_context_restores_what_was_there(
    make: Callable[[], Iterator[object]],
) -> None:
    with otelctx.bind(session="B"):
        assert list(make()) == ["A", "A"]
        assert whose() == "B"
    assert whose() is None


# --- 18: detach -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on")
def test_detaching_what_is_no_token_changes_nothing() -> None:
    with otelctx.bind(session="A"):
        for nothing in (None, "a token", 7, object(), UNDECLARED.set("x")):
            otelctx.detach(nothing)  # type: ignore[arg-type]
        assert whose() == "A"


@pytest.mark.usefixtures("on")
def test_a_token_used_twice_changes_nothing_the_second_time() -> None:
    token = otelctx.attach(session="A")
    otelctx.detach(token)
    otelctx.detach(token)
    assert whose() is None
    with otelctx.bind(session="B"):
        otelctx.detach(token)
        assert whose() == "B"
        with otelctx.bind(session="C"):
            otelctx.detach(token)
        assert whose() == "B"
    assert whose() is None


@pytest.mark.usefixtures("on")
def test_a_token_used_in_another_thread_changes_nothing_in_either() -> None:
    with otelctx.bind(session="outer"):
        token = otelctx.attach(session="A")

        def other() -> object:
            with otelctx.bind(session="B"):
                otelctx.detach(token)
                return whose()

        seen: Future[object] = Future()
        thread = threading.Thread(target=lambda: seen.set_result(Context().run(other)))
        thread.start()
        thread.join(TIMEOUT)
        assert seen.result(0) == "B"
        assert whose() == "A"
        with otelctx.bind(session="inner"):
            assert whose() == "inner"
        assert whose() == "A"
        otelctx.detach(token)
        assert whose() == "outer"


@pytest.mark.usefixtures("on")
def test_a_token_used_in_a_copy_of_its_context_changes_nothing_in_the_original() -> None:
    outer = otelctx.attach(session="A")
    inner = otelctx.attach(session="A.sub")
    copy_context().run(otelctx.detach, outer)
    otelctx.detach(inner)
    assert whose() == "A"
    otelctx.detach(outer)
    assert whose() is None


@pytest.mark.usefixtures("on")
def test_a_token_used_in_a_copy_takes_effect_there() -> None:
    outer = otelctx.attach(session="A")

    def elsewhere() -> list[object]:
        found = [whose()]
        otelctx.detach(outer)
        return [*found, whose()]

    assert copy_context().run(elsewhere) == ["A", None]
    assert whose() == "A"
    otelctx.detach(outer)
    assert whose() is None


@pytest.mark.usefixtures("on")
def test_tokens_detached_out_of_order_leave_what_is_still_attached() -> None:
    one = otelctx.attach(session="1")
    two = otelctx.attach(session="2")
    three = otelctx.attach(session="3")
    otelctx.detach(two)
    assert whose() == "3"
    otelctx.detach(three)
    assert whose() == "1"
    otelctx.detach(one)
    assert whose() is None


def test_detach_does_not_raise_where_otelctx_was_uninstalled_in_between(install: Install) -> None:
    install(keys=KEYS)
    token = otelctx.attach(session="A")
    otelctx.uninstall()
    otelctx.detach(token)
    otelctx.detach(token)
    assert whose() is None


# --- 35: by token -----------------------------------------------------------------------------------------------------


@contextmanager
def by_tokens(**keys: str) -> Iterator[None]:
    token = otelctx.attach(**keys)
    try:
        yield
    finally:
        otelctx.detach(token)


@pytest.mark.parametrize("bound", [otelctx.bind, by_tokens])
@pytest.mark.usefixtures("on")
def test_binding_goes_outer_inner_outer_unset_and_touches_nothing_else(bound: Callable[..., Any]) -> None:
    others = [KEY.set("application's"), TENANT.set("T"), UNDECLARED.set("U")]
    otel = otel_context.attach(baggage.set_baggage("vendor", "theirs"))
    span = trace.get_current_span()

    def untouched() -> tuple[object, ...]:
        return (
            KEY.get(),
            TENANT.get(),
            UNDECLARED.get(),
            baggage.get_baggage("vendor"),
            otelctx.get("tenant"),
            trace.get_current_span() is span,
        )

    expected = ("application's", "T", "U", "theirs", "T", True)
    found: list[object] = []
    with bound(session="outer"):
        found.append(whose())
        assert untouched() == expected
        with bound(session="inner"):
            found.append(whose())
            assert untouched() == expected
        found.append(whose())
        with suppress(ZeroDivisionError), bound(session="failing"):
            found.append(whose())
            raise ZeroDivisionError
        found.append(whose())
        with bound(tenant="other"):
            assert otelctx.get("tenant") == "other"
            found.append(whose())
        assert untouched() == expected
    assert found == ["outer", "inner", "outer", "failing", "outer", "outer"]
    assert untouched() == expected
    assert otelctx.get("session") == "application's"
    otel_context.detach(otel)
    for var, token in zip((KEY, TENANT, UNDECLARED), others, strict=True):
        var.reset(token)
    assert whose() is None


@pytest.mark.usefixtures("on")
def test_one_bind_object_nests_in_itself() -> None:
    binding = otelctx.bind(session="A")
    assert whose() is None
    with binding:
        with otelctx.bind(session="B"):
            with binding:
                assert whose() == "A"
            assert whose() == "B"
        assert whose() == "A"
    assert whose() is None


@pytest.mark.usefixtures("on")
def test_a_binding_that_ends_inside_a_span_is_over_there_and_after_it() -> None:
    token = otelctx.attach(session="A")
    with trace.get_tracer(__name__).start_as_current_span("outlives the binding"):
        otelctx.detach(token)
        assert whose() is None
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(whose).result(TIMEOUT) is None


# --- 45 and bad input: values -----------------------------------------------------------------------------------------

EXACT = [
    "a,b;c=d",
    "percent %41 %zz %",
    "one\nline\r\nand another\ttab",
    " spaces around ",
    "\U0001f600 emoji \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "übergröße 漢字 العربية",
    'quotes " and \\ backslashes',
    "nul \x00 and \x7f",
    "x" * 1024,
    "\U0001f600" * 85,
    "+" * 341,
]


@pytest.mark.parametrize("value", EXACT, ids=range(len(EXACT)))
@pytest.mark.usefixtures("on")
def test_a_value_of_any_characters_is_carried_exactly(value: str) -> None:
    with otelctx.bind(session=value), ThreadPoolExecutor(1) as pool:
        assert whose() == value
        assert pool.submit(whose).result(TIMEOUT) == value


@pytest.mark.parametrize("value", EXACT, ids=range(len(EXACT)))
@pytest.mark.usefixtures("on")
def test_a_value_in_the_applications_variable_is_carried_exactly(value: str) -> None:
    token = KEY.set(value)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(KEY.get).result(TIMEOUT) is value
        assert pool.submit(whose).result(TIMEOUT) == value
    KEY.reset(token)


TOO_LONG = {
    "3,000 letters": "x" * 3000,
    "1,025 letters": "x" * 1025,
    "86 emoji": "\U0001f600" * 86,
    "300 emoji": "\U0001f600" * 300,
    "342 plus signs": "+" * 342,
    "200 letters of two bytes": "ü" * 200,
}


@pytest.mark.parametrize("which", TOO_LONG)
@pytest.mark.parametrize("call", [otelctx.bind, otelctx.attach])
@pytest.mark.usefixtures("on")
def test_a_value_longer_than_1024_bytes_once_encoded_is_refused_where_it_is_bound(
    call: Callable[..., object], which: str
) -> None:
    with otelctx.bind(session="A"):
        with pytest.raises(ValueError, match=r"1024|1,024"):
            call(session=TOO_LONG[which])
        assert whose() == "A"


@pytest.mark.parametrize("value", [None, 7, 7.5, b"bytes", bytearray(b"x"), ["A"], object(), True])
@pytest.mark.parametrize("call", [otelctx.bind, otelctx.attach])
@pytest.mark.usefixtures("on")
def test_a_value_that_is_no_string_is_a_type_error_where_it_is_bound(
    call: Callable[..., object], value: object
) -> None:
    with otelctx.bind(session="A"):
        with pytest.raises(TypeError, match="session"):
            call(session=value)
        with pytest.raises(TypeError, match="session"):
            call(tenant="fine", session=value)
        assert (whose(), otelctx.get("tenant")) == ("A", None)


@pytest.mark.usefixtures("on")
def test_binding_nothing_or_an_undeclared_key_is_an_error_that_names_what_is_declared() -> None:
    with pytest.raises(TypeError, match="session"):
        otelctx.bind()
    with pytest.raises(LookupError, match=r"tennant.*session, tenant"):
        otelctx.bind(tennant="T")
    assert otelctx.get("tennant") is None
    assert otelctx.get("tennant", "default") == "default"


def test_an_applications_own_value_that_is_too_long_travels_stays_out_of_baggage_and_is_counted_once(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    name = "counted_once"
    install(keys={**KEYS, name: {"attribute": "counted.once", "sources": [{"contextvar": f"{__name__}:UNDECLARED"}]}})
    before = metrics.error_counts().get("baggage", 0)
    value = "x" * 3000
    token = UNDECLARED.set(value)
    try:
        with caplog.at_level(logging.WARNING, "otelctx"), ThreadPoolExecutor(1) as pool:
            for session in ("A", "B"):
                with otelctx.bind(session=session):
                    assert pool.submit(UNDECLARED.get).result(TIMEOUT) is value
                    assert pool.submit(otelctx.get, name).result(TIMEOUT) == value
                    assert pool.submit(whose).result(TIMEOUT) == session
                    entries = pool.submit(baggage.get_all).result(TIMEOUT)
                    assert value not in entries.values()
    finally:
        UNDECLARED.reset(token)
    assert metrics.error_counts().get("baggage", 0) - before == 1
    assert sum(f"otelctx.{name}" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("value", [7, ("a", "tuple"), object(), {"a": "dict"}, b"bytes", None])
@pytest.mark.usefixtures("on")
def test_an_object_in_a_declared_variable_arrives_as_the_same_object(value: object) -> None:
    token = KEY.set(value)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: KEY.get("absent")).result(TIMEOUT) is value
    KEY.reset(token)


class Odd:
    """Cannot be compared, hashed, shown or made a string."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        raise ValueError("not a string")

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")

    def __len__(self) -> int:
        raise ValueError("no length")


@pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
def test_work_runs_whatever_object_is_in_a_declared_variable(install: Install, mode: str) -> None:
    install(mode=mode, keys=KEYS)
    token = KEY.set(Odd())
    before = metrics.error_counts()
    try:
        with ThreadPoolExecutor(1) as pool, trace.get_tracer(__name__).start_as_current_span("turn"):
            assert pool.submit(len, "four").result(TIMEOUT) == 4
    finally:
        KEY.reset(token)
    assert metrics.error_counts() == before


# --- bad input: sources that are not there ----------------------------------------------------------------------------


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = ("otelctx: internal error", "otelctx: a setting is wrong")
    return [record.message for record in caplog.records if record.message.startswith(told)]


@pytest.mark.parametrize(
    "source",
    [
        {"contextvar": f"{__name__}:NO_SUCH_NAME"},
        {"contextvar": f"{__name__}:NO_VARIABLE"},
        {"contextvar": f"{__name__}:KEY", "unset": f"{__name__}:NO_SUCH_NAME"},
        {"contextvar": f"{__name__}:KEY.no.such.path"},
    ],
)
def test_a_source_that_is_not_there_is_one_wrong_setting_and_the_work_runs(
    install: Install, caplog: pytest.LogCaptureFixture, source: dict[str, Any]
) -> None:
    faults.forget()
    before = metrics.error_counts().get("source", 0)
    with caplog.at_level(logging.WARNING, "otelctx"):
        install(keys={"session": {"sources": [source, {"contextvar": f"{__name__}:TENANT"}]}})
        with ThreadPoolExecutor(1) as pool, otelctx.bind(session="A"):
            assert [pool.submit(whose).result(TIMEOUT) for _ in range(3)] == ["A"] * 3
        token = TENANT.set("B")  # the key's other source works
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(whose).result(TIMEOUT) == "B"
        TENANT.reset(token)
    assert metrics.error_counts().get("source", 0) - before == 1
    assert len(complaints(caplog)) == 1
    assert source["contextvar"] in complaints(caplog)[0]


def test_a_source_in_a_module_that_is_not_imported_is_no_error_and_counts_once_it_is(
    install: Install, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_later.py").write_text("from contextvars import ContextVar\nKEY = ContextVar('KEY')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    with caplog.at_level(logging.WARNING, "otelctx"):
        install(keys={"session": {"sources": [{"contextvar": "imported_later:KEY"}]}})
        with ThreadPoolExecutor(1) as pool:
            with otelctx.bind(session="A"):
                assert pool.submit(whose).result(TIMEOUT) == "A"
            try:
                variable = importlib.import_module("imported_later").KEY
                variable.set("B")
                assert pool.submit(variable.get).result(TIMEOUT) == "B"
                assert pool.submit(whose).result(TIMEOUT) == "B"
            finally:
                sys.modules.pop("imported_later", None)
    assert complaints(caplog) == []


# --- contract: what never travels -------------------------------------------------------------------------------------


def by_submit(fn: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fn).result(TIMEOUT)


def by_map(fn: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return next(iter(pool.map(lambda _: fn(), [1])))


def by_loop(fn: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, fn)

    return asyncio.run(main())


def by_thread_pool(fn: Callable[[], Any]) -> Any:
    with ThreadPool(1) as pool:
        return pool.apply(fn)


def in_new_thread(make: Callable[[Callable[[], None]], threading.Thread], fn: Callable[[], Any]) -> Any:
    seen: Future[Any] = Future()
    thread = make(lambda: seen.set_result(fn()))
    thread.start()
    thread.join(TIMEOUT)
    return seen.result(0)


def by_thread(fn: Callable[[], Any]) -> Any:
    return in_new_thread(lambda target: threading.Thread(target=target), fn)


def by_timer(fn: Callable[[], Any]) -> Any:
    return in_new_thread(lambda target: threading.Timer(0, target), fn)


def by_callback(fn: Callable[[], Any]) -> Any:
    seen: Future[Any] = Future()
    hold = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold.wait, TIMEOUT).add_done_callback(lambda _: seen.set_result(fn()))
        hold.set()
    return seen.result(TIMEOUT)


def by_snapshot(fn: Callable[[], Any]) -> Any:
    snapshot = otelctx.capture()
    return Context().run(snapshot.run, fn)


HOPS: list[Callable[[Callable[[], Any]], Any]] = [
    by_submit,
    by_map,
    by_loop,
    by_thread_pool,
    by_thread,
    by_timer,
    by_callback,
    by_snapshot,
]

inherits = bool(getattr(sys.flags, "thread_inherit_context", False))


@pytest.mark.parametrize("hop", HOPS)
@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.usefixtures("on")
def test_an_undeclared_variable_does_not_travel(hop: Callable[[Callable[[], Any]], Any], bound: bool) -> None:
    if inherits and hop in (by_thread, by_timer):
        pytest.skip("threads of this interpreter inherit the whole context by themselves")
    token = UNDECLARED.set("caller's")

    def sees() -> tuple[object, object]:
        return UNDECLARED.get("unset"), otelctx.get("session")

    try:
        if bound:
            with otelctx.bind(session="A"):
                assert hop(sees) == ("unset", "A")
        else:
            assert hop(sees) == ("unset", None)
    finally:
        UNDECLARED.reset(token)


# --- contract: no shared snapshot -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on")
def test_two_concurrent_callers_never_share_a_snapshot() -> None:
    both = threading.Barrier(2)
    taken: dict[str, list[otelctx.Snapshot]] = {}

    def caller(who: str) -> None:
        snapshots: list[otelctx.Snapshot] = []
        for number in range(300):
            both.wait(TIMEOUT)
            with otelctx.bind(session=who):
                snapshots.append(otelctx.capture())
            if number % 3 == 0:
                token = KEY.set(who)
                snapshots.append(otelctx.capture())
                KEY.reset(token)
        taken[who] = snapshots

    callers = [threading.Thread(target=caller, args=(who,)) for who in ("A", "B")]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(TIMEOUT)
    a, b = taken["A"], taken["B"]
    assert len(a) == len(b) == 400
    assert {id(snapshot) for snapshot in a}.isdisjoint(id(snapshot) for snapshot in b)
    assert {snapshot.run(otelctx.get, "session") for snapshot in a} == {"A"}
    assert {snapshot.run(otelctx.get, "session") for snapshot in b} == {"B"}


@pytest.mark.usefixtures("on")
def test_two_callers_at_once_under_different_spans_with_nothing_bound_each_depart_under_their_own() -> None:
    tracer = trace.get_tracer(__name__)
    both = threading.Barrier(2)
    wrong: list[object] = []

    def caller() -> None:
        with tracer.start_as_current_span("own") as span:
            trace_id = span.get_span_context().trace_id
            for _ in range(300):
                both.wait(TIMEOUT)
                seen = Context().run(otelctx.capture().run, trace.get_current_span).get_span_context().trace_id
                if seen != trace_id:
                    wrong.append(seen)

    threads = [threading.Thread(target=Context().run, args=(caller,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert wrong == []


@pytest.mark.usefixtures("on")
def test_two_tasks_of_one_departure_run_in_contexts_of_their_own() -> None:
    both = threading.Barrier(2)

    def work(name: str) -> tuple[object, object]:
        UNDECLARED.set(name)
        KEY.set(name)
        both.wait(TIMEOUT)
        return UNDECLARED.get(), KEY.get()

    with ThreadPoolExecutor(2) as pool, otelctx.bind(session="A"):
        one, other = pool.submit(work, "one"), pool.submit(work, "other")
        assert (one.result(TIMEOUT), other.result(TIMEOUT)) == (("one", "one"), ("other", "other"))
        assert pool.submit(KEY.get, "absent").result(TIMEOUT) == "absent"
        assert KEY.get("absent") == "absent"
