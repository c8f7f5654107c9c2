"""Owners: whose a handle is, whatever happens to everything else in the meantime."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import subprocess
import sys
import threading
import tracemalloc
import uuid
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace

import otelctx
from otelctx import Claim, binding, metrics, owners
from otelctx.owners import Owner, forget_owner, owner_of, record_owner, resolve_owner
from otelctx_instrumentation.owners import not_spawned, spawned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from otelctx import Mismatch
    from tests.conftest import Install

KEY: ContextVar[Any] = ContextVar("KEY")
KEYS = {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}]}}
CLAIM = {"env": {"task_id": "OWNERS_TASK", "token": "OWNERS_TOKEN"}}
SHEDS: ContextVar[bool] = ContextVar("SHEDS", default=False)


def is_worker() -> bool:
    return not SHEDS.get()


class Handle:
    """An ordinary handle."""


class Hostile:
    """A handle whose every question is answered by a fault."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __bool__(self) -> bool:
        raise RuntimeError("asked for its truth")

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"asked for {name}")

    @property
    def __class__(self) -> type[Hostile]:
        raise RuntimeError("asked for its class")

    @__class__.setter
    def __class__(self, value: type) -> None:
        raise RuntimeError("given a class")


class Same:
    """Handles that are all equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same)

    def __hash__(self) -> int:
        return 1


@contextmanager
def table_of(size: int) -> Iterator[None]:
    """An empty table of plain values that holds `size`."""
    before, kept = owners.VALUES, owners._values.copy()
    owners._values.clear()
    owners.VALUES = size  # type: ignore[misc]
    try:
        yield
    finally:
        owners.VALUES = before  # type: ignore[misc]
        owners._values.clear()
        owners._values.update(kept)


@pytest.fixture(autouse=True)
def _own_values() -> Iterator[None]:
    with table_of(owners.VALUES):
        yield


# --- recording -------------------------------------------------------------------------------------------------------


def test_a_handle_that_was_never_recorded_has_no_owner() -> None:
    assert owner_of(Handle()) is None
    assert owner_of("never") is None


def test_the_owner_is_who_was_current_when_it_was_recorded_and_stays_it() -> None:
    handle = Handle()
    with otelctx.bind(session="A"):
        record_owner(handle)
    with otelctx.bind(session="B"):
        record_owner(handle)
        owner = owner_of(handle)
    assert owner == Owner({"session": "A"})
    assert owner is not None
    assert owner.session == "A"


def test_an_owner_that_is_given_takes_the_place_of_an_earlier_one() -> None:
    handle = Handle()
    record_owner(handle, "A")
    record_owner(handle, "B")
    assert owner_of(handle) == Owner({"session": "B"})
    record_owner(handle, Owner({"session": "C", "tenant": "t"}, "shed"))
    assert owner_of(handle) == Owner({"session": "C", "tenant": "t"}, "shed")
    record_owner("job", "A")
    record_owner("job", "B")
    assert owner_of("job") == Owner({"session": "B"})


def test_an_empty_session_that_is_given_is_an_owner_too() -> None:
    handle = Handle()
    record_owner(handle, "A")
    with otelctx.bind(session="B"):
        record_owner(handle, "")
    assert owner_of(handle) == Owner({})


def test_of_two_that_record_at_the_very_same_time_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle()
    with otelctx.bind(session="A"):
        record_owner(handle)
    with otelctx.bind(session="B"), monkeypatch.context() as patch:
        patch.setattr(owners, "getweakrefs", lambda _: [])  # as the second one saw it
        record_owner(handle)
    assert owner_of(handle) == Owner({"session": "A"})
    record_owner(handle, "C")
    assert owner_of(handle) == Owner({"session": "C"})


def test_every_declared_key_is_the_owners_and_what_the_application_bound_is(install: Install) -> None:
    install(keys={**KEYS, "tenant": {}})
    handle, token = Handle(), KEY.set("app")
    with otelctx.bind(tenant="t"):
        record_owner(handle)
    KEY.reset(token)
    assert owner_of(handle) == Owner({"session": "app", "tenant": "t"})


def test_a_handle_that_nobody_owns_has_an_owner_without_a_session() -> None:
    handle = Handle()
    record_owner(handle)
    owner = owner_of(handle)
    assert owner == Owner({})
    assert owner is not None
    assert owner.session is None


def test_owners_work_where_otelctx_was_never_installed() -> None:
    code = (
        "import otelctx.owners as o, otelctx, sys\n"
        "class H: pass\n"
        "h, seen = H(), []\n"
        "otelctx.on_mismatch(seen.append)\n"
        "with otelctx.bind(session='A'): o.record_owner(h)\n"
        "assert o.resolve_owner(h, 'B') == 'A' and seen[0].action == 'rerouted'\n"
        "assert not otelctx.is_installed() and 'opentelemetry.sdk' not in sys.modules\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, timeout=50, check=False)
    assert ran.returncode == 0


@pytest.mark.parametrize("handle", [[], {}, 1.5, True, None, object(), (1, []), ("a", ("b",)), tuple(range(17))])
def test_a_handle_that_is_neither_a_plain_value_nor_weakly_referenceable_is_refused(handle: object) -> None:
    with pytest.raises(TypeError, match="otelctx: the owner of a "):
        record_owner(handle, "A")
    assert owner_of(handle) is None
    assert resolve_owner(handle, "B") == "B"
    forget_owner(handle)


@pytest.mark.parametrize("handle", ["x" * 1025, b"x" * 1025, 1 << 8193])
def test_a_plain_value_that_is_too_long_to_be_an_id_is_refused(handle: object) -> None:
    with pytest.raises(ValueError, match="longer than 1024"):
        record_owner(handle, "A")
    assert owner_of(handle) is None
    assert resolve_owner(handle, "B") == "B"


@pytest.mark.parametrize("owner", [1, b"A", {"session": "A"}, Handle()])
def test_an_owner_that_is_none_is_refused(owner: Any) -> None:
    with pytest.raises(TypeError, match="an owner is a session key or an Owner"):
        record_owner(Handle(), owner)


def test_an_owner_cannot_be_changed_and_keeps_characters_only() -> None:
    class Text(str):
        __slots__ = ()

    given = {"session": Text("A"), "tenant": ""}
    owner = Owner(given)
    given["session"] = Text("B")
    assert owner.session == "A"
    assert type(owner.session) is str
    assert "tenant" not in owner.keys
    with pytest.raises(TypeError):
        owner.keys["session"] = "B"  # type: ignore[index]
    with pytest.raises(AttributeError):
        owner.claim = "shed"  # type: ignore[misc]
    assert len({owner, Owner({"session": "A"}), copy.copy(owner)}) == 1
    for keys, claim in (({"session": 1}, None), ({1: "A"}, None), ({}, "held")):
        with pytest.raises(TypeError):
            Owner(keys, claim)  # type: ignore[arg-type]


# --- handles ---------------------------------------------------------------------------------------------------------


def test_a_handle_is_known_by_its_identity_alone() -> None:
    one, other = Same(), Same()
    record_owner(one, "A")
    assert owner_of(other) is None
    record_owner(other, "B")
    assert owner_of(one) == Owner({"session": "A"})


def test_a_handle_is_never_asked_anything() -> None:
    handles = [Hostile(), Hostile()]
    for handle, session in zip(handles, "AB", strict=True):
        record_owner(handle, session)
        assert resolve_owner(handle, "C") == session
    forget_owner(handles[0])
    assert owner_of(handles[0]) is None


def test_a_record_is_not_in_the_handle_and_does_not_go_with_its_copies() -> None:
    handle = Handle()
    record_owner(handle, "A")
    assert vars(handle) == {}
    assert owner_of(copy.copy(handle)) is None


def test_a_record_goes_with_its_handle_and_keeps_nothing_alive() -> None:
    gc.collect()
    before = len(owners._alive)
    handle, cyclic = Handle(), Handle()
    cyclic.itself = cyclic  # type: ignore[attr-defined]
    gone = weakref.ref(handle), weakref.ref(cyclic)
    record_owner(handle, "A")
    record_owner(cyclic, "A")
    record_owner(handle, "B")
    assert len(owners._alive) == before + 2
    del handle, cyclic
    gc.collect()
    assert [one() for one in gone] == [None, None]
    assert len(owners._alive) == before


def test_a_handle_at_the_address_of_a_dead_one_has_no_owner() -> None:
    addresses, reused = set(), 0
    for _ in range(1000):
        handle = Handle()
        reused += id(handle) in addresses
        addresses.add(id(handle))
        assert owner_of(handle) is None
        record_owner(handle, "A")
    assert reused


def test_a_finalizer_may_ask_for_the_owner_and_record_another_handle() -> None:
    class Finalized:
        def __init__(self) -> None:
            self.cycle: object = None

        def __del__(self) -> None:
            seen.append(resolve_owner(self, "candidate"))
            record_owner(kept, "A")
            forget_owner(self)

    seen: list[str] = []
    kept = Handle()
    handle = Finalized()
    record_owner(handle, "A")
    del handle
    assert seen == ["A"]
    for _ in range(1000):
        handle = Finalized()
        handle.cycle = handle
        record_owner(handle, "A")
        del handle
    gc.collect()
    # Of a handle that dies in a cycle the record may have gone before: then the candidate passes.
    assert len(seen) == 1001
    assert set(seen) <= {"A", "candidate"}


def test_a_hundred_thousand_live_handles_take_little_memory_and_dead_ones_none() -> None:
    handles = [Handle() for _ in range(100_000)]
    gc.collect()
    before = len(owners._alive)
    gc.collect()
    tracemalloc.start()
    try:
        with otelctx.bind(session="A"):
            for handle in handles:
                record_owner(handle)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 100_000 * 250
    assert len(owners._alive) == before + 100_000
    assert all(owner_of(handle) is owner_of(handles[0]) for handle in handles[::1000])
    del handles, handle
    gc.collect()
    assert len(owners._alive) == before


def test_many_sessions_are_remembered_for_as_long_as_their_handles_only() -> None:
    handles = []
    for number in range(5000):
        with otelctx.bind(session=f"s{number}"):
            handles.append(Handle())
            record_owner(handles[-1])
    assert [owner.session for owner in map(owner_of, handles) if owner] == [f"s{n}" for n in range(5000)]
    assert len(owners._by_flow) <= 1024


# --- plain values ----------------------------------------------------------------------------------------------------

AN_ID = uuid.UUID(int=7)


@pytest.mark.parametrize("value", ["job", b"job", 7, -1, AN_ID, ("job", 7), (b"job", AN_ID), ""])
def test_a_plain_value_is_known_by_what_it_says(value: Any) -> None:
    record_owner(value, "A")
    assert owner_of(copy.deepcopy(value)) == Owner({"session": "A"})
    forget_owner(value)
    assert owner_of(value) is None
    forget_owner(value)


def test_plain_values_of_different_types_are_different() -> None:
    values: list[object] = [1, "1", b"1", ("1",), (1,), (b"1",), str(AN_ID), AN_ID, "a", b"a", str(b"a")]
    for number, value in enumerate(values):
        record_owner(value, f"s{number}")
    assert [owner_of(value) for value in values] == [Owner({"session": f"s{n}"}) for n in range(len(values))]


def test_a_plain_value_of_a_subclass_is_the_value_and_is_not_kept() -> None:
    class Job(str):
        __slots__ = ("__weakref__",)

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

        def __hash__(self) -> int:
            raise RuntimeError("hashed")

    job = Job("job")
    gone = weakref.ref(job)
    record_owner(job, "A")
    del job
    gc.collect()
    assert gone() is None
    assert owner_of("job") == Owner({"session": "A"})


def test_of_plain_values_the_ones_used_last_are_remembered() -> None:
    with table_of(3):
        for value in ("a", "b", "c"):
            record_owner(value, "A")
        assert owner_of("a") is not None
        record_owner("d", "A")
        assert [owner_of(value) is not None for value in "abcd"] == [True, False, True, True]
        resolve_owner("a", "A")
        record_owner("e", "A")
        assert len(owners._values) == 3
        assert owner_of("a") is not None


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("rgf"), st.integers(0, 9)), max_size=60))
def test_the_table_of_values_is_what_a_least_recently_used_one_would_be(steps: list[tuple[str, int]]) -> None:
    model: dict[int, str] = {}
    with table_of(4):
        for number, (step, value) in enumerate(steps):
            if step == "f":
                forget_owner(value)
                model.pop(value, None)
            elif step == "r":
                with otelctx.bind(session=f"s{number}"):
                    record_owner(value)
                model[value] = model.pop(value, f"s{number}")
                if len(model) > 4:
                    del model[next(iter(model))]
            else:
                owner = owner_of(value)
                assert (owner and owner.session) == model.get(value)
                if value in model:
                    model[value] = model.pop(value)
        left = {value: owner.session for value in range(10) if (owner := owner_of(value))}
    assert left == model


def test_threads_that_record_and_resolve_at_once_see_each_handles_own_owner() -> None:
    shared = [Handle() for _ in range(200)]
    start = threading.Barrier(4)
    wrong: list[object] = []

    def work(me: int) -> None:
        start.wait(20)
        for number, handle in enumerate(shared):
            with otelctx.bind(session=f"w{me}"):
                record_owner(handle)
                record_owner(f"{me}:{number}")
                record_owner(number)
            mine = Handle()
            record_owner(mine, f"m{me}")
            if resolve_owner(mine, f"m{me}") != f"m{me}" or owner_of(f"{me}:{number}") != Owner({"session": f"w{me}"}):
                wrong.append((me, number))

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    with table_of(5000):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not wrong
        firsts = [owner_of(handle) for handle in shared]
        assert all(owner is not None and owner.session in {"w0", "w1", "w2", "w3"} for owner in firsts)
        assert [owner_of(handle) for handle in shared] == firsts


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_knows_the_owners_and_can_record_more() -> None:
    handle = Handle()
    record_owner(handle, "A")
    child = get_context("fork").Process(target=_in_the_child, args=(handle,))
    child.start()
    child.join(30)
    assert child.exitcode == 0


def _in_the_child(handle: Handle) -> None:
    more = Handle()
    record_owner(more, "B")
    assert resolve_owner(handle, "C") == "A"
    assert resolve_owner(more, "C") == "B"


# --- completion ------------------------------------------------------------------------------------------------------


def test_a_recorded_owner_that_differs_wins_and_an_alert_says_so(alerts: list[Mismatch]) -> None:
    process = Handle()
    with otelctx.bind(session="A"):
        record_owner(process)
    with otelctx.bind(session="B"):
        assert resolve_owner(process, "B") == "A"
    (alert,) = alerts
    assert (alert.key, alert.reason, alert.action) == ("session", "foreign", "rerouted")
    assert (alert.expected, alert.observed) == ("A", "B")
    assert alert.place is not None
    assert alert.place.function == "test_a_recorded_owner_that_differs_wins_and_an_alert_says_so"


@pytest.mark.parametrize("candidate", ["A", "B", "", None])
def test_without_an_owner_that_has_a_session_the_candidate_passes_unchanged(
    candidate: str | None, alerts: list[Mismatch]
) -> None:
    nobodys = Handle()
    record_owner(nobodys)
    tenants = Handle()
    record_owner(tenants, Owner({"tenant": "t"}, "shed"))
    emptied = Handle()
    record_owner(emptied, "")
    for handle in (Handle(), "unknown", 404, nobodys, tenants, emptied):
        assert resolve_owner(handle, candidate) is candidate
    assert not alerts


def test_agreement_passes_the_candidate_itself_and_says_nothing(alerts: list[Mismatch]) -> None:
    class Text(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

        __hash__ = None  # type: ignore[assignment]

    handle = Handle()
    record_owner(handle, "A")
    for candidate in ("A", Text("A")):
        assert resolve_owner(handle, candidate) is candidate
    assert not alerts


def test_a_candidate_is_not_asked_whether_it_is_the_owner() -> None:
    class Liar(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    record_owner("job", "A")
    assert type(resolve_owner("job", Liar("B"))) is str


@pytest.mark.parametrize("candidate", ["", None])
def test_a_candidate_that_was_lost_is_found_again(candidate: str | None, alerts: list[Mismatch]) -> None:
    handle = Handle()
    record_owner(handle, "A")
    assert resolve_owner(handle, candidate) == "A"
    assert [(alert.reason, alert.action, alert.observed) for alert in alerts] == [("lost", "rerouted", None)]


@pytest.mark.parametrize("mode", ["observe", "repair", "enforce"])
def test_the_owner_wins_in_every_mode(mode: str, install: Install, alerts: list[Mismatch]) -> None:
    install(mode=mode)
    record_owner("job", "A")
    assert resolve_owner("job", "B") == "A"
    assert [alert.action for alert in alerts] == ["rerouted"]


def test_one_wrong_candidate_of_a_handle_is_one_alert_and_counted_each_time(
    alerts: list[Mismatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[Mismatch] = []
    monkeypatch.setattr(metrics, "mismatch_counted", lambda mismatch, context=None: counted.append(mismatch))
    handle = Handle()
    record_owner(handle, "A")
    for candidate in ("B", "B", "C", "A", "C"):
        assert resolve_owner(handle, candidate) == "A"
    assert [alert.observed for alert in alerts] == ["B", "C"]
    assert [mismatch.observed for mismatch in counted] == ["B", "B", "C", "C"]
    record_owner(handle, "D")
    assert resolve_owner(handle, "C") == "D"
    assert [alert.expected for alert in alerts] == ["A", "A", "D"]


def test_the_alert_is_on_the_current_span_which_did_not_fail(spans: InMemorySpanExporter) -> None:
    handle = Handle()
    record_owner(handle, "A")
    with trace.get_tracer(__name__).start_as_current_span("completed"):
        resolve_owner(handle, "B")
    (span,) = spans.get_finished_spans()
    assert [event.name for event in span.events] == ["otelctx.mismatch"]
    assert span.attributes is not None
    assert span.attributes["otelctx.mismatch"] is True
    assert span.status.is_unset


def test_a_fault_while_resolving_passes_the_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("fault")

    record_owner("job", "A")
    monkeypatch.setattr(owners, "_tell", fail)
    assert resolve_owner("job", "B") == "B"


# --- claims ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def worker(install: Install, monkeypatch: pytest.MonkeyPatch) -> Claim:
    """A process whose environment holds a claim, and whose application can say that it has shed it."""
    monkeypatch.setenv("OWNERS_TASK", "t_1")
    monkeypatch.setenv("OWNERS_TOKEN", "secret")
    install(claim={**CLAIM, "predicate": f"{__name__}:is_worker"})
    return Claim("t_1", token="secret", pid=os.getpid())


def claim_of(handle: object) -> object:
    owner = owner_of(handle)
    assert owner is not None
    return owner.claim


def recorded() -> Handle:
    handle = Handle()
    record_owner(handle)
    return handle


def test_the_owners_claim_is_what_counted_at_the_spawn(worker: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = recorded()
    with otelctx.shed_claim():
        shed = recorded()
        granted_claim = Claim("t_2")
        with otelctx.grant_claim(granted_claim):
            granted = recorded()
    token = SHEDS.set(True)
    by_application = recorded()
    SHEDS.reset(token)
    monkeypatch.delenv("OWNERS_TASK")
    assert [claim_of(one) for one in (handle, shed, granted, by_application)] == [worker, "shed", granted_claim, "shed"]
    assert claim_of(recorded()) is None


def test_a_process_that_nobody_gave_a_claim_records_none(install: Install) -> None:
    install(claim=CLAIM)
    assert claim_of(recorded()) is None


class View(type(os.environ)):  # type: ignore[misc]
    """A view of the environment that says more than what it is a view of."""

    def __getitem__(self, name: str) -> str:
        return "t_1" if name == "OWNERS_TASK" else str(super().__getitem__(name))


@pytest.mark.parametrize("view", ["a dictionary", "a view"])
def test_a_claim_is_found_where_the_environment_is_not_the_plain_one(
    view: str, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(claim=CLAIM)
    plain: Any = os.environ
    copied = View({}, plain.encodekey, plain.decodekey, plain.encodevalue, plain.decodevalue)
    monkeypatch.setattr(os, "environ", {"OWNERS_TASK": "t_1"} if view == "a dictionary" else copied)
    assert claim_of(recorded()) == Claim("t_1", pid=os.getpid())


_asked: list[Handle] = []


def spawning_predicate() -> bool:
    _asked.append(recorded())
    return True


def test_a_predicate_that_spawns_something_itself_is_not_asked_for_ever(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWNERS_TASK", "t_1")
    install(claim={**CLAIM, "predicate": f"{__name__}:spawning_predicate"})
    _asked.clear()
    recorded()
    assert len(_asked) == 1


# --- what instrumentations record ------------------------------------------------------------------------------------


def handles() -> dict[str, Callable[[], object]]:
    return {
        "a thread": lambda: threading.Thread(target=print),
        "a timer": lambda: threading.Timer(1, print),
        "a future": Future,
        "a multiprocessing process": lambda: get_context("spawn").Process(target=print),
    }


@pytest.mark.parametrize("kind", handles())
def test_what_is_spawned_is_its_spawners(kind: str) -> None:
    handle = handles()[kind]()
    with otelctx.bind(session="A"):
        captured = otelctx.capture()
        assert spawned(handle)
    with otelctx.bind(session="B"):
        assert not spawned(handle)
        assert resolve_owner(handle, "B") == "A"
        other = handles()[kind]()
        assert spawned(other, captured)
        assert resolve_owner(other, "B") == "A"


def test_a_task_is_whose_it_was_when_it_was_recorded() -> None:
    async def main() -> str:
        with otelctx.bind(session="A"):
            task = asyncio.create_task(asyncio.sleep(0))
            record_owner(task)
        await task
        return resolve_owner(task, "B")

    assert asyncio.run(main()) == "A"


def test_a_started_process_is_its_spawners() -> None:
    with otelctx.bind(session="A"):
        process = subprocess.Popen([sys.executable, "-c", ""])
        assert spawned(process)
    process.wait(30)
    assert resolve_owner(process, "B") == "A"


def test_a_future_of_a_pool_is_known_in_its_callback() -> None:
    seen: list[str] = []
    with ThreadPoolExecutor(1) as pool, otelctx.bind(session="A"):
        future = pool.submit(int)
        assert spawned(future, otelctx.capture())
        future.add_done_callback(lambda done: seen.append(resolve_owner(done, "B")))
    assert seen == ["A"]


def test_what_nobody_spawned_has_no_record_and_can_get_one_by_hand() -> None:
    handle = Handle()
    assert not spawned(handle)
    assert owner_of(handle) is None
    with otelctx.bind(session="A"):
        record_owner(handle)
    assert owner_of(handle) == Owner({"session": "A"})


def test_a_start_that_failed_leaves_the_handle_to_whoever_starts_it_next() -> None:
    thread = threading.Thread(target=int)
    with otelctx.bind(session="A"):
        assert spawned(thread)
        not_spawned(thread)
    with otelctx.bind(session="B"):
        assert spawned(thread)
    assert owner_of(thread) == Owner({"session": "B"})


def test_a_handle_that_cannot_be_recorded_does_not_stop_the_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    from otelctx import faults

    seen: list[str] = []
    monkeypatch.setattr(faults, "internal_error", lambda component, *_: seen.append(component))
    with otelctx.bind(session="A"):
        assert not spawned([])
    assert seen == ["owners"]


def test_a_shed_spawn_is_recorded_though_it_has_no_session() -> None:
    handle = Handle()
    with otelctx.shed_claim():
        assert spawned(handle)
    assert owner_of(handle) == Owner({}, "shed")
    assert binding.claim() is None
