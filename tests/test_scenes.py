"""Scenes of real programs, each with exactly the alerts that the tables of a mismatch give. Most have none.

Each is played in observe and in repair, with the application's own ContextVar and with `otelctx.bind`, and real spans.
An alert that a scene does not expect is a false one, and costs the trust in all others.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, TypeAlias

import pytest
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, set_span_in_context

import otelctx
from otelctx import Mismatch, metrics

KEY: ContextVar[str] = ContextVar("key")
VARIABLE = f"contextvar:{__name__}:KEY"
BINDING = "contextvar:otelctx.flow:STATE"

Told: TypeAlias = tuple[str, str | None, str | None, str | None, str]
Binder: TypeAlias = Callable[[str], AbstractContextManager[None]]

app = trace.get_tracer("app")


class Install(Protocol):
    def __call__(self, **settings: Any) -> None: ...


def told(alerts: list[Mismatch]) -> list[Told]:
    return [(alert.reason, alert.expected, alert.observed, alert.source, alert.action) for alert in alerts]


def lost(key: str) -> Told:
    return ("lost", key, None, None, "observed")


class Stage:
    """How a scene is played: otelctx's mode, and how the application binds its key."""

    def __init__(self, mode: str, bound: Binder, source: str) -> None:
        self.repairs = mode == "repair"
        self.bound = bound
        self.source = source
        """What an alert calls the place that this application keeps its key in."""

    def bind_for_good(self, key: str) -> None:
        """Bind, and never restore: until the context ends."""
        if self.source == VARIABLE:
            KEY.set(key)
        else:
            otelctx.attach(session=key)

    def in_observe(self, *expected: Told) -> list[Told]:
        """What observe tells of, and repair has put right."""
        return [] if self.repairs else list(expected)

    def carried(self, key: str) -> str | None:
        """What work sees that hopped under `key`."""
        return key if self.repairs else None


@contextmanager
def own_variable(key: str) -> Iterator[None]:
    token = KEY.set(key)
    try:
        yield
    finally:
        KEY.reset(token)


@contextmanager
def binding(key: str) -> Iterator[None]:
    with otelctx.bind(session=key):
        yield


@pytest.fixture(params=["observe-variable", "observe-bind", "repair-variable", "repair-bind"])
def stage(request: pytest.FixtureRequest, install: Install) -> Stage:
    mode, how = request.param.split("-")
    source = {"contextvar": f"{__name__}:KEY", "empty": [""]}
    install(mode=mode, keys={"session": {"sources": [source]}}, alerts={"per_minute": 1000})
    return Stage(mode, own_variable, VARIABLE) if how == "variable" else Stage(mode, binding, BINDING)


def session() -> str | None:
    return otelctx.get("session")


def in_thread(fn: Callable[[], object]) -> None:
    thread = threading.Thread(target=fn)
    thread.start()
    thread.join()


# --- scenes that look like mismatches --------------------------------------------------------------------------------


@pytest.mark.parametrize("around", ["nothing", "a span", "a span of the gateway's own session"])
def test_a_gateway_loop_that_binds_per_message(stage: Stage, alerts: list[Mismatch], around: str) -> None:
    seen = []
    with ExitStack() as outer:
        if around.endswith("session"):
            outer.enter_context(stage.bound("gateway"))
        if around != "nothing":
            outer.enter_context(app.start_as_current_span("loop"))
        for key in ("A", "B", "C", "A"):
            with stage.bound(key), app.start_as_current_span("message"):
                with app.start_as_current_span("model"):
                    seen.append(session())
            with app.start_as_current_span("wait for the next"):
                pass
    assert seen == ["A", "B", "C", "A"]
    assert told(alerts) == []


def test_a_gateway_loop_that_never_restores(stage: Stage, alerts: list[Mismatch]) -> None:
    def loop() -> None:
        with app.start_as_current_span("loop"):
            for number in range(30):
                stage.bind_for_good(f"chat:{number}")
                with app.start_as_current_span("message"), app.start_as_current_span("model"):
                    pass

    copy_context().run(loop)
    assert told(alerts) == []


