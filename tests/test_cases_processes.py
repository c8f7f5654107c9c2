"""Cases 13, 20 and 30, and the rows of the hop table that are processes: whose work a process sees.

Each row is a program in which a session **A** was there first (it made the pool, and warmed it) and **B** departs.
Behind the hop the work is to see B, nothing under nothing, and A never.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import time
import uuid
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from multiprocessing import spawn
from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]  # as its module documents
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import otelctx
from otelctx import carrier, metrics
from otelctx.carrier import Carried
from otelctx.departure import Departure
from otelctx.policy import PROCESS
from otelctx.snapshot import Snapshot
from otelctx_instrumentation.pools import _Departed
from otelctx_instrumentation.processes import _Runner
from tests import process_work as work
from tests.conftest import set_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.conftest import Install

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

TIMEOUT = 30
METHODS = [name for name in ("fork", "spawn", "forkserver") if name in multiprocessing.get_all_start_methods()]
methods = pytest.mark.parametrize("method", METHODS)
two_methods = pytest.mark.parametrize("method", ["fork", "spawn"])

A, B = work.Seen("A", "A", "A", "A"), work.Seen("B", "B", "B", "B")
NONE = work.Seen(None, None, None, None)


@contextmanager
def session(value: str) -> Iterator[None]:
    """A turn of `value`, as an application has it: in a variable of its own, in a binding, and in baggage."""
    token = otel_context.attach(baggage.set_baggage("who", value))
    try:
        with set_to(work.KEY, value), otelctx.bind(session=value):
            yield
    finally:
        otel_context.detach(token)


@contextmanager
def executor(method: str, **options: Any) -> Iterator[ProcessPoolExecutor]:
    """A pool of one worker, which A's first submit has started."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method), **options) as pool:
        with session("A"):
            assert pool.submit(work.add, 1).result(TIMEOUT) == 2
        yield pool


# --- 13: executors ---------------------------------------------------------------------------------------------------


@methods
def test_a_process_pool_that_a_warmed_sees_b_under_b_and_none_under_none(install: Install, method: str) -> None:
    install(keys=work.SESSION)
    with executor(method, initializer=work.note_seen) as pool:
        with session("B"):
            assert pool.submit(work.seen).result(TIMEOUT) == B
            assert list(pool.map(work.seen, range(5), chunksize=2)) == [B] * 5
            assert pool.submit(work.Thing().method).result(TIMEOUT) == B
            assert pool.submit(partial(work.seen, 1)).result(TIMEOUT) == B
        assert pool.submit(work.seen).result(TIMEOUT) == NONE
        assert list(pool.map(work.seen, range(2))) == [NONE] * 2
        assert Context().run(pool.submit, work.seen).result(TIMEOUT) == NONE
        assert pool.submit(work.what_was_noted).result(TIMEOUT) == [NONE]  # by the initializer


def test_a_task_that_binds_and_never_resets_leaves_the_next_task_its_own_variables_and_no_key(install: Install) -> None:
    install(keys=work.SESSION)
    with executor("fork") as pool:
        for departing in ("B", None):
            with session("B") if departing else otelctx.shed_claim():
                pool.submit(work.keep, "X").result(TIMEOUT)
            assert pool.submit(work.kept).result(TIMEOUT) == (NONE, "X", 7)
            with session("B"):
                assert pool.submit(work.kept).result(TIMEOUT) == (B, "X", 7)


def test_what_is_entered_in_one_task_is_left_in_the_next_as_without_otelctx(install: Install) -> None:
    install(keys=work.SESSION)
    with set_to(work.UNDECLARED, "the worker's"):
        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
        pool.submit(work.seen).result(TIMEOUT)
    with pool:
        for who in (None, "B"):
            with session(who) if who else set_to(work.UNDECLARED, None):
                pool.submit(work.enter, "a task's").result(TIMEOUT)
                assert pool.submit(work.kept).result(TIMEOUT)[1] == "a task's"
            assert pool.submit(work.leave).result(TIMEOUT) == "the worker's"


def test_a_process_pool_that_an_event_loop_runs_work_in_sees_the_tasks_key(install: Install) -> None:
    install(keys=work.SESSION)

    async def turn(pool: ProcessPoolExecutor, value: str) -> Any:
        with session(value):
            return await asyncio.get_running_loop().run_in_executor(pool, work.seen)

    async def main(pool: ProcessPoolExecutor) -> list[Any]:
        return await asyncio.gather(*(turn(pool, value) for value in "ABA"))

    with executor("fork") as pool:
        assert asyncio.run(main(pool)) == [A, B, A]


@two_methods
def test_an_executor_that_pickles_its_work_by_itself_may_map_what_multiprocessing_cannot_pickle(
    install: Install, method: str
) -> None:
    install(keys=work.SESSION)
    with work.SendsItself(1, mp_context=multiprocessing.get_context(method)) as pool, session("B"):
        assert list(pool.map(lambda _: work.seen(), range(3), chunksize=2, timeout=TIMEOUT)) == [B] * 3


