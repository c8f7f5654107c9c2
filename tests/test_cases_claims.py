"""Cases 25 to 32, 38 and 50: who holds the claim, and who does not."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

import otelctx
from otelctx import Claim, children, metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from otelctx import Mismatch
    from tests.conftest import Install

SESSION: ContextVar[str] = ContextVar("SESSION")

CLAIM = {
    "env": {"task_id": "BOARD_TASK", "attempt": "BOARD_RUN", "token": "BOARD_LOCK"},
    "env_prefix": "BOARD_",
    "behaviour_only": ["BOARD_BRANCH"],
}
SOURCES = [{"contextvar": f"{__name__}:SESSION", "empty": [""]}, {"env": "APP_SESSION"}]

SHOWN = ("APP_SESSION", "BOARD_TASK", "BOARD_RUN", "BOARD_LOCK", "BOARD_BRANCH", "BOARD_EXTRA", "OTELCTX_CLAIM")
PROGRAM = f"import json, os; print(json.dumps({{n: os.environ.get(n) for n in {SHOWN!r}}}))"


@pytest.fixture
def worker(install: Install, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A process whose environment holds a claim; that environment must be the same when the test is over."""
    for name in SHOWN:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"BOARD_TASK": "t1", "BOARD_RUN": "3", "BOARD_LOCK": "s3cret", "BOARD_BRANCH": "main"}.items():
        monkeypatch.setenv(name, value)
    install(claim=CLAIM, keys={"session": {"sources": SOURCES}})
    before = dict(os.environ)
    yield before
    now = dict(os.environ)
    for volatile in ("PYTEST_CURRENT_TEST",):
        before.pop(volatile, None)
        now.pop(volatile, None)
    assert now == before


def in_child(**options: Any) -> dict[str, str | None]:
    result = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=30, **options
    )
    shown: dict[str, str | None] = json.loads(result.stdout)
    return shown


# --- the state -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
def test_a_process_holds_the_claim_of_its_environment_and_a_block_that_sheds_it_does_not() -> None:
    assert otelctx.is_claim_holder()
    assert otelctx.current_claim() == Claim("t1", attempt="3", token="s3cret", pid=os.getpid())
    with otelctx.shed_claim():
        assert not otelctx.is_claim_holder()
        assert otelctx.claim_state() == "shed"
        with otelctx.shed_claim():
            assert otelctx.current_claim() is None
        assert otelctx.claim_state() == "shed"
    assert otelctx.is_claim_holder()
    with pytest.raises(ZeroDivisionError), otelctx.shed_claim():
        1 / 0  # noqa: B018
    assert otelctx.claim_state() == "held"


def test_a_process_without_a_claim_has_none(install: Install) -> None:
    install(claim=CLAIM)
    assert otelctx.claim_state() == "none"
    assert otelctx.current_claim() is None


@pytest.mark.usefixtures("worker")
def test_a_child_that_was_marked_is_no_holder_whatever_else_its_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("OTELCTX_CLAIM", "none")
        assert otelctx.claim_state() == "none"


@pytest.mark.usefixtures("worker")
def test_a_shed_travels_through_every_hop_and_ends_by_a_grant_only_there() -> None:
    seen: dict[str, Any] = {}

    def look(name: str) -> None:
        seen[name] = otelctx.claim_state()

    async def coroutine() -> None:
        await asyncio.create_task(asyncio.to_thread(look, "to_thread"))
        look("coroutine")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(look, "before").result(10)
        with otelctx.shed_claim():
            pool.submit(look, "pool").result(10)
            thread = threading.Thread(target=look, args=("thread",))
            thread.start()
            thread.join(10)
            asyncio.run(coroutine())
            with otelctx.grant_claim(Claim("t2")):
                pool.submit(lambda: seen.update(granted=otelctx.current_claim())).result(10)
            pool.submit(look, "after the grant").result(10)
        pool.submit(look, "after").result(10)
    assert seen == {
        "before": "held",
        "pool": "shed",
        "thread": "shed",
        "to_thread": "shed",
        "coroutine": "shed",
        "granted": Claim("t2"),
        "after the grant": "shed",
        "after": "held",
    }