def test_a_gateway_loop_whose_messages_use_a_pool(stage: Stage, alerts: list[Mismatch]) -> None:
    seen = []
    with ThreadPoolExecutor(2) as pool, app.start_as_current_span("loop"):
        for key in ("A", "B", "A"):
            with stage.bound(key), app.start_as_current_span("message"):
                seen.append(pool.submit(session).result())
    assert seen == [stage.carried(key) for key in ("A", "B", "A")]
    assert told(alerts) == stage.in_observe(lost("A"))


def test_a_server_thread_whose_handler_binds(stage: Stage, alerts: list[Mismatch]) -> None:
    requests: queue.Queue[str | None] = queue.Queue()
    seen = []

    def serve() -> None:
        while (key := requests.get()) is not None:
            with app.start_as_current_span("request"), stage.bound(key), app.start_as_current_span("handler"):
                seen.append(session())

    with app.start_as_current_span("start-up"):
        server = threading.Thread(target=serve)
        server.start()
    for key in ("A", "B", None):
        requests.put(key)
    server.join()
    assert seen == ["A", "B"]
    assert told(alerts) == []


def test_a_server_thread_that_a_session_started(stage: Stage, alerts: list[Mismatch]) -> None:
    requests: queue.Queue[str | None] = queue.Queue()

    def serve() -> None:
        while (key := requests.get()) is not None:
            with app.start_as_current_span("request"), stage.bound(key), app.start_as_current_span("handler"):
                pass
            with stage.bound(key), app.start_as_current_span("request"), app.start_as_current_span("handler"):
                pass

    with stage.bound("first"), app.start_as_current_span("turn"):
        server = threading.Thread(target=serve)
        server.start()
    for key in ("A", "B", None):
        requests.put(key)
    server.join()
    assert told(alerts) == stage.in_observe(lost("first"))


def test_a_sub_agent_with_a_session_of_its_own_in_the_same_context(stage: Stage, alerts: list[Mismatch]) -> None:
    with stage.bound("A"), app.start_as_current_span("turn"):
        with app.start_as_current_span("delegate"), stage.bound("A.sub"), app.start_as_current_span("sub-agent"):
            with app.start_as_current_span("tool"):
                assert session() == "A.sub"
        with app.start_as_current_span("answer"):
            assert session() == "A"
    assert told(alerts) == []


def test_a_sub_agent_with_a_session_of_its_own_in_a_pool(stage: Stage, alerts: list[Mismatch]) -> None:
    def tool() -> str | None:
        with app.start_as_current_span("tool"):
            return session()

    def sub_agent() -> str | None:
        with stage.bound("A.sub"), app.start_as_current_span("sub-agent"), ThreadPoolExecutor(1) as tools:
            return tools.submit(tool).result()

    with ThreadPoolExecutor(1) as pool, stage.bound("A"), app.start_as_current_span("turn"):
        assert pool.submit(sub_agent).result() == stage.carried("A.sub")
    assert told(alerts) == stage.in_observe(lost("A"), lost("A.sub"))


def test_a_sub_agent_whose_author_brings_the_parents_span(stage: Stage, alerts: list[Mismatch]) -> None:
    def sub_agent(parent: Span) -> None:
        with trace.use_span(parent), stage.bound("A.sub"), app.start_as_current_span("sub-agent"):
            with app.start_as_current_span("tool"):
                pass

    with ThreadPoolExecutor(1) as pool, stage.bound("A"), app.start_as_current_span("turn") as turn:
        pool.submit(sub_agent, turn).result()
    assert told(alerts) == stage.in_observe(lost("A"))


@pytest.mark.parametrize("started", ["at start-up", "in a session"])
def test_a_cron_job_that_binds_its_own_key(stage: Stage, alerts: list[Mismatch], started: str) -> None:
    ticks: queue.Queue[int | None] = queue.Queue()
    seen = []

    def scheduler() -> None:
        while (tick := ticks.get()) is not None:
            with stage.bound(f"cron:nightly:{tick}"), app.start_as_current_span("job"):
                with app.start_as_current_span("report"):
                    seen.append(session())

    with ExitStack() as turn:
        if started == "in a session":
            turn.enter_context(stage.bound("A"))
            turn.enter_context(app.start_as_current_span("turn"))
        thread = threading.Thread(target=scheduler)
        thread.start()
    for tick in (1, 2, None):
        ticks.put(tick)
    thread.join()
    assert seen == ["cron:nightly:1", "cron:nightly:2"]
    assert told(alerts) == (stage.in_observe(lost("A")) if started == "in a session" else [])


