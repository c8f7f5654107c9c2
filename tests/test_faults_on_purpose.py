"""Faults on purpose: programs that fail, and ones that are made to, end with otelctx exactly as they end without.

Each program is run in an installation of its own: without otelctx, and with it (turned on by the environment, with a
session bound in the application's own variable) in each mode. What it writes and its exit code have to be the same.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from textwrap import dedent
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import otelctx
from otelctx import alerts as alerts_module
from otelctx import ambient
from otelctx.place import TRAIL
from tests.installed import Environment, environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from otelctx import Mismatch
    from tests.conftest import Install

PREAMBLE: Final = """\
import os, sys
from contextvars import ContextVar

KEY = ContextVar("KEY")
KEY.set("A")
os.environ["APP_SESSION"] = "A"

"""

# Enforce with a span at every hop, as far as there is tracing: the longest way that work can arrive.
SIDES: Final[dict[str, dict[str, str]]] = {
    "repair": {},
    "observe": {"OTELCTX_MODE": "observe"},
    "enforce": {"OTELCTX_MODE": "enforce", "OTELCTX_SPANS": "always"},
}

DECLARED: Final = """
[keys.session]
sources = [{ contextvar = "__main__:KEY", empty = [""] }]

[claim]
env = { task_id = "APP_TASK" }