@pytest.mark.usefixtures("worker")
def test_a_verdict_is_not_remembered_beyond_its_context() -> None:
    verdicts = [otelctx.is_claim_holder()]
    with otelctx.cron_run("job"):
        verdicts.append(otelctx.is_claim_holder())
    verdicts.append(otelctx.is_claim_holder())
    assert verdicts == [True, False, True]


@pytest.mark.usefixtures("worker")
def test_two_jobs_at_once_are_shed_while_the_heartbeat_holds() -> None:
    both_inside, heartbeat_seen = threading.Barrier(3, timeout=10), threading.Barrier(3, timeout=10)
    states: dict[str, list[tuple[str, str | None]]] = {}

    def look(name: str) -> None:
        states.setdefault(name, []).append((otelctx.claim_state(), os.environ.get("BOARD_TASK")))

    @otelctx.cron_job("nightly")
    def job(name: str) -> None:
        look(name)
        both_inside.wait()
        heartbeat_seen.wait()
        look(name)

    def heartbeat() -> None:
        look("heartbeat")
        both_inside.wait()
        look("heartbeat")
        heartbeat_seen.wait()
        look("heartbeat")

    threads = [threading.Thread(target=job, args=(name,)) for name in ("one", "two")]
    threads.append(threading.Thread(target=heartbeat))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert states == {
        "one": [("shed", "t1")] * 2,
        "two": [("shed", "t1")] * 2,
        "heartbeat": [("held", "t1")] * 3,
    }


@pytest.mark.usefixtures("worker")
def test_a_service_thread_that_a_shed_job_starts_holds_for_the_holder_afterwards() -> None:
    with otelctx.cron_run("job"):
        pool = ThreadPoolExecutor(1)
        assert pool.submit(otelctx.claim_state).result(10) == "shed"
    with pool:
        assert pool.submit(otelctx.claim_state).result(10) == "held"


def test_an_application_that_says_it_has_shed_is_believed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOARD_TASK", "t1")
    install(claim={**CLAIM, "predicate": f"{__name__}:owned"})
    token = OWNED.set(False)
    assert otelctx.claim_state() == "shed"
    OWNED.reset(token)
    assert otelctx.claim_state() == "held"


OWNED: ContextVar[bool] = ContextVar("OWNED", default=True)


def owned() -> bool:
    return OWNED.get()


def test_an_application_that_says_it_holds_what_was_shed_is_told_once(
    install: Install, monkeypatch: pytest.MonkeyPatch, alerts: list[Mismatch]
) -> None:
    install(claim={**CLAIM, "predicate": f"{__name__}:owned"})
    with otelctx.shed_claim():
        assert otelctx.claim_state() == "shed"
    assert alerts == []  # there is no claim to be of two minds about
    monkeypatch.setenv("BOARD_TASK", "t1")
    with otelctx.shed_claim():
        for _ in range(2):
            assert not otelctx.is_claim_holder()
        token = OWNED.set(False)
        assert otelctx.claim_state() == "shed"
        OWNED.reset(token)
    assert [(alert.key, alert.reason, alert.observed) for alert in alerts] == [("claim", "split", "t1")]


def test_a_predicate_that_raises_decides_nothing(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOARD_TASK", "t1")
    install(claim={**CLAIM, "predicate": f"{__name__}:broken"})
    assert otelctx.claim_state() == "held"


def broken() -> bool:
    raise RuntimeError


def test_a_grant_of_anything_but_a_claim_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="takes a Claim"), otelctx.grant_claim("t1"):  # type: ignore[arg-type]
        pass


def test_the_token_of_a_claim_is_in_no_repr() -> None:
    assert "s3cret" not in repr(Claim("t1", token="s3cret"))