def test_a_cron_job_run_now_inside_a_turn_binds_its_own_key(stage: Stage, alerts: list[Mismatch]) -> None:
    with stage.bound("A"), app.start_as_current_span("turn"):
        with stage.bound("cron:nightly:1"), app.start_as_current_span("job"):
            pass
        with app.start_as_current_span("answer"):
            assert session() == "A"
    assert told(alerts) == []


def test_a_producers_span_attached_by_hand_with_the_messages_key(stage: Stage, alerts: list[Mismatch]) -> None:
    messages: queue.Queue[tuple[str, otel_context.Context]] = queue.Queue()

    def consume() -> None:
        key, otel = messages.get()
        token = otel_context.attach(otel)
        with stage.bound(key), app.start_as_current_span("consume"), app.start_as_current_span("tool"):
            pass
        otel_context.detach(token)

    consumer = threading.Thread(target=consume)
    consumer.start()
    with stage.bound("A"), app.start_as_current_span("produce"):
        messages.put(("A", otel_context.get_current()))
    consumer.join()
    assert told(alerts) == []


def test_a_producers_span_attached_by_hand_before_a_key_of_the_consumers_own_is_bound(
    stage: Stage, alerts: list[Mismatch]
) -> None:
    """Binding under a span says that the binder knows of it. A variable that is set says nothing of when it was set."""
    messages: queue.Queue[Span] = queue.Queue()

    def consume() -> None:
        with trace.use_span(messages.get()), stage.bound("consumer"), app.start_as_current_span("consume"):
            app.start_span("tool").end()

    consumer = threading.Thread(target=consume)
    consumer.start()
    with stage.bound("A"), app.start_as_current_span("produce") as produce:
        messages.put(produce)
        consumer.join()
    assert told(alerts) == ([("foreign", "A", "consumer", VARIABLE, "observed")] if stage.source == VARIABLE else [])


def test_a_producers_span_given_as_the_parent_of_work_that_bound_the_messages_key_before(
    stage: Stage, alerts: list[Mismatch]
) -> None:
    def consume(span: Span) -> None:
        for _ in range(3):
            with stage.bound("A"):
                app.start_span("consume", set_span_in_context(span)).end()

    with stage.bound("A"), app.start_as_current_span("produce") as produce:
        pass
    in_thread(lambda: consume(produce))
    assert told(alerts) == []


def test_a_producers_span_as_a_link(stage: Stage, alerts: list[Mismatch]) -> None:
    with stage.bound("A"), app.start_as_current_span("produce") as produce:
        pass

    def consume() -> None:
        with stage.bound("B"), app.start_as_current_span("consume", links=[Link(produce.get_span_context())]):
            pass

    in_thread(consume)
    assert told(alerts) == []


def test_a_producers_span_attached_by_hand_without_the_key_is_lost_in_every_mode(
    stage: Stage, alerts: list[Mismatch]
) -> None:
    messages: queue.Queue[Span] = queue.Queue()

    def consume() -> None:
        with trace.use_span(messages.get()), app.start_as_current_span("consume"):
            app.start_span("tool").end()

    consumer = threading.Thread(target=consume)
    consumer.start()
    with stage.bound("A"), app.start_as_current_span("produce") as produce:
        messages.put(produce)
        consumer.join()
    assert told(alerts) == [lost("A")]


@pytest.mark.parametrize("span_is_current", [True, False])
def test_middleware_that_resets_before_a_background_task(
    stage: Stage, alerts: list[Mismatch], span_is_current: bool
) -> None:
    seen: list[str | None] = []

    async def background() -> None:
        with app.start_as_current_span("send mail"):
            seen.append(session())
        seen.append(await asyncio.get_running_loop().run_in_executor(None, session))

    async def request() -> None:
        with app.start_as_current_span("request") as span:
            with stage.bound("A"):
                with app.start_as_current_span("endpoint") as endpoint:
                    await asyncio.sleep(0)
            with trace.use_span(endpoint if span_is_current else span):
                await background()

    asyncio.run(request())
    assert seen == [None, None]
    assert told(alerts) == []