[scoped_env]
mode = "scope"
names = ["APP_SESSION"]
"""

_OURS: Final = re.compile(
    r'^ +File "[^"]*/(?:otelctx|otelctx_instrumentation)/[^"]*", line .*\n(?: {4,}.*\n)*', re.MULTILINE
)
_ALERT: Final = re.compile(r"^(?:WARNING )?otelctx: session .* nothing was changed\..*\n", re.MULTILINE)
_ADDRESS: Final = re.compile(r"0x[0-9a-f]+")


class Ended(NamedTuple):
    """How a program ended, and what it wrote."""

    status: int
    stdout: str
    stderr: str


class Programs:
    """Runs programs without otelctx and with it."""

    def __init__(self, installed: Environment, directory: Path) -> None:
        self.installed = installed
        self.directory = directory

    def run(self, text: str, variables: dict[str, str], *, flags: tuple[str, ...] = ()) -> Ended:
        """Run the program `text` with `variables` in its environment."""
        program = self.directory / "program.py"
        done = self.installed.run(*flags, program, directory=self.directory, **variables)
        said = (_ADDRESS.sub("0x", _ALERT.sub("", _OURS.sub("", text))) for text in (done.stdout, done.stderr))
        return Ended(done.returncode, *said)

    def both(
        self, text: str, *, declared: str = DECLARED, flags: tuple[str, ...] = ()
    ) -> tuple[Ended, dict[str, Ended]]:
        """Run `text` without otelctx, and with it in each mode.

        What is left out: the lines that otelctx has in tracebacks, what it reports in observe, and addresses.
        """
        (self.directory / "program.py").write_text(PREAMBLE + dedent(text))
        settings = self.directory / "otelctx.toml"
        settings.write_text(declared)
        on = {"OTELCTX_ENABLED": "true", "OTELCTX_CONFIG": str(settings)}
        sides: dict[str, dict[str, str]] = {"without": {}, **{side: on | more for side, more in SIDES.items()}}
        with ThreadPoolExecutor(2) as pool:
            runs = {side: pool.submit(self.run, text, variables, flags=flags) for side, variables in sides.items()}
            ended = {side: run.result() for side, run in runs.items()}
        return ended.pop("without"), ended


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(tmp_path_factory.mktemp("faults"), "wheel")


@pytest.fixture
def programs(installed: Environment, tmp_path: Path) -> Programs:
    return Programs(installed, tmp_path)


def ends_the_same(programs: Programs, text: str, *, says: str = "", status: int = 0, **more: object) -> None:
    """Run `text` on every side; `says`: what it writes to standard output, at least, lest it end for another reason."""
    without, sides = programs.both(text, **more)  # type: ignore[arg-type]
    assert without.status == status, without.stderr
    assert says in without.stdout
    for side, ended in sides.items():
        assert (side, ended.stdout.splitlines()) == (side, without.stdout.splitlines())
        assert (side, ended.stderr.splitlines()) == (side, without.stderr.splitlines())
        assert (side, ended.status) == (side, without.status)


# --- threads that cannot be started -----------------------------------------------------------------------------------

# The limit is the process's own address space, and a thread's stack does not fit in what is left of it.
NO_THREADS: Final = """
    import resource, threading

    def no_more_threads():
        threading.stack_size(1 << 30)
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (256 << 20), resource.RLIM_INFINITY))

    def threads_again():
        threading.stack_size(0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def attempt(what, call):
        try:
            print(what, call())
        except Exception as error:
            print(what, type(error).__name__, error)
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm, and needs RLIMIT_AS to count")


@linux
def test_a_thread_that_cannot_be_started_says_so_and_can_be_started_later(programs: Programs) -> None:
    ends_the_same(
        programs,
        NO_THREADS
        + """
    from threading import Event, Thread, Timer

    said = Event()  # that it was started again: what comes first is nobody's to say

    def run():
        said.wait()
        print("ran")

    class Own(Thread):
        def run(self):
            run()

    first = Thread(target=print, args=("first",))
    first.start()
    first.join()
    for thread in (Thread(target=run), Timer(0, run), Own()):
        said.clear()
        no_more_threads()
        attempt("start", thread.start)
        print(sorted(vars(thread)), thread.is_alive(), thread.ident, thread in threading.enumerate())
        threads_again()
        attempt("start again", thread.start)
        said.set()
        attempt("join", thread.join)
        attempt("start a third time", thread.start)
    """,
        says="start RuntimeError can't start new thread",
    )


@linux
def test_a_pool_that_cannot_start_a_worker_says_so_and_works_once_it_can(programs: Programs) -> None:
    ends_the_same(
        programs,
        NO_THREADS
        + """
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.pool import ThreadPool

    pool = ThreadPoolExecutor(2)
    no_more_threads()
    attempt("submit", lambda: pool.submit(print, "queued"))
    attempt("map", lambda: pool.map(print, ["queued as well"]))
    print(len(pool._threads), pool._work_queue.qsize())
    threads_again()
    attempt("submit again", lambda: pool.submit(len, "abc").result(10))
    pool.shutdown()
    no_more_threads()
    attempt("another", lambda: ThreadPool(2))
    threads_again()
    attempt("another again", lambda: ThreadPool(2).map(len, ["a", "bc"]))
    """,
        says="submit RuntimeError can't start new thread",
    )


# --- what callbacks and work raise ------------------------------------------------------------------------------------

RAISED: Final = """
    from concurrent.futures import Future, ThreadPoolExecutor
    from multiprocessing.pool import ThreadPool
    import logging, threading
    logging.basicConfig(format="%(levelname)s %(message)s")

    class Own(BaseException):
        pass

    KINDS = MemoryError, RecursionError, SystemExit, KeyboardInterrupt, GeneratorExit, Own
"""


def test_what_a_done_callback_raises_ends_where_it_does_without_otelctx(programs: Programs) -> None:
    ends_the_same(
        programs,
        RAISED
        + """
    threading.excepthook = lambda arguments: print("a thread is ended by", arguments.exc_type.__name__)

    for kind in KINDS:
        def callback(future):
            print("called")
            raise kind("on purpose")

        go = threading.Event()
        pool = ThreadPoolExecutor(1)
        future = pool.submit(go.wait)
        future.add_done_callback(callback)
        future.add_done_callback(lambda future: print("the next one"))
        go.set()
        pool.shutdown()
        print(future.result(10))
        done = Future()
        done.set_result(1)
        try:
            done.add_done_callback(callback)
        except BaseException as error:
            print("at once", type(error).__name__)
    """,
        says="called",
    )


def test_what_work_raises_ends_where_it_does_without_otelctx(programs: Programs) -> None:
    ends_the_same(
        programs,
        RAISED
        + """
    for kind in KINDS:
        def work(*_):
            raise kind("on purpose")

        pool = ThreadPoolExecutor(1)
        print(repr(pool.submit(work).exception(10)))
        try:
            list(pool.map(work, [1]))
        except BaseException as error:
            print("map", repr(error))
        print(pool.submit(len, "abc").result(10))
        pool.shutdown()
        for thread in (threading.Thread(target=work), threading.Timer(0, work)):
            thread.name = "the thread"
            thread.start()
            thread.join()
        if issubclass(kind, Exception):  # the others end the worker of a ThreadPool, and the caller waits for ever
            try:
                with ThreadPool(1) as another:  # a garbage one writes to a pipe that may be closed by then
                    another.apply(work)
            except BaseException as error:
                print("apply", repr(error))
    """,
        says="on purpose",
    )


# --- the end of a process ---------------------------------------------------------------------------------------------

ENDS: Final = {
    "sys.exit in work, in a thread and in a callback": """
        from concurrent.futures import ThreadPoolExecutor
        import threading
        with ThreadPoolExecutor(1) as pool:
            print(repr(pool.submit(sys.exit, 3).exception(10)))
        thread = threading.Thread(target=sys.exit, args=(4,))
        thread.start()
        thread.join()
        sys.exit(7)
    """,
    "os._exit in a worker": """
        from concurrent.futures import ThreadPoolExecutor
        def end():
            os.write(1, b"ending")
            os._exit(7)
        ThreadPoolExecutor(1).submit(end).result()
    """,
    "os._exit in a thread while a pool works": """
        from concurrent.futures import ThreadPoolExecutor
        import threading
        ThreadPoolExecutor(1).submit(threading.Event().wait)
        thread = threading.Thread(target=os._exit, args=(7,))
        thread.start()
        thread.join()
    """,
    "an exception in the main thread while workers wait": """
        from concurrent.futures import ThreadPoolExecutor
        import threading
        pool = ThreadPoolExecutor(2)
        pool.submit(len, "abc").add_done_callback(lambda future: None)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        sys.exit(7)
    """,
    "the end of the main thread, with hops in flight in others": """
        from concurrent.futures import ThreadPoolExecutor
        import threading
        ended = threading.Event()
        def chain(pool, left):
            if left:
                try:
                    pool.submit(chain, pool, left - 1)
                except RuntimeError:
                    ended.set()
            else:
                ended.set()
        pool = ThreadPoolExecutor(2)
        for _ in range(20):
            pool.submit(chain, pool, 5)
        def later():
            threading.main_thread().join()
            print("after the main thread")
        threading.Thread(target=later).start()
        sys.exit(7)
    """,
    "daemon threads that hop until the very end": """
        from concurrent.futures import ThreadPoolExecutor
        import threading
        pool = ThreadPoolExecutor(1)
        running = threading.Barrier(4)
        def hop():
            running.wait()
            while True:
                try:
                    pool.submit(len, "abc").result()
                except RuntimeError:
                    return
        for _ in range(3):
            threading.Thread(target=hop, daemon=True).start()
        running.wait()
        sys.exit(7)
    """,
    "threads that are started while the interpreter ends": """
        import atexit, threading
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(1)
        pool.submit(len, "abc").result()
        def attempt(what, call):
            try:
                print(what, call())
            except BaseException as error:
                print(what, type(error).__name__, error)
        @atexit.register
        def at_the_end():
            attempt("submit", lambda: pool.submit(print, "in the pool").result(1))
            attempt("a new pool", lambda: ThreadPoolExecutor(1).submit(len, "abc"))
            attempt("thread", threading.Thread(target=int).start)
            attempt("timer", threading.Timer(0, int).start)
            KEY.set("B")
            print(KEY.get(), os.environ["APP_SESSION"])
            os.environ["APP_SESSION"] = "B"
            print(os.environ["APP_SESSION"])
        threading._register_atexit(lambda: attempt("threading's atexit", lambda: pool.submit(print, "there").result(1)))
        def leave():
            attempt("submit while threading ends", lambda: pool.submit(len, "abc"))
        threading._register_atexit(leave)
        sys.exit(7)
    """,
    "hops in finalizers of what outlives its module": """
        import asyncio, builtins, threading  # asyncio keeps the modules of executors until they are emptied
        from concurrent.futures import Future, ThreadPoolExecutor
        class Last:
            def __init__(self, pool, what):
                self.pool, self.what, self.write, self.thread = pool, what, os.write, threading.Thread
                self.future, self.error = Future(), RuntimeError
                self.waits = sys.version_info < (3, 12)  # for ever, for a thread that never runs
            def __del__(self):
                for call in (
                    lambda: self.pool.submit(len, "abc"),
                    lambda: self.waits or self.thread(target=len).start(),
                    lambda: self.future.add_done_callback(len),
                    lambda: self.future.set_result(1),
                ):
                    try:
                        call()
                    except self.error as error:
                        self.write(1, f"{self.what}: {error}\\n".encode())
                    except BaseException as error:
                        self.write(1, f"{self.what}: {type(error)} {error}\\n".encode())
        pool = ThreadPoolExecutor(1)
        pool.submit(len, "abc").result()
        departed = Future()
        departed.add_done_callback(lambda future, write=os.write: write(1, b"called in the end\\n"))
        class Resolves:
            def __init__(self):
                self.resolve = departed.set_result
            def __del__(self):
                self.resolve(1)
        sys.resolves = Resolves()
        del departed
        builtins.kept = Last(pool, "kept by builtins")
        sys.kept = Last(pool, "kept by sys")
        mine = Last(pool, "a global")
        cycle = Last(pool, "in a cycle")
        cycle.itself = cycle
        del cycle
        sys.exit(7)
    """,
    "hops in finalizers of a module that has lost its names": """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(1)
        class Last:
            def __del__(self):
                os.write(1, b"finalizing\\n")
                if sys.version_info >= (3, 12):  # before, it waits for ever for a thread that never runs
                    threading.Thread(target=len).start()
        last = Last()
        threading.Thread(target=len, args=("",)).start()
        sys.modules.pop("__main__")
        globals().update({name: None for name in ("KEY", "ThreadPoolExecutor")})
        sys.exit(7)
    """,
    "a child process of the end": """
        import atexit, subprocess
        @atexit.register
        def at_the_end():
            subprocess.run([sys.executable, "-c", "import sys; print('child', flush=True); sys.exit(3)"])
            sys.stdout.flush()
            os.system("echo by the shell")
        sys.stdout.flush()
        sys.exit(7)
    """,
    "standard output and standard error are closed": """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        sys.stdout.flush()
        sys.stdout = sys.stderr = None
        with ThreadPoolExecutor(1) as pool:
            pool.submit(print, "nowhere").result()
            pool.submit(int, "x").exception()
        thread = threading.Thread(target=int, args=("x",))
        thread.start()
        thread.join()
        sys.exit(7)
    """,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_ends_as_it_does_without_otelctx(programs: Programs, end: str) -> None:
    ends_the_same(programs, ENDS[end], status=7)


# --- interrupted, watched and re-entered ------------------------------------------------------------------------------

ODD: Final = {
    "signal handlers that bind and submit": """
        import signal
        from concurrent.futures import Future, ThreadPoolExecutor
        pool, handled = ThreadPoolExecutor(2), []
        def handler(number, frame):
            KEY.set(f"B{len(handled)}")
            os.environ["APP_SESSION"] = KEY.get()
            handled.append(pool.submit(len, "abc"))
            if len(handled) < 50:  # one that comes late would set it again, for an interpreter that has ended
                signal.setitimer(signal.ITIMER_REAL, 0.001)
        signal.signal(signal.SIGALRM, handler)
        import logging
        logging.getLogger("otelctx").setLevel(logging.CRITICAL)  # that a handler binds while a hop departs, is told
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        called = []
        while len(handled) < 50:  # no submit here: its own lock is none that a handler could take again
            future = Future()
            future.add_done_callback(called.append)
            future.set_result(1)
            os.environ.get("APP_SESSION")
            KEY.set("A")
        os.environ["APP_SESSION"] = KEY.get()  # one whose key all sources agree on: enforce runs it for certain
        future = Future()
        future.add_done_callback(called.append)
        future.set_result(1)
        print({future.result(10) for future in handled}, {future.result() for future in called})
        pool.shutdown()
    """,
    "a fork while other threads hop, and hops in the children": """
        import threading, warnings
        from concurrent.futures import ThreadPoolExecutor
        warnings.simplefilter("ignore")
        pool, stop = ThreadPoolExecutor(2), threading.Event()
        def hop():
            while not stop.is_set():
                pool.submit(len, "abc").add_done_callback(lambda future: None)
                os.environ["APP_SESSION"] = "A"
                os.environ.get("APP_SESSION")
                stop.wait(0.0005)
        threads = [threading.Thread(target=hop) for _ in range(3)]
        for thread in threads:
            thread.start()
        statuses = []
        for _ in range(15):
            child = os.fork()
            if child == 0:
                with ThreadPoolExecutor(1) as another:
                    result = another.submit(len, "abc").result(10)
                thread = threading.Thread(target=int)
                thread.start()
                thread.join(10)
                os._exit(result)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set()
        for thread in threads:
            thread.join()
        print(statuses)
    """,
    "callbacks of the garbage collector and of weak references that hop": """
        import gc, threading, weakref
        from concurrent.futures import Future, ThreadPoolExecutor
        pool, hopped = ThreadPoolExecutor(2), []
        class Thing:
            def __del__(self):
                pool.submit(hopped.append, "finalizer")
        def collected(phase, information):
            if phase == "stop":
                Future().add_done_callback(len)
                pool.submit(hopped.append, "collector")
        gc.callbacks.append(collected)
        gc.set_threshold(30, 2, 2)
        for _ in range(200):
            thing = Thing()
            thing.itself = thing
            reference = weakref.ref(thing, lambda _: pool.submit(hopped.append, "reference"))
            weakref.finalize(thing, pool.submit, hopped.append, "finalize")
            del thing
            future = Future()
            future.add_done_callback(lambda future: hopped.append("callback"))
            future.set_result(1)
            threading.Thread(target=int).start()
        gc.callbacks.remove(collected)
        gc.collect()
        pool.shutdown()
        print(sorted(set(hopped)), hopped.count("callback"))
    """,
    "a tracer and a profiler see the application's own functions as ever": """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        seen = set()
        def tracer(frame, event, argument):
            if frame.f_code.co_filename == __file__:
                seen.add((event, frame.f_code.co_name, frame.f_lineno))
            return tracer
        def profiler(frame, event, argument):
            if frame.f_code.co_filename == __file__ and event in ("call", "return"):
                seen.add(("profile", event, frame.f_code.co_name))
        def work(n):
            try:
                return 1 // n
            except ZeroDivisionError:
                return 0
        def callback(future):
            seen.add(future.result())
        for turn_on in (threading.settrace, threading.setprofile, sys.settrace, sys.setprofile):
            turn_on(tracer if "trace" in turn_on.__name__ else profiler)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work, 1).add_done_callback(callback)
            print([*pool.map(work, range(3))])
        thread = threading.Thread(target=work, args=(0,))
        thread.start()
        thread.join()
        for turn_off in (threading.settrace, threading.setprofile, sys.settrace, sys.setprofile):
            turn_off(None)
        print(sorted(map(repr, seen)))
    """,
    "a tracer that raises": """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        def tracer(frame, event, argument):
            if frame.f_code.co_name == "work":
                raise ValueError("from the tracer")
        def work():
            return 1
        threading.settrace(tracer)
        with ThreadPoolExecutor(1) as pool:
            print(repr(pool.submit(work).exception(10)))
        threading.settrace(None)
    """,
    "a log handler that submits to the pool that it logs of": """
        import logging, threading
        from concurrent.futures import ThreadPoolExecutor
        pool, handled = ThreadPoolExecutor(1), []
        class Handler(logging.Handler):
            def emit(self, record):
                handled.append(pool.submit(len, record.getMessage()))
                pool.submit(int).add_done_callback(lambda future: None)
        log = logging.getLogger("application")
        log.addHandler(Handler())
        logging.getLogger("otelctx").addHandler(Handler())
        logging.getLogger("otelctx").propagate = False
        def work():
            KEY.set("B")
            log.warning("abc")
        for _ in range(20):
            pool.submit(work).result(10)
        print([future.result(10) for future in handled].count(3))
        pool.shutdown()
    """,
    "values of odd types": """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        def broken(*_):
            raise RuntimeError("not to be called")
        class Text(str):
            __eq__ = __hash__ = __str__ = __repr__ = __bool__ = __format__ = __len__ = broken
        class Mapping(dict):
            __eq__ = __hash__ = __str__ = __repr__ = __bool__ = __getitem__ = get = keys = __iter__ = broken
        class Number(int):
            __eq__ = __hash__ = __str__ = __repr__ = __bool__ = __int__ = __index__ = broken
        class Proxy:
            def __getattribute__(self, name):
                raise RuntimeError("not to be looked at")
            __eq__ = __hash__ = __bool__ = broken
        pool = ThreadPoolExecutor(1)
        values = Text("B"), Mapping(a=1), Number(3), Proxy(), b"bytes", "x" * 100_000, "\\ud800", 10**5000, [], None
        for value in values:
            KEY.set(value)
            print(pool.submit(len, "abc").result(10), KEY.get() is value)
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
            future = pool.submit(int)
            future.add_done_callback(lambda future: None)
            print(future.result(10), KEY.get() is value)
        pool.shutdown()
    """,
    "odd callables": """
        import threading
        from concurrent.futures import Future, ThreadPoolExecutor
        from functools import partial
        def broken(*_):
            raise RuntimeError("not to be looked at")
        class Call:
            def __call__(self, *args, **kwargs):
                return len(args), sorted(kwargs)
            __eq__ = __hash__ = __repr__ = __str__ = __bool__ = broken
            def __getattr__(self, name):
                raise RuntimeError(name)
        class Proxy(Call):
            def __getattribute__(self, name):
                raise RuntimeError("not bound")
        class NoCall:
            pass
        pool = ThreadPoolExecutor(1)
        thread = threading.Thread(target=Proxy(), name="t")
        thread.start()
        thread.join()
        for fn in (Call(), Proxy(), partial(Call(), 1), "abc".upper, len, str, type("T", (), {}), print, lambda *_: 1):
            arguments = () if fn is not len else ("abc",)
            print(type(pool.submit(fn, *arguments).result(10)).__name__)
        print(pool.submit(lambda *a, **k: (a, k), 1, fn=2, self=3, args=4, kwargs=5, snapshot=6).result(10))
        for bad in (NoCall(), None, 3):
            print(type(pool.submit(bad).exception(10)).__name__)
            future = Future()
            future.add_done_callback(bad) if bad is not None else None
        pool.shutdown()
    """,
    "a recursion that hops at every depth": """
        import threading
        from concurrent.futures import Future, ThreadPoolExecutor
        pool = ThreadPoolExecutor(1)
        pool.submit(len, "abc").result(10)
        submitted = []
        def down(n):
            submitted.append(pool.submit(len, "abc"))
            future = Future()
            future.add_done_callback(lambda future: None)
            future.set_result(1)
            down(n + 1)
        sys.setrecursionlimit(150)
        for _ in range(5):
            try:
                down(0)
            except RecursionError:
                print("too deep")
        sys.setrecursionlimit(1000)
        print({future.result(10) for future in submitted})
        thread = threading.Thread(target=print, args=("a thread",))
        thread.start()
        thread.join()
        print(pool.submit(len, "abcd").result(10))
        pool.shutdown()
    """,
}


@pytest.mark.parametrize("what", ODD)
def test_the_application_sees_the_same(programs: Programs, what: str) -> None:
    ends_the_same(programs, ODD[what])


# --- sources, predicates and callbacks that fail ----------------------------------------------------------------------

FAILING: Final = """
    import logging, sys, threading, types
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.pool import ThreadPool
    logging.getLogger("otelctx").setLevel(logging.CRITICAL)  # what it says of the faults is meant to be there

    def getter():
        raise {raised}("on purpose")

    def work(n):
        return n + 1

    pool = ThreadPoolExecutor(1, initializer=lambda: KEY.set("left behind"))
    KEY.set("B")
    print(pool.submit(work, 1).result(10), [*pool.map(work, range(3))])
    done = threading.Event()
    pool.submit(work, 1).add_done_callback(lambda future: done.set())
    print(done.wait(10))
    thread = threading.Thread(target=print, args=("a thread",))
    thread.start()
    thread.join()
    with ThreadPool(1) as another:
        print(another.map(work, range(3)))
    os.environ["APP_SESSION"] = "B"
    print(os.environ["APP_SESSION"], pool.submit(work, 2).result(10))
    pool.shutdown()
"""

GETTER: Final = """
[keys.session]
sources = [{ contextvar = "__main__:KEY", empty = [""] }, { getter = "__main__:getter" }]
"""

PREDICATE: Final = """
[claim]
env = { task_id = "APP_SESSION" }
predicate = "__main__:getter"
"""


@pytest.mark.parametrize("raised", ["ValueError", "RecursionError"])
def test_a_getter_and_a_predicate_that_raise_are_nothing_to_the_work(programs: Programs, raised: str) -> None:
    ends_the_same(programs, FAILING.format(raised=raised), declared=GETTER + PREDICATE, says="a thread")


def test_a_getter_that_interrupts_its_thread_is_nothing_to_the_work(programs: Programs) -> None:
    ends_the_same(programs, FAILING.format(raised="KeyboardInterrupt"), declared=GETTER, says="a thread")


def test_a_source_whose_module_raises_when_it_is_imported_is_nothing_to_the_work(
    programs: Programs, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("from contextvars import ContextVar\nKEY = ContextVar('KEY')\n1 // 0\n")
    (tmp_path / "strange.py").write_text(
        "import sys\n"
        "class Strange(type(sys)):\n"
        "    def __getattr__(self, name):\n"
        "        raise RuntimeError(name)\n"
        "sys.modules[__name__] = Strange(__name__)\n"
    )
    declared = """
[keys.session]
sources = [{ contextvar = "broken:KEY" }, { contextvar = "strange:KEY" }, { getter = "strange:getter" }]
"""
    text = """
    import logging
    logging.getLogger("otelctx").setLevel(logging.CRITICAL)
    from concurrent.futures import ThreadPoolExecutor
    pool = ThreadPoolExecutor(1)
    for name in ("broken", "strange", "broken", "absent"):
        try:
            print(type(__import__(name)).__name__)
        except Exception as error:
            print(type(error).__name__, error)
        print(pool.submit(len, "abc").result(10), name in sys.modules)
    pool.shutdown()
    """
    ends_the_same(programs, text, declared=declared, says="ZeroDivisionError")


# --- callbacks of on_mismatch, and exporters --------------------------------------------------------------------------

IN_PROCESS = {"session": {"sources": [{"contextvar": f"{__name__}:KEY", "empty": [""]}]}}
TIMEOUT: Final = 20.0
KEY: ContextVar[str] = ContextVar("KEY")


class Ends(BaseException):
    """Ends a thread, as a killed greenlet's exception does."""


def warm(pool: ThreadPoolExecutor) -> None:
    """Let the worker have a key of its own, so that every arrival there is a mismatch."""
    inspect.unwrap(ThreadPoolExecutor.submit)(pool, KEY.set, "left behind").result(TIMEOUT)


@pytest.fixture(params=["repair", "observe", "recorded", "enforce"])
def mode(request: pytest.FixtureRequest, install: Install) -> Iterator[str]:
    """Otelctx on, in each mode; and in repair under a span, where an arrival has more to it."""
    install(keys=IN_PROCESS, mode="repair" if request.param == "recorded" else request.param, spans="auto")
    if request.param == "recorded":
        with trace.get_tracer(__name__).start_as_current_span("turn"):
            yield request.param
    else:
        yield request.param


@pytest.mark.parametrize("raised", [ValueError, MemoryError, RecursionError])
@pytest.mark.usefixtures("mode")
def test_the_work_runs_whatever_exception_a_callback_of_on_mismatch_raises(raised: type[Exception]) -> None:
    called = []

    def callback(mismatch: Mismatch) -> None:
        called.append(mismatch.key)
        raise raised("on purpose")

    forget = otelctx.on_mismatch(callback)
    try:
        with ThreadPoolExecutor(1) as pool:
            warm(pool)
            token = KEY.set("A")
            assert pool.submit(len, "abc").result(TIMEOUT) == 3
            KEY.reset(token)
    finally:
        forget()
    assert called == ["session"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit, Ends])
def test_what_is_to_end_a_thread_passes_through_a_callback_and_leaves_the_worker_in_order(
    raised: type[BaseException], mode: str, spans: InMemorySpanExporter
) -> None:
    """Ctrl-C, `sys.exit` of a signal's handler, a killed greenlet: none of them is otelctx's to swallow."""
    raising = True

    def callback(mismatch: Mismatch) -> None:
        if raising:
            raise raised("on purpose")

    def left() -> tuple[object, ...]:
        return otelctx.get("session"), TRAIL.get(), ambient.is_asking(), trace.get_current_span().get_span_context()

    forget = otelctx.on_mismatch(callback)
    ran: list[object] = []
    try:
        with ThreadPoolExecutor(1) as pool:
            warm(pool)
            before = inspect.unwrap(ThreadPoolExecutor.submit)(pool, left).result(TIMEOUT)
            token = KEY.set("A")
            future = pool.submit(ran.append, "it")
            assert type(future.exception(TIMEOUT)) is raised
            raising = False
            KEY.reset(token)
            assert inspect.unwrap(ThreadPoolExecutor.submit)(pool, left).result(TIMEOUT) == before
            assert pool.submit(len, "abc").result(TIMEOUT) == 3
    finally:
        forget()
    assert ran == []
    assert not alerts_module.delivering()
    if mode == "recorded":
        assert [span.name for span in spans.get_finished_spans()] == ["executor list.append", "executor len"]


class Blocks(SpanExporter):
    """An exporter that has lost its backend: it returns when it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.let_go.wait(TIMEOUT)
        return SpanExportResult.FAILURE


@pytest.mark.parametrize("mode", ["observe", "repair"], indirect=True)
def test_the_work_runs_while_an_exporter_blocks(mode: str) -> None:
    exporter = Blocks()
    seen: list[Mismatch] = []
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, schedule_delay_millis=1, max_queue_size=4, max_export_batch_size=1)
    )
    forget = otelctx.on_mismatch(seen.append)
    alerts_module.configure(None, tracer_provider=provider)
    try:
        with provider.get_tracer(__name__).start_as_current_span("turn"):
            provider.get_tracer(__name__).start_span("another").end()
            assert exporter.entered.wait(TIMEOUT)
            with ThreadPoolExecutor(1) as pool:
                token = KEY.set("A")
                for number in range(20):  # more than the queue holds
                    warm(pool)
                    assert pool.submit(abs, number).result(TIMEOUT) == number
                KEY.reset(token)
        assert not exporter.let_go.is_set()
        assert seen
    finally:
        forget()
        exporter.let_go.set()
        provider.shutdown()