# --- the cron boundary -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
def test_a_job_that_is_run_on_the_spot_has_a_key_of_its_own_and_leaves_the_callers_as_they_were(
    spans: InMemorySpanExporter, alerts: list[Mismatch]
) -> None:
    from opentelemetry import trace

    token = SESSION.set("A")
    inside: list[tuple[str | None, str | None, str]] = []

    @otelctx.cron_job("report", runner="test")
    def job() -> None:
        inside.append((otelctx.get("session"), SESSION.get("absent"), otelctx.claim_state()))
        SESSION.set("left behind")

    with trace.get_tracer("test").start_as_current_span("turn") as turn:
        job()
        job()
    assert SESSION.get() == "A"
    assert otelctx.get("session") == "A"
    SESSION.reset(token)
    keys = [key for key, _, _ in inside]
    assert all(key is not None and key.startswith("cron:test:report:") for key in keys)
    assert len(set(keys)) == 2
    assert [rest for _, *rest in inside] == [["", "shed"]] * 2
    runs = [span for span in spans.get_finished_spans() if span.name == "cron report"]
    assert [run.parent for run in runs] == [None, None]
    assert {link.context.span_id for run in runs for link in run.links} == {turn.get_span_context().span_id}
    assert [(run.attributes or {}).get("session.id") for run in runs] == keys
    assert alerts == []


@pytest.mark.usefixtures("worker")
def test_an_async_job_is_a_run_of_its_own_and_a_block_is_too() -> None:
    @otelctx.cron_job("report")
    async def job() -> str | None:
        await asyncio.sleep(0)
        return otelctx.get("session")

    async def main() -> tuple[str | None, str | None, str | None]:
        with otelctx.bind(session="A"):
            of_job = await job()
            async with otelctx.cron_run("block"):
                of_block = otelctx.get("session")
            return of_job, of_block, otelctx.get("session")

    of_job, of_block, after = asyncio.run(main())
    assert of_job is not None
    assert of_job.startswith("cron:cron:report:")
    assert of_block is not None
    assert of_block.startswith("cron:cron:block:")
    assert after == "A"


def run_by_a_plain_function() -> Awaitable[tuple[str | None, str]]:
    """What a decorator of somebody's makes of a coroutine function."""

    async def work() -> tuple[str | None, str]:
        await asyncio.sleep(0)
        return otelctx.get("session"), otelctx.claim_state()

    return work()


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("way", ["cron_job", "declared"])
def test_a_job_whose_plain_function_returns_a_coroutine_is_awaited_as_its_run(install: Install, way: str) -> None:
    if way == "declared":
        install(claim=CLAIM, cron={"runners": [f"{__name__}:run_by_a_plain_function"]})
        job = globals()["run_by_a_plain_function"]
    else:
        job = otelctx.cron_job("report")(run_by_a_plain_function)

    async def main() -> tuple[Any, Any, str | None]:
        with otelctx.bind(session="A"):
            return await job(), await job(), otelctx.get("session")

    (first, claim), (second, _), after = asyncio.run(main())
    assert first.startswith("cron:")
    assert second.startswith("cron:")
    assert first != second
    assert claim == "shed"
    assert after == "A"


def run_declared(job: dict[str, str]) -> tuple[str | None, str]:
    """The declared runner of the test below."""
    return otelctx.get("session"), otelctx.claim_state()