def test_middleware_that_resets_before_a_background_task_on_a_loop(stage: Stage, alerts: list[Mismatch]) -> None:
    async def background() -> None:
        with app.start_as_current_span("send mail"):
            pass

    async def main() -> None:
        with stage.bound("A"), app.start_as_current_span("request") as span:
            pass
        with trace.use_span(span):
            task = asyncio.create_task(background())
        await task

    asyncio.run(main())
    assert told(alerts) == []


def test_a_task_that_outlives_its_session(stage: Stage, alerts: list[Mismatch]) -> None:
    async def main() -> str | None:
        over = asyncio.Event()

        async def watch() -> str | None:
            await over.wait()
            with app.start_as_current_span("late"), app.start_as_current_span("tool"):
                return session()

        with stage.bound("A"), app.start_as_current_span("turn"):
            task = asyncio.create_task(watch())
        with stage.bound("B"), app.start_as_current_span("turn"):
            over.set()
            return await task

    assert asyncio.run(main()) == "A"
    assert told(alerts) == []


def test_a_thread_that_outlives_its_session(stage: Stage, alerts: list[Mismatch]) -> None:
    over = threading.Event()
    seen = []

    def watch() -> None:
        over.wait()
        with app.start_as_current_span("late"), app.start_as_current_span("tool"):
            seen.append(session())

    with stage.bound("A"), app.start_as_current_span("turn"):
        thread = threading.Thread(target=watch)
        thread.start()
    with stage.bound("B"), app.start_as_current_span("turn"):
        over.set()
        thread.join()
    assert seen == [stage.carried("A")]
    assert told(alerts) == stage.in_observe(lost("A"))


def test_a_timer_that_fires_after_its_session(stage: Stage, alerts: list[Mismatch]) -> None:
    seen: list[str | None] = []
    with stage.bound("A"), app.start_as_current_span("turn"):
        timer = threading.Timer(0.01, lambda: seen.append(session()))
        timer.start()
    timer.join()
    assert seen == [stage.carried("A")]
    assert told(alerts) == stage.in_observe(lost("A"))


@pytest.mark.parametrize("key", ["A", "B", None])
def test_two_services(stage: Stage, alerts: list[Mismatch], key: str | None) -> None:
    carrier: dict[str, str] = {}

    def other_service() -> None:
        with app.start_as_current_span("server", context=propagate.extract(carrier)), ExitStack() as handler:
            if key is not None:
                handler.enter_context(stage.bound(key))
            with app.start_as_current_span("handler"):
                assert session() == key

    with stage.bound("A"), app.start_as_current_span("client"):
        propagate.inject(carrier)
    assert "traceparent" in carrier
    in_thread(lambda: Context().run(other_service))
    assert told(alerts) == []


def test_io_hops_that_never_read_the_key_are_told_of_once_in_observe(stage: Stage, alerts: list[Mismatch]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with stage.bound("A"), app.start_as_current_span("turn"):
            for _ in range(5):
                await loop.run_in_executor(None, len, "name.example")
            await asyncio.to_thread(len, "file.txt")

    asyncio.run(main())
    assert told(alerts) == stage.in_observe(lost("A"))


def test_name_look_ups_of_the_loop_itself(stage: Stage, alerts: list[Mismatch]) -> None:
    async def main() -> None:
        with stage.bound("A"), app.start_as_current_span("turn"):
            for _ in range(3):
                await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)

    asyncio.run(main())
    assert told(alerts) == stage.in_observe(lost("A"))


# --- many sessions in one context ------------------------------------------------------------------------------------


def test_a_long_span_under_which_many_sub_sessions_are_bound_one_after_another(
    stage: Stage, alerts: list[Mismatch]
) -> None:
    with stage.bound("A"), app.start_as_current_span("turn"):
        for number in range(20):
            with stage.bound(f"A.{number}"), app.start_as_current_span("sub-agent"):
                app.start_span("tool").end()
        app.start_span("answer").end()
    assert told(alerts) == []