@pytest.mark.skipif(sys.version_info < (3, 14), reason="map(buffersize=) is new in 3.14")
def test_items_that_a_map_submits_later_are_the_maps_and_not_the_consumers(install: Install) -> None:
    install(keys=work.SESSION)
    with executor("fork") as pool:
        with session("B"):
            results = pool.map(work.seen, range(4), buffersize=1)  # type: ignore[call-arg,unused-ignore]
        with session("A"):
            assert list(results) == [B] * 4


def by_apply(pool: Any) -> Any:
    return pool.apply(work.seen)


def by_apply_async(pool: Any) -> Any:
    return pool.apply_async(work.seen, (1,)).get(TIMEOUT)


def by_map(pool: Any) -> Any:
    return pool.map(work.seen, range(3), 2)[2]


def by_map_async(pool: Any) -> Any:
    return pool.map_async(work.seen, range(3), 2).get(TIMEOUT)[2]


def by_imap(pool: Any) -> Any:
    return list(pool.imap(work.seen, range(3), 2))[2]


def by_imap_unordered(pool: Any) -> Any:
    return list(pool.imap_unordered(work.seen, range(3)))[2]


def by_starmap(pool: Any) -> Any:
    return pool.starmap(work.seen, [(1, 2)])[0]


def by_starmap_async(pool: Any) -> Any:
    return pool.starmap_async(work.seen, [(1, 2)]).get(TIMEOUT)[0]


def by_callback(pool: Any) -> Any:
    told: list[work.Seen] = []
    pool.apply_async(work.seen, callback=lambda _: told.append(work.seen())).get(TIMEOUT)
    return told[0]


def by_error_callback(pool: Any) -> Any:
    told: list[work.Seen] = []
    result = pool.map_async(work.fails, [1], error_callback=lambda _: told.append(work.seen()))
    with pytest.raises(KeyError):
        result.get(TIMEOUT)
    return told[0]


WAYS: list[Callable[[Any], Any]] = [
    by_apply,
    by_apply_async,
    by_map,
    by_map_async,
    by_imap,
    by_imap_unordered,
    by_starmap,
    by_starmap_async,
    by_callback,
    by_error_callback,
]


@methods
def test_a_multiprocessing_pool_that_a_warmed_sees_b_under_b_and_none_under_none(install: Install, method: str) -> None:
    install(keys=work.SESSION)
    with session("A"):
        pool = multiprocessing.get_context(method).Pool(1, work.note_seen)
        assert pool.apply(work.seen) == A
    with pool:
        with session("B"):
            assert {way.__name__: way(pool) for way in WAYS} == {way.__name__: B for way in WAYS}
        assert {way.__name__: way(pool) for way in WAYS} == {way.__name__: NONE for way in WAYS}
        assert pool.apply(work.what_was_noted) == [NONE]


# --- processes -------------------------------------------------------------------------------------------------------


def start(method: str, queue: Any) -> Any:
    context: Any = multiprocessing.get_context(method)
    return context.Process(target=work.put_seen, args=(queue,))


@pytest.mark.parametrize(
    "make",
    [
        *(partial(start, method) for method in METHODS),
        work.ForkWithARunOfItsOwn,
        work.SpawnWithARunOfItsOwn,
    ],
    ids=[*METHODS, "fork, own run", "spawn, own run"],
)
def test_a_process_has_the_key_of_whoever_started_it(install: Install, make: Callable[[Any], Any]) -> None:
    install(keys=work.SESSION)
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    process = make(queue)
    with session("B"):
        process.start()
        assert "run" not in vars(process)
        assert queue.get() == B
    process.join(TIMEOUT)
    assert process.exitcode == 0
    assert otelctx.owner_of(process) == otelctx.Owner({"session": "B"})


def test_a_forked_process_keeps_what_no_pickle_could_take_along(install: Install) -> None:
    install(keys=work.SESSION)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with set_to(work.KEY, work.UNSET), set_to(work.UNDECLARED, lambda: "here"):
        process = context.Process(target=lambda: queue.put((work.is_unset(), work.UNDECLARED.get()())))
        process.start()
    assert queue.get() == (True, "here")
    process.join(TIMEOUT)


def test_a_run_that_an_instance_has_of_its_own_is_what_runs(install: Install) -> None:
    install(keys=work.SESSION)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process: Any = context.Process()
    process.run = own = lambda: queue.put(work.seen())
    with session("B"):
        process.start()
    assert queue.get() == B
    process.join(TIMEOUT)
    assert process.run is own


@two_methods
def test_a_process_starts_under_a_value_that_does_not_say_what_it_is(install: Install, method: str) -> None:
    install(keys=work.SESSION)
    context = multiprocessing.get_context(method)
    with set_to(work.KEY, work.Outlaw("Thing", (), {})()):
        process = context.Process(target=work.add, args=(1,))  # type: ignore[attr-defined]
        process.start()
        process.join(TIMEOUT)
    assert process.exitcode == 0
    assert otelctx.owner_of(work.Outlaw("Thing", (), {})()) is None