def test_a_declared_runner_is_a_cron_hop_and_keeps_its_name_and_signature(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    import inspect

    monkeypatch.setenv("BOARD_TASK", "t1")
    original = run_declared
    install(claim=CLAIM, cron={"runners": [f"{__name__}:run_declared"]})
    patched = sys.modules[__name__].run_declared
    assert patched is not original
    assert patched.__name__ == "run_declared"
    assert inspect.signature(patched) == inspect.signature(original)
    with otelctx.bind(session="A"):
        key, state = patched({"id": "nightly"})
        assert otelctx.get("session") == "A"
    assert key is not None
    assert key.startswith(f"cron:{__name__}:nightly:")
    assert state == "shed"
    otelctx.uninstall()
    assert sys.modules[__name__].run_declared is original


def test_in_observe_a_declared_runner_runs_as_ever_and_what_leaks_is_reported(
    install: Install, alerts: list[Mismatch]
) -> None:
    install(mode="observe", cron={"runners": [f"{__name__}:run_declared"]})
    with otelctx.bind(session="A"):
        key, _ = sys.modules[__name__].run_declared({"id": "nightly"})
    assert key == "A"
    assert [(alert.reason, alert.observed, alert.hop_kind) for alert in alerts] == [("leaked", "A", "cron")]


def test_a_job_whose_environment_still_says_the_old_key_is_a_leak(
    install: Install, alerts: list[Mismatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(keys={"session": {"sources": SOURCES}})
    monkeypatch.setenv("APP_SESSION", "A")
    with otelctx.bind(session="A"), otelctx.cron_run("job"):
        pass
    assert [(alert.reason, alert.observed, alert.source) for alert in alerts] == [("leaked", "A", "env:APP_SESSION")]


# --- children --------------------------------------------------------------------------------------------------------

HELD = {"BOARD_TASK": "t1", "BOARD_RUN": "3", "BOARD_LOCK": "s3cret", "BOARD_BRANCH": "main"}


def claim_in(shown: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in shown.items() if value is not None and name != "APP_SESSION"}


@pytest.mark.usefixtures("worker")
def test_a_holders_own_child_sees_the_claims_variables_and_is_no_holder() -> None:
    assert claim_in(in_child()) == {**HELD, "OTELCTX_CLAIM": "none"}


@pytest.mark.parametrize("given", ["none", "a copy"])
@pytest.mark.usefixtures("worker")
def test_a_shed_contexts_child_has_no_variable_of_the_claim(given: str) -> None:
    with otelctx.shed_claim():
        shown = in_child() if given == "none" else in_child(env=dict(os.environ))
    assert claim_in(shown) == {"BOARD_BRANCH": "main"}


def _by_spawnv(arguments: list[str]) -> None:
    os.spawnv(os.P_WAIT, sys.executable, arguments)


def _by_spawnlp(arguments: list[str]) -> None:
    os.spawnlp(os.P_WAIT, sys.executable, *arguments)


def _by_spawnve(arguments: list[str]) -> None:
    os.spawnve(os.P_WAIT, sys.executable, arguments, os.environ)


def _by_system(arguments: list[str]) -> None:
    import shlex

    assert os.system(shlex.join(arguments)) == 0


def _by_popen(arguments: list[str]) -> None:
    import shlex

    with os.popen(shlex.join(arguments)) as pipe:
        pipe.read()


def _by_posix_spawn(arguments: list[str]) -> None:
    assert os.waitpid(os.posix_spawn(sys.executable, arguments, os.environ), 0)[1] == 0


def _by_asyncio(arguments: list[str]) -> None:
    async def main() -> None:
        process = await asyncio.create_subprocess_exec(*arguments)
        assert await process.wait() == 0

    asyncio.run(main())


def _by_execv(arguments: list[str]) -> None:
    _by_fork(lambda: os.execv(sys.executable, arguments))


def _by_execlp(arguments: list[str]) -> None:
    _by_fork(lambda: os.execlp(sys.executable, *arguments))


def _by_execvpe(arguments: list[str]) -> None:
    _by_fork(lambda: os.execvpe(sys.executable, arguments, dict(os.environ)))


def _by_fork(execute: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            execute()
        finally:
            os._exit(70)
    assert os.waitpid(pid, 0)[1] == 0


def _by_pty(arguments: list[str]) -> None:
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.execlp(arguments[0], *arguments)
        finally:
            os._exit(70)
    status = os.waitpid(pid, 0)[1]
    os.close(terminal)
    assert status == 0


STARTS = [_by_spawnv, _by_spawnlp, _by_spawnve, _by_system, _by_popen, _by_posix_spawn, _by_asyncio]
STARTS += [_by_execv, _by_execlp, _by_execvpe, _by_pty]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.usefixtures("worker")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_however_a_child_is_started_it_gets_this_contexts_key_and_no_shed_claim(
    start: Callable[[list[str]], None], tmp_path: Any
) -> None:
    report = tmp_path / "report.json"
    program = f"import json, os; json.dump({{n: os.environ.get(n) for n in {SHOWN!r}}}, open({str(report)!r}, 'w'))"
    with otelctx.bind(session="A"), otelctx.shed_claim():
        start([sys.executable, "-I", "-c", program])
    shown = json.loads(report.read_text())
    assert claim_in(shown) == {"BOARD_BRANCH": "main"}
    assert shown["APP_SESSION"] == "A"


@pytest.mark.usefixtures("worker")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_observe_leaves_what_a_forked_child_executes_as_it_is(install: Install, tmp_path: Any) -> None:
    install(claim=CLAIM, keys={"session": {"sources": SOURCES}}, mode="observe")
    report = tmp_path / "report.json"
    program = f"import json, os; json.dump({{n: os.environ.get(n) for n in {SHOWN!r}}}, open({str(report)!r}, 'w'))"
    with otelctx.bind(session="A"), otelctx.shed_claim():
        _by_execv([sys.executable, "-I", "-c", program])
    shown = json.loads(report.read_text())
    assert claim_in(shown) == HELD
    assert shown["APP_SESSION"] is None


BEGINS_ANEW = f"""
import os, sys, otelctx
otelctx.install(claim={CLAIM!r}, keys={{"session": {{"sources": {SOURCES!r}}}}})
with otelctx.bind(session="A"), otelctx.shed_claim():
    os.execv(sys.executable, [sys.executable, "-I", "-c", {PROGRAM!r}])
"""


@pytest.mark.usefixtures("worker")
def test_a_process_that_begins_anew_does_so_as_everybodys_whoever_asked_for_it() -> None:
    command = [sys.executable, "-c", BEGINS_ANEW]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, env=dict(os.environ))
    shown = json.loads(result.stdout)
    assert claim_in(shown) == {**HELD, "OTELCTX_CLAIM": "none"}  # as the process itself was started here
    assert shown["APP_SESSION"] is None


def _report_environment(queue: Any) -> None:
    queue.put({name: os.environ.get(name) for name in SHOWN})


@pytest.mark.usefixtures("worker")
def test_a_spawned_multiprocessing_child_gets_this_contexts_environment() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    with otelctx.bind(session="A"), otelctx.shed_claim():
        process = context.Process(target=_report_environment, args=(queue,))
        process.start()
    shown = queue.get()
    process.join(20)
    assert claim_in(shown) == {"BOARD_BRANCH": "main"}
    assert shown["APP_SESSION"] == "A"


def spawn_worker(**extra: str) -> dict[str, str | None]:
    """The dispatcher's spawn function: it gives its child a claim."""
    return in_child(env={**os.environ, "BOARD_TASK": "t9", **extra})


def test_a_dispatchers_child_has_its_claim_and_holds_it(
    install: Install, monkeypatch: pytest.MonkeyPatch, alerts: list[Mismatch]
) -> None:
    monkeypatch.setenv("OTELCTX_CLAIM", "none")
    install(claim=CLAIM, dispatch={"spawners": [f"{__name__}:spawn_worker"]})
    spawn = sys.modules[__name__].spawn_worker
    assert claim_in(spawn(BOARD_RUN="1")) == {"BOARD_TASK": "t9", "BOARD_RUN": "1"}
    with otelctx.shed_claim():
        assert claim_in(spawn()) == {"BOARD_TASK": "t9"}
    assert alerts == []


def test_a_dispatcher_that_sets_a_variable_which_nobody_declared_is_reported(
    install: Install, alerts: list[Mismatch]
) -> None:
    install(claim=CLAIM, dispatch={"spawners": [f"{__name__}:spawn_worker"]})
    shown = sys.modules[__name__].spawn_worker(BOARD_EXTRA="x")
    assert shown["BOARD_EXTRA"] == "x"
    assert [(alert.reason, alert.source) for alert in alerts] == [("undeclared", "env:BOARD_EXTRA")]


@pytest.mark.usefixtures("worker")
def test_a_granted_claim_is_what_a_child_holds() -> None:
    with otelctx.grant_claim(Claim("t2", attempt="1")):
        assert claim_in(in_child()) == {"BOARD_TASK": "t2", "BOARD_RUN": "1", "BOARD_BRANCH": "main"}


def test_a_child_gets_this_contexts_key_and_one_started_without_gets_none(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(keys={"session": {"sources": SOURCES}})
    with otelctx.bind(session="A"):
        monkeypatch.setenv("APP_SESSION", "B")
        assert in_child()["APP_SESSION"] == "A"
        assert in_child(env={"APP_SESSION": "B"})["APP_SESSION"] == "A"
        assert in_child(env={"APP_SESSION": "on purpose"})["APP_SESSION"] == "on purpose"
        assert in_child(env={})["APP_SESSION"] is None
    assert in_child()["APP_SESSION"] is None
    assert os.environ["APP_SESSION"] == "B"


def test_a_command_lines_own_variable_is_kept_for_its_children(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_SESSION", "from the start")
    install(keys={"session": {"sources": SOURCES}})
    assert in_child()["APP_SESSION"] == "from the start"
    with otelctx.bind(session="A"):
        assert in_child()["APP_SESSION"] == "A"
    assert in_child()["APP_SESSION"] == "from the start"


@pytest.mark.usefixtures("worker")
def test_a_jobs_child_does_not_get_the_key_that_was_minted_nor_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, otelctx.bind(session="A"):
        patched.setenv("APP_SESSION", "A")
        with otelctx.cron_run("job"):
            assert in_child()["APP_SESSION"] is None


def test_in_observe_a_child_is_started_as_ever_and_what_it_would_see_is_reported(
    install: Install, monkeypatch: pytest.MonkeyPatch, alerts: list[Mismatch]
) -> None:
    install(mode="observe", keys={"session": {"sources": SOURCES}}, claim=CLAIM)
    with otelctx.bind(session="A"):
        monkeypatch.setenv("APP_SESSION", "B")
        monkeypatch.setenv("BOARD_TASK", "t1")
        with otelctx.shed_claim():
            shown = in_child()
    assert (shown["APP_SESSION"], shown["BOARD_TASK"]) == ("B", "t1")
    assert {(alert.key, alert.reason, alert.source) for alert in alerts} == {
        ("session", "foreign", "env:APP_SESSION"),
        ("claim", "leaked", "env:BOARD_TASK"),
    }


def test_a_fault_while_a_childs_environment_is_made_leaves_it_as_it_was(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(claim=CLAIM)
    monkeypatch.setenv("BOARD_TASK", "t1")

    class Unreadable(dict[str, str]):
        def get(self, *_: object) -> str:
            raise RuntimeError

    assert children.environment(Unreadable(), os.environ) is None


def run_outer(job: dict[str, str]) -> list[str | None]:
    """A declared runner that runs the job through another one, as hosts do."""
    return [otelctx.get("session"), sys.modules[__name__].run_declared(job)[0]]


def test_a_job_that_goes_through_two_declared_runners_is_one_run(install: Install) -> None:
    install(cron={"runners": [f"{__name__}:run_declared", f"{__name__}:run_outer"]})
    outer, inner = sys.modules[__name__].run_outer({"id": "nightly"})
    assert outer is not None
    assert outer.startswith("cron:")
    assert inner == outer


class _Unloaded:
    """A job of the application's whose attributes are not there yet, and cannot be had."""

    def __getattr__(self, name: str) -> str:
        raise RuntimeError(name)


def test_a_job_whose_name_cannot_be_had_is_a_run_of_its_runner(install: Install) -> None:
    install(cron={"runners": [f"{__name__}:run_declared"]})
    errors = metrics.error_counts()
    with otelctx.bind(session="A"):
        key, claim = sys.modules[__name__].run_declared(_Unloaded())
    assert str(key).startswith(f"cron:{__name__}:run_declared:")
    assert claim == "shed"
    assert metrics.error_counts() == errors


def _is_holder(_: int) -> tuple[bool, str | None]:
    return otelctx.is_claim_holder(), os.environ.get("BOARD_TASK")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(("method", "seen"), [("fork", (False, "t1")), ("spawn", (False, None))])
@pytest.mark.usefixtures("worker")
def test_a_process_pool_that_a_shed_job_starts_is_no_holder(method: str, seen: tuple[bool, str | None]) -> None:
    context = multiprocessing.get_context(method)
    with otelctx.cron_run("job"), ProcessPoolExecutor(1, mp_context=context) as pool:
        assert list(pool.map(_is_holder, [1, 2])) == [seen, seen]
    with otelctx.shed_claim(), context.Pool(1) as others:
        assert others.map(_is_holder, [1]) == [seen]
    assert otelctx.is_claim_holder()