def test_a_long_span_whose_many_sub_sessions_only_hop(stage: Stage, alerts: list[Mismatch]) -> None:
    with ThreadPoolExecutor(1) as pool, stage.bound("A"), app.start_as_current_span("turn"):
        for number in range(20):
            with stage.bound(f"A.{number}"):
                pool.submit(session).result()
        with stage.bound("A.last"), app.start_as_current_span("sub-agent"):
            pass
        app.start_span("answer").end()
    assert told(alerts) == stage.in_observe(lost("A.0"))


def test_a_long_span_whose_many_sub_sessions_have_traces_of_their_own(stage: Stage, alerts: list[Mismatch]) -> None:
    with stage.bound("A"), app.start_as_current_span("turn"):
        for number in range(20):
            with stage.bound(f"A.{number}"), app.start_as_current_span("root", context=otel_context.Context()):
                app.start_span("tool").end()
        with stage.bound("A.last"), app.start_as_current_span("sub-agent"):
            pass
    assert told(alerts) == []


def test_a_long_span_whose_sub_sessions_have_sub_sessions(stage: Stage, alerts: list[Mismatch]) -> None:
    with stage.bound("A"), app.start_as_current_span("turn"):
        for number in range(4):
            with stage.bound(f"A.{number}"), app.start_as_current_span("sub-agent"):
                for inner in range(12):
                    with stage.bound(f"A.{number}.{inner}"), app.start_as_current_span("sub-sub-agent"):
                        app.start_span("tool").end()
                app.start_span("summary").end()
            with stage.bound(f"A.{number} review"):
                app.start_span("review").end()
    assert told(alerts) == []


def test_sessions_nested_twelve_deep(stage: Stage, alerts: list[Mismatch]) -> None:
    def nest(depth: int) -> None:
        with stage.bound(f"depth {depth}"), app.start_as_current_span("agent"):
            if depth < 12:
                nest(depth + 1)
            with stage.bound(f"review at depth {depth}"):
                app.start_span("review").end()

    nest(0)
    assert told(alerts) == []


def test_a_long_span_in_whose_loop_many_messages_are_bound_and_only_the_last_has_a_span(
    stage: Stage, alerts: list[Mismatch]
) -> None:
    def loop() -> None:
        stage.bind_for_good("gateway")
        with app.start_as_current_span("loop"):
            for number in range(20):
                stage.bind_for_good(f"chat:{number}")
                otelctx.capture()
            app.start_span("message").end()

    copy_context().run(loop)
    assert told(alerts) == []


def test_a_batch_whose_items_are_of_many_sessions(stage: Stage, alerts: list[Mismatch]) -> None:
    with app.start_as_current_span("batch"):
        for number in range(20):
            with stage.bound(f"tenant:{number}"), app.start_as_current_span("item"):
                app.start_span("write").end()
    assert told(alerts) == []


def test_a_tracer_that_keeps_its_spans_by_itself(stage: Stage, alerts: list[Mismatch]) -> None:
    """A callback handler of an agent framework: explicit parents, no current span."""
    with stage.bound("A"):
        run = app.start_span("run", otel_context.Context())
        inside = set_span_in_context(run, otel_context.Context())
        for number in range(12):
            with stage.bound(f"A.{number}"):
                app.start_span("step", inside).end()
    app.start_span("after the run", inside).end()
    run.end()
    assert told(alerts) == []


def test_a_key_that_is_cleared_in_the_middle_of_a_span(stage: Stage, alerts: list[Mismatch]) -> None:
    with stage.bound("A"), app.start_as_current_span("turn"):
        with own_variable(""):
            app.start_span("anonymous").end()
    assert told(alerts) == []


# --- asyncio ---------------------------------------------------------------------------------------------------------


def test_tasks_that_bind_each_their_own(stage: Stage, alerts: list[Mismatch]) -> None:
    async def turn(key: str) -> str | None:
        with stage.bound(key), app.start_as_current_span("turn"):
            await asyncio.sleep(0)
            with app.start_as_current_span("tool"):
                await asyncio.sleep(0)
                return session()

    async def main() -> list[str | None]:
        with app.start_as_current_span("server"):
            return await asyncio.gather(*(turn(key) for key in "ABCDEFGH"))

    assert asyncio.run(main()) == list("ABCDEFGH")
    assert told(alerts) == []