def test_what_cannot_be_packed_does_not_keep_a_process_from_starting(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(keys=work.SESSION)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    monkeypatch.setattr(carrier, "packed", work.fails)  # a fault of ours
    with session("B"):
        process = context.Process(target=work.put_seen, args=(results,))
        process.start()
    assert results.get(timeout=TIMEOUT) == NONE
    process.join(TIMEOUT)
    assert process.exitcode == 0
    assert "run" not in vars(process)


def test_a_process_that_cannot_start_fails_as_ever_and_has_no_owner(install: Install) -> None:
    install(keys=work.SESSION)
    process = multiprocessing.get_context("spawn").Process(target=lambda: None)
    with session("B"), pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
        process.start()
    assert "run" not in vars(process)
    assert otelctx.owner_of(process) is None


def test_a_future_of_a_process_pool_has_its_submitters_owner(install: Install) -> None:
    install()
    with executor("fork") as pool, otelctx.bind(session="B"):
        future: Future[Any] = pool.submit(work.seen)
        assert otelctx.owner_of(future) == otelctx.Owner({"session": "B"})


def test_a_worker_of_a_pool_is_nobodys(install: Install) -> None:
    install()
    with executor("fork") as pool:
        assert [otelctx.owner_of(process) for process in pool._processes.values()] == [None]


@two_methods
def test_a_worker_of_somebody_elses_pool_is_nobodys_where_it_is_declared(
    install: Install, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv("APP_SESSION", "S")
    session_key = {"sources": [*work.SESSION["session"]["sources"], {"env": "APP_SESSION"}]}
    install(keys={"session": session_key}, threads={"service": [f"{work.__name__}:serve"]})
    context: Any = multiprocessing.get_context(method)
    calls, results = context.SimpleQueue(), context.SimpleQueue()
    worker = context.Process(target=work.serve, args=(calls, results))
    with session("A"):
        worker.start()
        calls.put(True)
        assert results.get() == NONE
    calls.put(False)
    worker.join(TIMEOUT)
    assert otelctx.owner_of(worker) is None


# --- 20: fork --------------------------------------------------------------------------------------------------------


class LookingExporter(SpanExporter):
    def __init__(self) -> None:
        self.fd: int | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.fd is not None:
            os.write(self.fd, repr((work.seen(), trace.get_current_span().get_span_context().is_valid)).encode())
        return SpanExportResult.SUCCESS


def test_a_forked_child_keeps_the_key_and_its_exporters_threads_do_not_have_it(install: Install) -> None:
    install(keys=work.SESSION)
    exporter = LookingExporter()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=10))
    tracer = provider.get_tracer(__name__)
    read, write = os.pipe()
    read_here, write_here = os.pipe()
    with session("A"), tracer.start_as_current_span("turn"):
        child = os.fork()
        if child == 0:
            try:
                exporter.fd = write
                os.write(write_here, repr(work.seen()).encode())
                tracer.start_span("in the child").end()
                time.sleep(TIMEOUT)  # until its parent has read what the exporter's thread saw
            finally:
                os._exit(0)
    try:
        assert os.read(read_here, 1000).decode() == repr(A)
        assert os.read(read, 1000).decode() == repr((NONE, False))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        for fd in (read, write, read_here, write_here):
            os.close(fd)
        provider.shutdown()


# --- 30: claims ------------------------------------------------------------------------------------------------------

CLAIM = {"env": {"task_id": "BOARD_TASK", "token": "BOARD_TOKEN"}, "env_prefix": "BOARD_"}