def test_a_task_group_of_sub_agents(stage: Stage, alerts: list[Mismatch]) -> None:
    async def sub_agent(number: int) -> str | None:
        with stage.bound(f"A.{number}"), app.start_as_current_span("sub-agent"):
            await asyncio.sleep(0)
            async with asyncio.TaskGroup() as group:
                tool = group.create_task(read())
            return await tool

    async def read() -> str | None:
        with app.start_as_current_span("tool"):
            return await asyncio.to_thread(session)

    async def main() -> list[str | None]:
        with stage.bound("A"), app.start_as_current_span("turn"):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(sub_agent(number)) for number in range(12)]
            app.start_span("answer").end()
            return [task.result() for task in tasks]

    assert asyncio.run(main()) == [f"A.{number}" for number in range(12)]
    assert told(alerts) == []


def test_coroutines_handed_from_a_thread_to_a_loop(stage: Stage, alerts: list[Mismatch]) -> None:
    async def tool() -> str | None:
        with app.start_as_current_span("tool"):
            return session()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def turn(key: str) -> str | None:
            with stage.bound(key), app.start_as_current_span("turn"):
                return asyncio.run_coroutine_threadsafe(tool(), loop).result(10)

        seen = await asyncio.gather(asyncio.to_thread(turn, "A"), asyncio.to_thread(turn, "B"))
        assert list(seen) == ["A", "B"]

    asyncio.run(main())
    assert told(alerts) == []


def test_loop_callbacks_that_run_after_their_session(stage: Stage, alerts: list[Mismatch]) -> None:
    async def main() -> str | None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str | None] = loop.create_future()

        def later() -> None:
            with app.start_as_current_span("later"):
                done.set_result(session())

        with stage.bound("A"), app.start_as_current_span("turn"):
            loop.call_later(0.001, later)
        with stage.bound("B"), app.start_as_current_span("turn"):
            return await done

    assert asyncio.run(main()) == "A"
    assert told(alerts) == []


def test_an_async_generator_that_binds_and_streams(stage: Stage, alerts: list[Mismatch]) -> None:
    async def stream(key: str) -> AsyncIterator[str | None]:
        with stage.bound(key), app.start_as_current_span("stream"):
            for _ in range(3):
                await asyncio.sleep(0)
                app.start_span("chunk").end()
                yield session()

    async def turn(key: str) -> list[str | None]:
        with stage.bound(key), app.start_as_current_span("turn"):
            seen = []
            async for chunk in stream(f"{key}.stream"):
                with app.start_as_current_span("forward"):
                    seen.append(chunk)
            app.start_span("answer").end()
            assert session() == key
            return seen

    async def main() -> None:
        seen = await asyncio.gather(turn("A"), turn("B"))
        assert list(seen) == [["A.stream"] * 3, ["B.stream"] * 3]

    asyncio.run(main())
    assert told(alerts) == []


def test_an_async_generator_that_the_loop_closes(install: Install, alerts: list[Mismatch]) -> None:
    install(mode="repair")
    kept = []

    async def stream() -> AsyncIterator[None]:
        with otelctx.bind(session="A.stream"):
            span = app.start_span("stream")
            try:
                yield
            finally:
                span.end()

    async def main() -> None:
        async def turn() -> None:
            with otelctx.bind(session="A"), app.start_as_current_span("turn"):
                chunks = stream()
                kept.append(chunks)
                await anext(chunks)

        await asyncio.create_task(turn())
        with otelctx.bind(session="B"):
            await kept[0].aclose()  # type: ignore[attr-defined]
            app.start_span("next").end()
            assert session() == "B"
        assert session() is None

    asyncio.run(main())
    assert told(alerts) == []


def test_two_generators_that_take_turns(stage: Stage, alerts: list[Mismatch]) -> None:
    def conversation(key: str) -> Iterator[None]:
        with otelctx.bind(session=key):
            span = app.start_span("conversation")
            for _ in range(4):
                app.start_span("step", set_span_in_context(span)).end()
                yield
            span.end()

    def run() -> None:
        with stage.bound("A"), app.start_as_current_span("turn"):
            for _ in zip(conversation("A.1"), conversation("A.2"), strict=True):
                app.start_span("between").end()

    copy_context().run(run)
    assert told(alerts) == []


def test_a_web_socket_that_serves_many_sessions(stage: Stage, alerts: list[Mismatch]) -> None:
    async def main() -> list[str | None]:
        messages: asyncio.Queue[str | None] = asyncio.Queue()
        seen: list[str | None] = []

        async def connection() -> None:
            with stage.bound("user:1"), app.start_as_current_span("upgrade") as upgrade:
                app.start_span("authenticate").end()
            with trace.use_span(upgrade):
                while (key := await messages.get()) is not None:
                    with stage.bound(key), app.start_as_current_span("message"):
                        seen.append(await asyncio.to_thread(session))
                    app.start_span("ping").end()

        task = asyncio.create_task(connection())
        for number in range(12):
            with stage.bound(f"sender:{number}"), app.start_as_current_span("send"):
                await messages.put(f"chat:{number}")
        await messages.put(None)
        await task
        return seen

    assert asyncio.run(main()) == [f"chat:{number}" for number in range(12)]
    assert told(alerts) == []


# --- approvals -------------------------------------------------------------------------------------------------------


def test_an_approval_that_another_session_resolves_on_the_loop(stage: Stage, alerts: list[Mismatch]) -> None:
    async def main() -> str | None:
        approval: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        called_back: list[str | None] = []

        async def ask() -> str | None:
            with stage.bound("A"), app.start_as_current_span("turn"):
                approval.add_done_callback(lambda _: called_back.append(session()))
                await approval
                with app.start_as_current_span("run the tool"):
                    return session()

        asked = asyncio.create_task(ask())
        await asyncio.sleep(0)
        with stage.bound("B"), app.start_as_current_span("approve"):
            approval.set_result(True)
            seen = await asked
        assert called_back == ["A"]
        return seen

    assert asyncio.run(main()) == "A"
    assert told(alerts) == []


def test_an_approval_that_another_session_resolves_for_a_waiting_thread(stage: Stage, alerts: list[Mismatch]) -> None:
    approval: Future[bool] = Future()
    seen = []

    def ask() -> None:
        with stage.bound("A"), app.start_as_current_span("turn"):
            approval.result(10)
            with app.start_as_current_span("run the tool"):
                seen.append(session())

    def approve() -> None:
        with stage.bound("B"), app.start_as_current_span("approve"):
            approval.set_result(True)

    asking = threading.Thread(target=ask)
    asking.start()
    in_thread(approve)
    asking.join()
    assert seen == ["A"]
    assert told(alerts) == []


def test_an_approval_by_another_session_runs_the_callback_as_that_one(stage: Stage, alerts: list[Mismatch]) -> None:
    approval: Future[bool] = Future()
    seen = []

    def resumed(_: Future[bool]) -> None:
        with app.start_as_current_span("run the tool"):
            seen.append(session())

    with stage.bound("A"), app.start_as_current_span("turn"):
        approval.add_done_callback(resumed)

    def approve() -> None:
        with stage.bound("B"), app.start_as_current_span("approve"):
            approval.set_result(True)

    in_thread(approve)
    assert seen == ["A" if stage.repairs else "B"]
    assert told(alerts) == [("foreign", "A", "B", stage.source, "repaired" if stage.repairs else "observed")]


# --- pools and callbacks ---------------------------------------------------------------------------------------------


def test_a_pool_inside_a_pool(stage: Stage, alerts: list[Mismatch]) -> None:
    with ThreadPoolExecutor(1) as outer, ThreadPoolExecutor(1) as inner:

        def work() -> list[str | None]:
            with app.start_as_current_span("outer"):
                return [session(), inner.submit(session).result()]

        with stage.bound("A"), app.start_as_current_span("turn"):
            assert outer.submit(work).result() == [stage.carried("A")] * 2
        assert outer.submit(work).result() == [None, None]
    assert told(alerts) == stage.in_observe(lost("A"))


def test_one_pool_that_serves_many_sessions_and_none(stage: Stage, alerts: list[Mismatch]) -> None:
    with ThreadPoolExecutor(1) as pool:
        for key in ("A", "B", "A"):
            with stage.bound(key), app.start_as_current_span("turn"):
                assert pool.submit(session).result() == stage.carried(key)
            assert pool.submit(session).result() is None
    assert told(alerts) == stage.in_observe(lost("A"))