@pytest.fixture
def holder(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose environment holds a claim."""
    monkeypatch.setenv("BOARD_TASK", "t1")
    monkeypatch.setenv("BOARD_TOKEN", "secret")
    install(claim=CLAIM)


@two_methods
@pytest.mark.usefixtures("holder")
def test_a_pool_that_a_holder_warmed_holds_for_the_holder_and_is_shed_for_a_shed_job(method: str) -> None:
    granted = otelctx.Claim("t9", "dispatcher", "2", "other", 7)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        for _ in range(2):
            state, claim = pool.submit(work.claim).result(TIMEOUT)
            assert (state, claim and claim.task_id, claim and claim.token) == ("held", "t1", "secret")
            with otelctx.shed_claim():
                assert pool.submit(work.claim).result(TIMEOUT) == ("shed", None)
                assert list(pool.map(work.claim, [1, 2], chunksize=2)) == [("shed", None)] * 2
                with otelctx.grant_claim(granted):
                    assert pool.submit(work.claim).result(TIMEOUT) == ("held", granted)


@two_methods
@pytest.mark.usefixtures("holder")
def test_a_pool_that_a_shed_job_warmed_holds_for_the_holder(method: str) -> None:
    with otelctx.cron_run("job"):
        pool = multiprocessing.get_context(method).Pool(1)
        assert pool.apply(work.claim) == ("shed", None)
    with pool:
        assert pool.apply(work.claim)[0] == "held"
        with otelctx.shed_claim():
            assert pool.apply(work.claim) == ("shed", None)


@two_methods
@pytest.mark.usefixtures("holder")
def test_a_child_of_a_holders_process_is_no_holder(method: str) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        assert pool.submit(work.claim_of_a_child).result(TIMEOUT) == ("held", "none")


@pytest.mark.usefixtures("holder")
def test_a_holders_claim_is_held_and_not_handed_on_where_the_environment_of_its_child_denies_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = carrier.pack(otelctx.capture())
    monkeypatch.setenv("OTELCTX_CLAIM", "none")  # as a holder's spawned child has it
    assert otelctx.claim_state() == "none"
    assert carrier.unpack(text).run(work.claim_of_a_child) == ("held", "none")
    assert carrier.unpack(text).run(otelctx.current_claim) == otelctx.Claim("t1", token="secret", pid=os.getpid())


@pytest.mark.usefixtures("holder")
def test_a_claim_that_was_granted_is_handed_on_from_a_worker_as_from_anywhere() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        with otelctx.grant_claim(otelctx.Claim("t9")):
            assert pool.submit(work.claim_of_a_child).result(TIMEOUT) == ("held", "None")


@pytest.mark.usefixtures("holder")
def test_work_that_departs_without_a_claim_has_none_though_the_workers_environment_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        assert pool.submit(work.claim).result(TIMEOUT)[0] == "held"
        monkeypatch.delenv("BOARD_TASK")
        assert otelctx.claim_state() == "none"
        assert pool.submit(work.claim).result(TIMEOUT)[1] is None


@two_methods
@pytest.mark.usefixtures("holder")
def test_a_process_that_a_shed_job_starts_is_shed_and_one_that_the_holder_starts_holds(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    states = []
    for shed in (True, False):
        process = context.Process(target=work.put_claim, args=(queue,))
        with otelctx.shed_claim() if shed else session("A"):
            process.start()
        states.append(queue.get())
        process.join(TIMEOUT)
    assert states == ["shed", "held"]


# --- what is carried -------------------------------------------------------------------------------------------------


class Text(str):
    __slots__ = ("extra",)


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        ("A", "A"),
        ("", ""),
        ("-", "-"),
        ("k\n,%é\U0001f600\ud800", "k\n,%é\U0001f600\ud800"),
        ("x" * 3000, "x" * 3000),
        (b"\x00\xff", b"\x00\xff"),
        (17, 17),
        (1 << 80, 1 << 80),
        (True, True),
        (1.5, 1.5),
        (None, None),
        (uuid.UUID(int=5), uuid.UUID(int=5)),
        (Text("A"), "A"),
        (object(), "absent"),
    ],
    ids=lambda value: f"{value!r}"[:20],
)
def test_a_raw_value_arrives_as_it_is_where_it_is_small_and_immutable(
    install: Install, value: object, arrives: object
) -> None:
    install(keys=work.SESSION)
    with set_to(work.KEY, value):
        departed = otelctx.get("session")
        text = carrier.pack(otelctx.capture())
    arriving = carrier.unpack(text)
    raw = arriving.run(work.raw)
    assert (type(raw), raw) == (type(arrives), arrives)
    assert arriving.run(otelctx.get, "session") == departed


def test_an_unset_sentinel_arrives_as_the_other_processs_own(install: Install) -> None:
    install(keys=work.SESSION)
    with set_to(work.KEY, work.UNSET), executor("spawn") as pool:
        with set_to(work.KEY, work.UNSET):
            assert pool.submit(work.is_unset).result(TIMEOUT)


def test_what_arrives_absent_because_it_cannot_be_carried_is_counted(install: Install) -> None:
    install(keys=work.SESSION)
    before = metrics.error_counts().get("carrier", 0)
    with set_to(work.KEY, object()):
        carrier.pack(otelctx.capture())
    assert metrics.error_counts()["carrier"] == before + 1


def test_keys_arrive_where_they_are_declared_differently(install: Install) -> None:
    install(keys={**work.SESSION, "tenant": {}})
    with session("A"), otelctx.bind(tenant="T"):
        text = carrier.pack(otelctx.capture())
    install(keys={"tenant": {"sources": [{"contextvar": f"{work.__name__}:KEY"}]}})
    arriving = carrier.unpack(text)
    assert arriving.run(otelctx.get, "session") == "A"
    assert arriving.run(otelctx.get, "tenant") == "T"
    assert arriving.run(work.raw) == "A"  # each variable its own raw value, whatever is said of it


def test_what_was_bound_before_the_application_set_its_own_variable_does_not_come_back(install: Install) -> None:
    install(keys=work.SESSION)
    with otelctx.bind(session="outer"), set_to(work.KEY, "inner"):
        arriving = carrier.unpack(carrier.pack(otelctx.capture()))
    assert arriving.run(otelctx.get, "session") == "inner"
    assert arriving.run(lambda: [work.KEY.set(""), otelctx.get("session")][1]) is None


def test_what_a_context_wrote_to_its_view_of_the_environment_is_what_its_work_sees_in_a_worker(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("APP_SESSION", "APP_CRON"):
        monkeypatch.delenv(name, raising=False)
    install(
        keys={"session": {"sources": [*work.SESSION["session"]["sources"], {"env": "APP_SESSION"}]}},
        scoped_env={"mode": "scope", "names": ["APP_SESSION", "APP_CRON"]},
    )
    with executor("fork") as pool:
        with session("B"):
            os.environ["APP_CRON"] = "1"
            assert pool.submit(work.environment).result(TIMEOUT) == ("B", "1")
        with session("A"):
            assert pool.submit(work.environment).result(TIMEOUT) == ("A", None)
        assert pool.submit(work.environment).result(TIMEOUT) == (None, None)


def test_a_snapshot_is_packed_once(install: Install) -> None:
    install(keys=work.SESSION)
    with session("A"):
        captured = otelctx.capture()
        assert carrier.pack(captured) is carrier.pack(captured)
        assert carrier.unpack(carrier.pack(captured)) is carrier.unpack(carrier.pack(captured))


def test_a_text_of_another_version_is_not_read_and_the_work_runs(install: Install) -> None:
    install(keys=work.SESSION)
    with session("A"):
        text, hop = carrier.packed(otelctx.capture(), PROCESS)
    other = text.replace('"v":1', '"v":2')
    assert other != text
    for wrong in (other, "", "{", "[]", '{"v":1}'):
        assert carrier.arrive(wrong, hop, work.seen, (), {}) == NONE


def test_no_token_of_a_claim_and_no_key_is_in_the_repr_of_what_is_sent(install: Install) -> None:
    install(keys=work.SESSION)
    with session("A-secret"), otelctx.grant_claim(otelctx.Claim("t", token="secret")):
        text, hop = carrier.packed(otelctx.capture(), PROCESS)
    assert "secret" in text
    assert "secret" not in repr(Carried(text, hop, work.seen)) + repr(carrier.sealed(text, hop))


def test_a_longer_chain_of_processes_carries_on(install: Install) -> None:
    install(keys=work.SESSION)
    with executor("fork") as pool, session("B"):
        assert pool.submit(_one_more_process).result(TIMEOUT) == B


def _one_more_process() -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work.seen).result(TIMEOUT)


# --- policies, observe, enforce --------------------------------------------------------------------------------------


def test_a_policy_for_processes_sheds_or_mints_the_key(install: Install) -> None:
    for wanted, expected in (("shed", [None, ""]), ("mint", ["process", ""])):
        install(keys={"session": {**work.SESSION["session"], "policy": {"process": wanted}}})
        with executor("fork") as pool, session("B"):
            seen = pool.submit(work.seen).result(TIMEOUT)
        assert [seen.key and str(seen.key).partition(":")[0], seen.variable] == expected


@pytest.fixture
def told() -> Iterator[None]:
    """Forked workers find what is told in them in `work.ALERTS`."""
    work.ALERTS.clear()
    forget = otelctx.on_mismatch(work.ALERTS.append)
    yield
    forget()


@pytest.mark.usefixtures("told")
def test_in_observe_a_forked_worker_keeps_what_it_has_and_says_that_it_is_somebody_elses(install: Install) -> None:
    install(keys=work.SESSION, mode="observe")
    with executor("fork") as pool, session("B"):
        seen, alerts = pool.submit(work.alerts).result(TIMEOUT)
    assert seen == A
    alerts = [one for one in alerts if one.hop_kind == "process"]  # OpenTelemetry's SDK has hops of its own in a fork
    assert [(one.reason, one.expected, one.observed, one.action) for one in alerts] == [
        ("foreign", "B", "A", "observed")
    ]
    assert alerts[0].place is not None
    assert alerts[0].place.file == __file__


@pytest.mark.usefixtures("told")
def test_in_repair_nothing_is_told_of_a_worker_that_starts_neutral(install: Install) -> None:
    install(keys=work.SESSION)
    with executor("fork") as pool, session("B"):
        assert pool.submit(work.alerts).result(TIMEOUT) == (B, [])


def test_in_enforce_a_mismatch_comes_back_with_what_differs(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [*work.SESSION["session"]["sources"], {"env": "APP_SESSION"}]
    install(keys={"session": {"sources": sources}}, mode="enforce")
    monkeypatch.setenv("APP_SESSION", "X")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool, session("B"):
        raised = pool.submit(work.seen).exception(TIMEOUT)
        assert isinstance(raised, otelctx.MismatchError)
        assert (raised.mismatch.expected, raised.mismatch.observed) == ("B", "X")
        assert raised.mismatch.source == "env:APP_SESSION"
        assert str(raised) == "the key session is foreign"


# --- spans -----------------------------------------------------------------------------------------------------------


def test_work_in_a_worker_without_an_sdk_is_under_the_departed_span(install: Install) -> None:
    install(keys=work.SESSION)
    with executor("spawn") as pool, session("B"), trace.get_tracer(__name__).start_as_current_span("turn") as turn:
        departed = turn.get_span_context()
        told = pool.submit(work.span).result(TIMEOUT)
    assert told == {"trace": departed.trace_id, "span": departed.span_id, "recording": False}


def test_a_forked_workers_span_is_the_departed_spans_child(install: Install) -> None:
    install(keys=work.SESSION)
    with executor("fork") as pool, session("B"):
        with trace.get_tracer(__name__).start_as_current_span("turn") as turn:
            told = pool.submit(work.span).result(TIMEOUT)
            many = list(pool.map(_span, range(3), chunksize=3))
    departed = turn.get_span_context()
    for one, name in ((told, "process span"), *((one, "process _span") for one in many)):
        assert (one["trace"], one["parent"]) == (departed.trace_id, departed.span_id)
        assert one["name"] == name
        assert one["attributes"]["otelctx.hop.kind"] == "process"
        assert one["attributes"]["session.id"] == "B"
        assert 0 <= one["attributes"]["otelctx.hop.wait"] < TIMEOUT
    assert len({one["span"] for one in many}) == 3


def _span(_: object) -> dict[str, Any]:
    return work.span()


def test_a_wait_between_clocks_that_disagree_is_not_negative(install: Install) -> None:
    install(keys=work.SESSION)
    with session("B"), trace.get_tracer(__name__).start_as_current_span("turn"):
        departing = carrier.departing(otelctx.capture(), PROCESS, work.span)
        text, (kind, at, *rest) = carrier.packed(departing, PROCESS)
    hop: Any = (kind, at + 3600, *rest)
    told = carrier.arrive(text, hop, work.span, (), {})
    assert told["attributes"]["otelctx.hop.wait"] >= 0


# --- as without otelctx ----------------------------------------------------------------------------------------------


def outcome(call: Callable[[], Any], *, cause: bool = True) -> tuple[object, ...]:
    """What `call` gives or raises, with all that can be seen of it."""
    try:
        return ("returned", call())
    except BaseException as exc:
        notes, remote = getattr(exc, "__notes__", None), exc.__cause__ if cause else None
        last = None if remote is None else str(remote).strip().strip('"').split("\n")[-2:]
        return type(exc), re.sub("0x[0-9a-f]+", "", f"{exc.args} {notes} {last}"), type(remote)


LOCAL: Callable[[], None] = lambda: None  # noqa: E731 - what cannot be pickled

BY_EXECUTOR: dict[str, Callable[[Any], Any]] = {
    "keywords": lambda pool: pool.submit(work.add, 1, self=3, fn=4).result(TIMEOUT),
    "no function": lambda pool: pool.submit(),
    "no callable": lambda pool: pool.submit("no callable").result(TIMEOUT),
    "a wrong call": lambda pool: pool.submit(work.add).result(TIMEOUT),
    "it raises": lambda pool: pool.submit(work.fails).result(TIMEOUT),
    "its result": lambda pool: pool.submit(work.unpicklable).result(TIMEOUT),
    "a lambda": lambda pool: pool.submit(LOCAL).result(TIMEOUT),
    "a lambda in a chunk": lambda pool: list(pool.map(LOCAL, [1, 2], chunksize=2)),
    "an argument": lambda pool: pool.submit(work.identity, LOCAL).result(TIMEOUT),
    "a wrong chunk": lambda pool: list(pool.map(work.add, [1], chunksize=0)),
    "uneven iterables": lambda pool: list(pool.map(work.add, [1, 2, 3], [4, 5])),
    "nothing to map": lambda pool: list(pool.map(work.add, [])),
    "one object twice": lambda pool: _one_object_twice(pool),
}


def _one_object_twice(pool: ProcessPoolExecutor) -> object:
    thing = work.Thing()
    return pool.submit(work.is_same, thing, thing.method).result(TIMEOUT)


@pytest.mark.parametrize("way", BY_EXECUTOR)
def test_an_executor_does_and_raises_what_it_does_without_otelctx(install: Install, way: str) -> None:
    call = BY_EXECUTOR[way]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        without = outcome(lambda: call(pool))
    install(keys=work.SESSION)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool, session("B"):
        assert outcome(lambda: call(pool)) == without


BY_POOL: dict[str, Callable[[Any], Any]] = {
    "keywords": lambda pool: pool.apply(work.add, (1,), {"self": 3, "fn": 4}),
    "by name": lambda pool: pool.apply(func=work.add, args=(1,)),
    "it raises": lambda pool: pool.apply(work.fails),
    "it raises in a chunk": lambda pool: pool.map(work.fails, [1, 2], 2),
    "it raises in an imap": lambda pool: list(pool.imap(work.fails, [1])),
    "its result": lambda pool: _without_addresses(pool),
    "a lambda": lambda pool: pool.apply(LOCAL),
    "a lambda in a chunk": lambda pool: pool.map(LOCAL, [1, 2], 2),
    "an argument": lambda pool: pool.apply(work.identity, (LOCAL,)),
    "an iterable that raises": lambda pool: list(pool.imap(work.add, (1 // n for n in [1, 0]))),
    "nothing to map": lambda pool: pool.map(work.add, []),
}


def _without_addresses(pool: Any) -> object:
    with pytest.raises(MaybeEncodingError) as raised:
        pool.apply(work.unpicklable)
    return type(raised.value), len(raised.value.args)


@pytest.mark.parametrize("way", BY_POOL)
def test_a_pool_does_and_raises_what_it_does_without_otelctx(install: Install, way: str) -> None:
    call, context = BY_POOL[way], multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        without = outcome(lambda: call(pool))
    install(keys=work.SESSION)
    with context.Pool(1) as pool, session("B"):
        assert outcome(lambda: call(pool)) == without


def test_a_worker_that_dies_breaks_the_pool_as_ever(install: Install) -> None:
    install(keys=work.SESSION)
    with executor("fork") as pool, session("B"):
        with pytest.raises(BrokenProcessPool):
            pool.submit(work.dies).result(TIMEOUT)
        with pytest.raises(BrokenProcessPool):
            pool.submit(work.seen)


def test_workers_that_are_replaced_after_each_task_see_the_key(install: Install) -> None:
    install(keys=work.SESSION)
    with executor("spawn", max_tasks_per_child=1) as pool, session("B"):
        assert pool.submit(work.seen).result(TIMEOUT) == B


def test_what_is_cancelled_never_runs(install: Install) -> None:
    install(keys=work.SESSION)
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    with session("B"):
        futures = [pool.submit(work.seen) for _ in range(50)]
    pool.shutdown(cancel_futures=True)
    assert any(future.cancelled() for future in futures)
    assert all(future.cancelled() or future.result(TIMEOUT) == B for future in futures)


# --- garbage ---------------------------------------------------------------------------------------------------------


def _kept() -> int:
    """How many objects there are of those that travel with work."""
    gc.collect()
    return sum(type(thing) in (Carried, Departure, Snapshot, _Runner, _Departed) for thing in gc.get_objects())


def test_finished_processes_futures_and_pools_keep_nothing(install: Install) -> None:
    install(keys=work.SESSION)

    def work_through() -> list[object]:
        with executor("fork") as pool, session("B"):
            futures = [pool.submit(work.Thing().method), *(pool.submit(work.seen) for _ in range(3))]
            results = [future.result(TIMEOUT) for future in futures]
        with multiprocessing.get_context("fork").Pool(1) as others, session("B"):
            asynchronous = others.map_async(work.seen, range(3), callback=lambda _: None)
            asynchronous.get(TIMEOUT)
        with session("B"):
            process = multiprocessing.get_context("fork").Process(target=work.seen)
            process.start()
        process.join(TIMEOUT)
        return [futures, results, asynchronous, process]

    assert work_through()
    before = _kept()
    assert work_through()
    assert _kept() == before


# --- children that are not as their parent ---------------------------------------------------------------------------

PROGRAM = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor

import otelctx
import opentelemetry.context
from tests import process_work as work

TENANT = {"tenant": {"sources": [{"contextvar": f"{work.__name__}:TENANT"}]}}

if __name__ == "__main__":
    method, way = sys.argv[1:]
    if way == "by code":
        otelctx.install({"keys": work.SESSION | TENANT})
    work.KEY.set("A")
    work.TENANT.set("T")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        seen = [pool.submit(work.installed).result(), pool.submit(work.tenant).result()]
        with otelctx.bind(session="B"):
            seen += [pool.submit(work.installed).result(), pool.submit(work.tenant).result()]
    print(seen)
"""


def run(tmp_path: Path, program: str, *arguments: str, flags: Sequence[str] = (), **variables: str) -> Any:
    """What a program prints that is a file of its own, in an interpreter of its own."""
    file = tmp_path / "program.py"
    file.write_text(program)
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, *flags, file, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return eval(done.stdout, {"Seen": work.Seen})


def test_keys_arrive_in_children_in_which_otelctx_is_off_since_code_turned_it_on_in_their_parent(
    tmp_path: Path,
) -> None:
    first = (False, work.Seen("A", "A", "A", None)), ("T", "T")
    then = (False, work.Seen("A", "B", "B", None)), ("T", "T")
    assert run(tmp_path, PROGRAM, "forkserver", "by code") == [*first, *then]


def test_children_are_on_by_themselves_where_the_environment_turns_otelctx_on(tmp_path: Path) -> None:
    config = tmp_path / "otelctx.toml"
    config.write_text(
        f"""
        [keys.session]
        sources = [{{ contextvar = "{work.__name__}:KEY" }}]
        [keys.tenant]
        sources = [{{ contextvar = "{work.__name__}:TENANT" }}]
        """
    )
    first = (True, work.Seen("A", "A", "A", None)), ("T", "T")
    then = (True, work.Seen("A", "B", "B", None)), ("T", "T")
    seen = run(tmp_path, PROGRAM, "spawn", "by itself", OTELCTX_ENABLED="true", OTELCTX_CONFIG=str(config))
    assert seen == [*first, *then]


def test_keys_arrive_in_children_of_an_interpreter_without_site(tmp_path: Path) -> None:
    first = (False, work.Seen("A", "A", "A", None)), ("T", "T")
    then = (False, work.Seen("A", "B", "B", None)), ("T", "T")
    assert run(tmp_path, PROGRAM, "spawn", "by code", flags=["-S"]) == [*first, *then]


IMPORTED_BY_THE_WORK = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor

import otelctx

def first():
    assert "application" not in sys.modules
    return seen()

def seen():
    import application
    return application.KEY.get("absent"), application.TENANT.get("absent"), otelctx.get("session")

def of_a_child():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(first).result()

if __name__ == "__main__":
    import application
    if sys.argv[1] == "by code":
        keys = {name: {"sources": [{"contextvar": f"application:{var}"}]} for name, var in application.NAMES.items()}
        otelctx.install(keys=keys)
    application.KEY.set("A")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with otelctx.bind(session="B"):
            told = [pool.submit(work).result() for work in (of_a_child, first, seen)]
        application.KEY.set("C")
        application.TENANT.set("T")
        print([*told, pool.submit(seen).result()])
"""


@pytest.mark.parametrize("way", ["by code", "by itself"])
def test_a_variable_of_a_module_that_the_work_imports_by_itself_is_as_it_departed(tmp_path: Path, way: str) -> None:
    (tmp_path / "application.py").write_text(
        """
from contextvars import ContextVar
KEY, TENANT = ContextVar("KEY"), ContextVar("TENANT")
NAMES = {"session": "KEY", "tenant": "TENANT"}
        """
    )
    (tmp_path / "otelctx.toml").write_text(
        """
        keys.session.sources = [{ contextvar = "application:KEY" }]
        keys.tenant.sources = [{ contextvar = "application:TENANT" }]
        """
    )
    on = {"OTELCTX_ENABLED": "true", "OTELCTX_CONFIG": str(tmp_path / "otelctx.toml")} if way == "by itself" else {}
    under_b = ("A", "absent", "B")
    of_a_child = under_b if on else ("absent", "absent", None)  # what hops from where otelctx is off is not seen to
    assert run(tmp_path, IMPORTED_BY_THE_WORK, way, **on) == [of_a_child, under_b, under_b, ("C", "T", "C")]


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module, with an application's variable in it, that is there to be imported."""
    name = f"late_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text("from contextvars import ContextVar\nKEY = ContextVar('KEY')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def departed(install: Install, late: str) -> tuple[str, carrier.Hop]:
    """What departed as A, for a process in which that module is not there yet."""
    keys = {"session": {"sources": [{"contextvar": f"{late}:KEY"}]}}
    install(keys=keys)
    with set_to(importlib.import_module(late).KEY, "A"):
        carried = carrier.packed(carrier.departing(otelctx.capture(), PROCESS, None), PROCESS)
    otelctx.uninstall()
    del sys.modules[late]
    install(keys=keys)
    return carried


def test_what_work_has_been_given_by_an_import_is_not_left_to_whoever_comes_next(
    late: str, departed: tuple[str, carrier.Hop]
) -> None:
    def given() -> object:
        return importlib.import_module(late).KEY.get("absent")

    def here() -> tuple[object, object]:
        with set_to(work.UNDECLARED, "the worker's"):  # work runs in place
            return carrier.arrive(departed[0], departed[1], given, (), {}), given()

    assert Context().run(here) == ("A", "absent")


def test_a_binding_of_the_work_counts_whatever_it_imports_then(late: str, departed: tuple[str, carrier.Hop]) -> None:
    def bound() -> tuple[object, ...]:
        with otelctx.bind(session="B"):
            key = importlib.import_module(late).KEY
            return key.get("absent"), otelctx.get("session")

    assert Context().run(lambda: carrier.arrive(departed[0], departed[1], bound, (), {})) == ("absent", "B")


A_START_THAT_FAILS = """
import multiprocessing
import otelctx

if __name__ == "__main__":
    otelctx.install()
    process = multiprocessing.Process()
    process._parent_pid = 0
    try:
        process.start()
    except AssertionError as exc:
        pass
    multiprocessing.set_start_method("spawn")
    print([multiprocessing.get_start_method(), "run" in vars(process)])
"""


def test_a_start_that_fails_does_not_choose_the_start_method(tmp_path: Path) -> None:
    assert run(tmp_path, A_START_THAT_FAILS) == ["spawn", False]


STANDARD_LIBRARY_ONLY = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import otelctx
from otelctx import metrics

if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool, otelctx.bind(session="A"):
        print(pool.submit(metrics.hop_counts).result())
"""


def test_a_child_that_imports_nothing_by_itself_is_on_at_its_first_arrival(tmp_path: Path) -> None:
    counts = run(tmp_path, STANDARD_LIBRARY_ONLY, OTELCTX_ENABLED="true")
    assert counts["process", "carried"] == 1


SPANS = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import otelctx
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from tests import process_work as work

if __name__ == "__main__":
    trace.set_tracer_provider(TracerProvider())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=work.trace_providers) as pool:
        with otelctx.bind(session="B"), trace.get_tracer("test").start_as_current_span("turn") as turn:
            departed = turn.get_span_context()
            print([departed.trace_id, departed.span_id, pool.submit(work.span).result()])
"""


def test_a_hop_has_a_span_in_a_spawned_worker_that_is_on_and_has_an_sdk(tmp_path: Path) -> None:
    trace_id, span_id, told = run(tmp_path, SPANS, OTELCTX_ENABLED="true")
    assert (told["trace"], told["parent"], told["name"]) == (trace_id, span_id, "process span")
    assert told["attributes"]["code.function.name"] == f"{work.__name__}.span"
    assert told["attributes"]["otelctx.hop.wait"] >= 0


@pytest.mark.parametrize("what", ["another interpreter", "another path"])
def test_work_runs_without_a_key_in_a_child_that_may_not_be_able_to_import_otelctx(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    install(keys=work.SESSION)
    if what == "another interpreter":
        other = tmp_path / "python"
        other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        other.chmod(0o755)
        monkeypatch.setattr(spawn, "_python_exe", os.fsencode(other))
    else:
        monkeypatch.setattr(carrier, "__file__", str(tmp_path / "otelctx" / "carrier.py"))
    before = metrics.error_counts().get("process", 0)
    context: Any = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    with session("B"):
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            future = pool.submit(work.seen)
            assert future.result(TIMEOUT) == NONE
            assert list(pool.map(work.seen, [1])) == [NONE]
        process = context.Process(target=work.put_seen, args=(queue,))
        process.start()
        assert queue.get() == NONE
        process.join(TIMEOUT)
    assert otelctx.owner_of(future) == otelctx.Owner({"session": "B"})
    assert metrics.error_counts()["process"] > before