def test_a_task_that_binds_in_a_pool_and_restores(stage: Stage, alerts: list[Mismatch]) -> None:
    def handle(key: str) -> str | None:
        with stage.bound(key), app.start_as_current_span("handle"), app.start_as_current_span("tool"):
            return session()

    with ThreadPoolExecutor(1) as pool, app.start_as_current_span("accept"):
        assert [pool.submit(handle, key).result() for key in "ABAB"] == list("ABAB")
    assert told(alerts) == []


def test_a_task_that_binds_in_a_pool_and_never_restores(stage: Stage, alerts: list[Mismatch]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stage.bind_for_good, "X").result()
        assert pool.submit(session).result() == (None if stage.repairs else "X")
        with stage.bound("A"):
            assert pool.submit(session).result() == ("A" if stage.repairs else "X")
    assert told(alerts) == stage.in_observe(
        ("leaked", None, "X", stage.source, "observed"), ("foreign", "A", "X", stage.source, "observed")
    )


def test_a_callback_that_binds(stage: Stage, alerts: list[Mismatch]) -> None:
    seen = []

    def bind_and_go_on(_: object) -> None:
        with stage.bound("notify"), app.start_as_current_span("notify"), app.start_as_current_span("send"):
            seen.append(session())

    hold = threading.Event()
    with ThreadPoolExecutor(1) as pool, stage.bound("A"), app.start_as_current_span("turn"):
        future = pool.submit(hold.wait, 10)
        future.add_done_callback(bind_and_go_on)
        hold.set()
        pool.submit(session).result()
    assert seen == ["notify"]
    assert told(alerts) == stage.in_observe(lost("A"), lost("A"), lost("A"))
    assert {alert.hop_kind for alert in alerts} == (set() if stage.repairs else {"executor", "callback"})


def test_a_callback_without_a_key_that_resolves_in_a_session(stage: Stage, alerts: list[Mismatch]) -> None:
    future: Future[None] = Future()
    future.add_done_callback(lambda _: app.start_span("count").end())
    with stage.bound("A"), app.start_as_current_span("turn"):
        future.set_result(None)
        app.start_span("answer").end()
    assert told(alerts) == []


def test_a_context_that_the_author_carries_by_hand(stage: Stage, alerts: list[Mismatch]) -> None:
    with ThreadPoolExecutor(1) as pool, stage.bound("A"), app.start_as_current_span("turn"):
        assert pool.submit(copy_context().run, session).result() == "A"
    assert told(alerts) == []


@pytest.mark.parametrize("traced", [True, False])
def test_a_context_that_the_author_carries_by_hand_and_binds_anew(
    stage: Stage, alerts: list[Mismatch], traced: bool
) -> None:
    def sub_agent() -> str | None:
        with app.start_as_current_span("sub-agent"):
            return session()

    with ThreadPoolExecutor(1) as pool, stage.bound("A"), ExitStack() as turn:
        if traced:
            turn.enter_context(app.start_as_current_span("turn"))
        context = copy_context()
        context.run(stage.bind_for_good, "A.sub")
        assert pool.submit(context.run, sub_agent).result() == "A.sub"
    assert told(alerts) == []


def test_a_snapshot_that_the_author_takes(stage: Stage, alerts: list[Mismatch]) -> None:
    with stage.bound("A"), app.start_as_current_span("turn"):
        snapshot = otelctx.capture()

    def later() -> None:
        with app.start_as_current_span("later"):
            seen.append(session())

    seen: list[str | None] = []
    in_thread(lambda: snapshot.run(later))
    assert seen == ["A"]
    assert told(alerts) == []


def test_the_hops_of_a_scene_are_counted_whether_or_not_they_are_told_of(stage: Stage, alerts: list[Mismatch]) -> None:
    def executor_hops() -> dict[str, int]:
        return {outcome: number for (kind, outcome), number in metrics.hop_counts().items() if kind == "executor"}

    before = executor_hops()
    with ThreadPoolExecutor(1) as pool, stage.bound("A"):
        for _ in range(5):
            pool.submit(session).result()
    counted = {outcome: number - before.get(outcome, 0) for outcome, number in executor_hops().items()}
    assert sum(counted.values()) == 5
    assert not stage.repairs or counted["carried"] == 5
    assert told(alerts) == stage.in_observe(lost("A"))
