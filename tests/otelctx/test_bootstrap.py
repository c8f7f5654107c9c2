"""What happens at interpreter start: real interpreters, in an environment that otelctx is installed in."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.installed import Environment, clean_environ, environment

if TYPE_CHECKING:
    from collections.abc import Iterator

ON = {"OTELCTX_ENABLED": "true"}
HEAVY = ("threading", "logging", "asyncio", "concurrent.futures", "wrapt", "opentelemetry")

IN_A_POOL = """
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import ContextVar

    SESSION = ContextVar("SESSION", default=None)
    SESSION.set("slack:C1")
    with ThreadPoolExecutor(1) as executor:
        print(executor.submit(lambda: SESSION.get()).result())
"""
IN_A_THREAD = """
    from contextvars import ContextVar
    import threading

    SESSION = ContextVar("SESSION", default=None)
    SESSION.set("slack:C1")
    thread = threading.Thread(target=lambda: print(SESSION.get()))
    thread.start()
    thread.join()
"""
IN_A_CALLBACK = """
    import _thread
    from concurrent.futures import Future
    from contextvars import ContextVar

    SESSION = ContextVar("SESSION", default=None)
    SESSION.set("slack:C1")
    future = Future()
    called = _thread.allocate_lock()
    called.acquire()
    future.add_done_callback(lambda future: (print(SESSION.get()), called.release()))
    _thread.start_new_thread(future.set_result, (None,))  # a thread that knows nothing of the key
    called.acquire()
"""


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(tmp_path_factory.mktemp("wheel"), "wheel")


def declare(directory: Path, module: str = "__main__") -> dict[str, str]:
    """Declare the ContextVar SESSION of ``module`` in a file; return the variables that name it and turn otelctx on."""
    configuration = directory / "otelctx.toml"
    configuration.write_text(f'[keys.session]\nsources = [{{ contextvar = "{module}:SESSION" }}]\n')
    return ON | {"OTELCTX_CONFIG": str(configuration)}


def script(directory: Path, text: str, name: str = "program.py") -> Path:
    path = directory / name
    path.write_text(dedent(text))
    return path


def output(finished: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines that a program printed, provided that it ended well and complained about nothing."""
    assert (finished.returncode, finished.stderr) == (0, ""), finished.stdout + finished.stderr
    return finished.stdout.splitlines()


# Nothing is imported


def test_with_the_variables_unset_nothing_of_it_is_imported_at_start(installed: Environment, tmp_path: Path) -> None:
    code = (
        "import sys; print(len(sys.meta_path), *(m for m in sys.modules if m.startswith(('otelctx', 'wrapt', 'open'))))"
    )
    without_site = installed.run("-S", "-c", code, directory=tmp_path)
    assert output(installed.run("-c", code, directory=tmp_path)) == output(without_site)


@pytest.mark.parametrize("value", ["false", "0", "no", "off", "FALSE", "Off"])
def test_a_value_that_means_no_turns_it_off_even_beside_auto_instrument(
    wheel: Environment, tmp_path: Path, value: str
) -> None:
    variables = declare(tmp_path) | {"OTELCTX_ENABLED": value, "OTELCTX_AUTO_INSTRUMENT": "true"}
    assert output(wheel.run(script(tmp_path, IN_A_POOL), directory=tmp_path, **variables)) == ["None"]


@pytest.mark.parametrize("flags", [(), ("-I",)], ids=["plain", "isolated"])
def test_with_it_set_neither_threading_nor_wrapt_nor_opentelemetry_is_imported_at_start(
    installed: Environment, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    code = f"import sys; print('otelctx.bootstrap' in sys.modules, [m for m in {HEAVY} if m in sys.modules])"
    assert output(installed.run(*flags, "-c", code, directory=tmp_path, **ON)) == ["True []"]


def test_it_does_not_count_as_an_application_what_other_start_up_lines_import(
    wheel: Environment, tmp_path: Path
) -> None:
    extra = wheel.site_packages / "zzz_other.pth"
    extra.write_text("import zzz_other\n")
    module = wheel.site_packages / "zzz_other.py"
    module.write_text("")
    try:
        code = f"import sys; print('zzz_other' in sys.modules, [m for m in {HEAVY} if m in sys.modules])"
        assert output(wheel.run("-c", code, directory=tmp_path, **ON)) == ["True []"]
    finally:
        extra.unlink()
        module.unlink()


def test_a_start_up_line_that_runs_twice_arms_once(wheel: Environment, tmp_path: Path) -> None:
    twice = wheel.site_packages / "otelctx_again.pth"
    twice.write_text((wheel.site_packages / "otelctx.pth").read_text())
    try:
        code = "import sys; print([type(f).__module__ for f in sys.meta_path].count('otelctx.bootstrap'))"
        assert output(wheel.run("-c", code, directory=tmp_path, **ON)) == ["1"]
    finally:
        twice.unlink()


def test_an_installation_that_has_been_half_removed_costs_one_line_on_standard_error(
    tmp_path: Path, wheel: Environment
) -> None:
    bootstrap = wheel.site_packages / "otelctx" / "bootstrap.py"
    text = bootstrap.read_text()
    bootstrap.unlink()
    try:
        finished = wheel.run("-c", "print('works')", directory=tmp_path, **ON)
    finally:
        bootstrap.write_text(text)
    assert (finished.returncode, finished.stdout) == (0, "works\n")
    assert finished.stderr.splitlines()
    # The line runs once for each time that `site` reads it.
    assert {line.partition(":")[0] for line in finished.stderr.splitlines()} == {"otelctx"}


# The first hop is carried


@pytest.mark.parametrize("flags", [(), ("-I",)], ids=["plain", "isolated"])
@pytest.mark.parametrize("hop", [IN_A_POOL, IN_A_THREAD, IN_A_CALLBACK], ids=["pool", "thread", "callback"])
def test_the_first_hop_of_a_program_of_the_standard_library_alone_carries_a_declared_key(
    installed: Environment, tmp_path: Path, hop: str, flags: tuple[str, ...]
) -> None:
    program = script(tmp_path, hop)
    assert output(installed.run(*flags, program, directory=tmp_path, **declare(tmp_path))) == ["slack:C1"]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="there are no interpreter pools before Python 3.14")
def test_the_first_hop_of_a_program_may_be_that_of_an_interpreter_pool(wheel: Environment, tmp_path: Path) -> None:
    """Its `submit` is inherited, and what otelctx sends to a thread cannot be sent to an interpreter."""
    program = script(
        tmp_path,
        """
        from concurrent.futures import InterpreterPoolExecutor
        from contextvars import ContextVar

        SESSION = ContextVar("SESSION", default=None)
        if __name__ == "__main__":
            SESSION.set("slack:C1")
            with InterpreterPoolExecutor(1) as executor:
                print(executor.submit(len, "abc").result(), executor.submit(len, "abcd").result())
        """,
    )
    assert output(wheel.run(program, directory=tmp_path, **declare(tmp_path))) == ["3 4"]


def test_without_it_the_key_is_lost_there(wheel: Environment, tmp_path: Path) -> None:
    assert output(wheel.run(script(tmp_path, IN_A_POOL), directory=tmp_path)) == ["None"]


@pytest.mark.parametrize(
    "first", ["logging", "asyncio", "concurrent.futures", "threading", "multiprocessing.pool", "wrapt"]
)
def test_the_key_is_carried_whatever_is_imported_first(wheel: Environment, tmp_path: Path, first: str) -> None:
    program = script(tmp_path, f"import {first}\n" + dedent(IN_A_POOL))
    assert output(wheel.run(program, directory=tmp_path, **declare(tmp_path))) == ["slack:C1"]


def test_a_module_that_was_imported_before_the_start_up_line_is_armed_too(wheel: Environment, tmp_path: Path) -> None:
    early = wheel.site_packages / "aaa_early.pth"
    early.write_text("import threading, concurrent.futures.thread\n")
    try:
        program = script(tmp_path, IN_A_POOL)
        assert output(wheel.run(program, directory=tmp_path, **declare(tmp_path))) == ["slack:C1"]
    finally:
        early.unlink()


def test_the_key_is_carried_in_code_from_the_command_line_and_from_standard_input(
    wheel: Environment, tmp_path: Path
) -> None:
    variables = declare(tmp_path)
    code = dedent(IN_A_POOL)
    assert output(wheel.run("-c", code, directory=tmp_path, **variables)) == ["slack:C1"]
    assert output(wheel.run("-", directory=tmp_path, text=code, **variables)) == ["slack:C1"]


def test_the_key_is_carried_in_a_module_that_is_run_by_its_name(wheel: Environment, tmp_path: Path) -> None:
    script(tmp_path, IN_A_POOL + "\n    print(type(__loader__).__name__, type(__spec__.loader).__name__)\n")
    lines = output(wheel.run("-m", "program", directory=tmp_path, **declare(tmp_path)))
    assert lines == ["slack:C1", "SourceFileLoader SourceFileLoader"]


def test_a_thread_that_is_started_while_the_application_is_imported_carries_the_key(
    wheel: Environment, tmp_path: Path
) -> None:
    script(
        tmp_path,
        """
        import threading
        from __main__ import SESSION

        thread = threading.Thread(target=lambda: print(SESSION.get()))
        thread.start()
        thread.join()
        """,
        "worker.py",
    )
    program = script(
        tmp_path,
        """
        from contextvars import ContextVar

        SESSION = ContextVar("SESSION", default=None)
        SESSION.set("slack:C1")
        import worker
        """,
    )
    assert output(wheel.run(program, directory=tmp_path, **declare(tmp_path))) == ["slack:C1"]


def test_a_program_is_patched_before_the_first_module_of_its_own_runs(wheel: Environment, tmp_path: Path) -> None:
    script(tmp_path, "import otelctx\nprint(otelctx.is_installed())\n", "application.py")
    assert output(wheel.run("-c", "import application", directory=tmp_path, **ON)) == ["True"]


def test_a_module_whose_import_brought_the_installation_about_runs_once(wheel: Environment, tmp_path: Path) -> None:
    code = """
    import sys
    ran = []
    sys.addaudithook(lambda event, args: event == "exec" and ran.append(getattr(args[0], "co_filename", "")))
    import wrapt
    import otelctx
    print(otelctx.is_installed(), sum(name.endswith("wrapt/__init__.py") for name in ran))
    print(type(wrapt.__loader__).__name__, wrapt.__loader__ is wrapt.__spec__.loader, wrapt is sys.modules["wrapt"])
    """
    program = script(tmp_path, dedent(code))
    assert output(wheel.run(program, directory=tmp_path, **ON)) == ["True 1", "SourceFileLoader True True"]


def test_a_library_that_is_patched_may_be_the_first_module_of_a_program(wheel: Environment, tmp_path: Path) -> None:
    script(tmp_path, "class Job:\n    def run(self): pass\n    def do(self): pass\n", "schedule.py")
    program = script(
        tmp_path, "import schedule\nprint(hasattr(schedule.Job.run, '__wrapped__'), schedule.__loader__)\n"
    )
    (line,) = output(wheel.run(program, directory=tmp_path, **ON))
    assert line.startswith("True ")
    assert "SourceFileLoader" in line


def test_inside_the_import_of_a_library_that_must_be_first_nothing_happens_and_the_next_hop_is_carried(
    wheel: Environment, tmp_path: Path
) -> None:
    # Known by its name: this stands for one that replaces parts of the standard library, and starts a thread meanwhile.
    script(
        tmp_path,
        """
        import sys, threading
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        print("wrapt" in sys.modules, "ssl" in sys.modules)
        """,
        "gevent.py",
    )
    program = script(tmp_path, "import gevent\n" + dedent(IN_A_POOL))
    assert output(wheel.run(program, directory=tmp_path, **declare(tmp_path))) == ["False False", "slack:C1"]


def test_threads_that_race_to_the_first_submit_all_carry_their_own_key(wheel: Environment, tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
        import _thread, threading, queue
        from concurrent.futures import ThreadPoolExecutor
        from contextvars import ContextVar

        SESSION = ContextVar("SESSION", default=None)
        together = threading.Barrier(8)
        seen = queue.SimpleQueue()

        def race(number):  # in a thread that no stand-in has seen start
            with ThreadPoolExecutor(1) as executor:
                SESSION.set(f"slack:C{number}")
                together.wait()
                seen.put(executor.submit(SESSION.get).result() == f"slack:C{number}")

        for number in range(8):
            _thread.start_new_thread(race, (number,))
        print([seen.get() for number in range(8)])
        """,
    )
    assert output(wheel.run(program, directory=tmp_path, **declare(tmp_path))) == [str([True] * 8)]


# The application notices nothing


def test_a_stand_in_looks_like_the_method_and_fails_like_it(wheel: Environment, tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
        import inspect, pickle, threading
        from concurrent.futures import ThreadPoolExecutor

        methods = threading.Thread.start, ThreadPoolExecutor.submit
        for method in methods:
            print(method.__module__, method.__qualname__, inspect.signature(method), bool(method.__doc__))
            print(pickle.loads(pickle.dumps(method)) is method)
        for method in methods:
            try:
                method()
            except TypeError as error:
                print(error)
        with ThreadPoolExecutor(1) as executor:
            try:
                executor.submit(fn=print)
            except TypeError as error:
                print(error)
            print(executor.submit(lambda **named: sorted(named), fn=3, self=4).result())
        """,
    )
    assert output(wheel.run(program, directory=tmp_path, **ON)) == output(wheel.run(program, directory=tmp_path))


def test_who_kept_a_method_before_the_installation_and_wraps_it_later_calls_it_once(
    wheel: Environment, tmp_path: Path
) -> None:
    program = script(
        tmp_path,
        """
        import threading
        from contextvars import ContextVar

        SESSION = ContextVar("SESSION", default=None)
        kept = threading.Thread.start
        first = threading.Thread(target=lambda: None)
        first.start()
        first.join()

        def start(self):
            print("mine")
            kept(self)

        threading.Thread.start = start
        SESSION.set("slack:C1")
        thread = threading.Thread(target=lambda: print(SESSION.get()))
        thread.start()
        thread.join()
        """,
    )
    assert output(wheel.run(program, directory=tmp_path, **declare(tmp_path))) == ["mine", "slack:C1"]


def test_who_wraps_a_method_before_the_installation_is_called_once_for_each_call(
    wheel: Environment, tmp_path: Path
) -> None:
    program = script(
        tmp_path,
        """
        import threading

        kept = threading.Thread.start

        def start(self):
            print("mine")
            kept(self)

        threading.Thread.start = start
        for number in range(2):
            thread = threading.Thread(target=print, args=(number,))
            thread.start()
            thread.join()
        """,
    )
    assert output(wheel.run(program, directory=tmp_path, **declare(tmp_path))) == ["mine", "0", "mine", "1"]


UNDONE = """
    from concurrent.futures import Future, ThreadPoolExecutor
    from threading import Thread
    import inspect, otelctx

    {before}
    otelctx.uninstall()
    for owner, name in (Thread, "start"), (ThreadPoolExecutor, "submit"), (Future, "add_done_callback"):
        method = vars(owner)[name]
        print(method.__code__.co_filename == inspect.getfile(owner), hasattr(method, "__wrapped__"))
"""


@pytest.mark.parametrize(
    "before",
    ["ThreadPoolExecutor(1).submit(print).result()", "otelctx.install()", "otelctx.install(mode='observe')"],
    ids=["by a hop", "in code", "in code with arguments"],
)
def test_uninstall_puts_back_the_very_methods_of_the_standard_library(
    wheel: Environment, tmp_path: Path, before: str
) -> None:
    program = script(tmp_path, UNDONE.format(before=before))
    lines = output(wheel.run(program, directory=tmp_path, **declare(tmp_path)))
    assert [line for line in lines if line] == ["True False"] * 3


@pytest.mark.parametrize(
    "broken", ["None", "types.ModuleType('otelctx.installation')"], ids=["not to be imported", "without its function"]
)
def test_a_broken_installation_changes_nothing_for_the_program_but_one_line_on_standard_error(
    wheel: Environment, tmp_path: Path, broken: str
) -> None:
    text = dedent(IN_A_POOL) + dedent(
        """
        import inspect, threading
        for owner, name in (threading.Thread, "start"), (ThreadPoolExecutor, "submit"):
            method = vars(owner)[name]
            print(method.__code__.co_filename == inspect.getfile(owner), hasattr(method, "__wrapped__"))
        with ThreadPoolExecutor(1) as executor:
            print(executor.submit(lambda: SESSION.get()).result())
        """
    )
    breaking = f"import sys, types\nsys.modules['otelctx.installation'] = {broken}\n"
    without = wheel.run(script(tmp_path, text), directory=tmp_path)
    finished = wheel.run(script(tmp_path, breaking + text), directory=tmp_path, **declare(tmp_path))
    assert (finished.returncode, finished.stdout) == (0, without.stdout)
    assert finished.stderr.count("\n") == 1
    assert finished.stderr.startswith("otelctx: not installed: ")


def test_a_wrong_configuration_does_not_stop_a_program(wheel: Environment, tmp_path: Path) -> None:
    variables = declare(tmp_path) | {"OTELCTX_MODE": "repiar"}
    finished = wheel.run(script(tmp_path, IN_A_POOL), directory=tmp_path, **variables)
    assert (finished.returncode, finished.stdout) == (0, "slack:C1\n")


# Hosts

OPENTELEMETRY_INSTRUMENT = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
# The instrumentation of `logging` starts a thread as the interpreter ends, which 3.12 and later refuse, aloud.
NO_EXPORTERS = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
NO_EXPORTERS["OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"] = "logging"


def test_the_key_is_carried_under_opentelemetry_instrument(wheel: Environment, tmp_path: Path) -> None:
    program = script(tmp_path, IN_A_POOL + "\n    import otelctx; print(otelctx.is_installed())\n")
    arguments = ("-c", OPENTELEMETRY_INSTRUMENT, wheel.python, program)
    for variables in (declare(tmp_path), declare(tmp_path) | {"OTELCTX_ENABLED": ""}):
        finished = wheel.run(*arguments, directory=tmp_path, **variables, **NO_EXPORTERS)
        assert output(finished) == ["slack:C1", "True"]


ASGI = """
    import asyncio, os
    from contextvars import ContextVar

    SESSION = ContextVar("SESSION", default=None)

    def in_the_pool():
        return f"{os.getpid()} {SESSION.get()}".encode()

    async def application(scope, receive, send):
        if scope["type"] == "http":
            SESSION.set(scope["query_string"].decode())
            body = await asyncio.get_running_loop().run_in_executor(None, in_the_pool)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body", "body": body})
"""
WSGI = """
    import os
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import ContextVar

    SESSION = ContextVar("SESSION", default=None)
    executor = None

    def application(environ, start_response):
        global executor
        executor = executor or ThreadPoolExecutor(1)
        SESSION.set(environ["QUERY_STRING"])
        key = executor.submit(SESSION.get).result()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [f"{os.getpid()} {key}".encode()]
"""
UVICORN = (
    "-m",
    "uvicorn",
    "served:application",
    "--workers",
    "2",
    "--log-level",
    "warning",
    "--lifespan",
    "off",
    "--uds",
)
GUNICORN = ("-m", "gunicorn", "served:application", "--workers", "2", "--log-level", "warning", "--bind")


@pytest.fixture
def served(request: pytest.FixtureRequest, wheel: Environment, tmp_path: Path) -> Iterator[httpx.Client]:
    """Serve an application with two workers, and yield a client of it that has no connection open."""
    text, arguments = request.param
    script(tmp_path, text, "served.py")
    address = tmp_path / "socket"
    if len(bytes(address)) > 100:  # what the system allows for the name of a socket
        address = Path(os.path.relpath(address))
    at = f"unix:{address}" if arguments is GUNICORN else str(address)
    log = (tmp_path / "log").open("w+")
    environ = clean_environ(**declare(tmp_path, "served"))
    server = subprocess.Popen([wheel.python, *arguments, at], cwd=tmp_path, env=environ, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while not _accepts(address):
            assert server.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(address), limits=limits), base_url="http://app"
        ) as client:
            yield client
    finally:
        server.terminate()
        server.wait(20)
        log.close()


def _accepts(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(address))
        except OSError:
            return False
    return True


@pytest.mark.parametrize("served", [(ASGI, UVICORN), (WSGI, GUNICORN)], ids=["uvicorn", "gunicorn"], indirect=True)
def test_each_worker_of_a_server_carries_a_request_s_key_into_its_pool(served: httpx.Client) -> None:
    workers: set[str] = set()
    deadline = time.monotonic() + 30
    while len(workers) < 2:
        assert time.monotonic() < deadline, workers
        for number in range(4):
            pid, key = served.get(f"/?C{number}").text.split()
            assert key == f"C{number}"
            workers.add(pid)


# OTELCTX_AUTO_INSTRUMENT

AUTO = NO_EXPORTERS | {"OTELCTX_AUTO_INSTRUMENT": "true"}
INITIALISED = """
    import sys
    trace = sys.modules.get("opentelemetry.trace")
    print(trace and type(trace.get_tracer_provider()).__module__, "sitecustomize" in sys.modules)
"""
SDK = "opentelemetry.sdk.trace"


@pytest.mark.parametrize("flags", [(), ("-I",)], ids=["plain", "isolated"])
def test_auto_instrument_initialises_opentelemetry_and_leaves_no_trace_of_how(
    installed: Environment, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    program = script(tmp_path, INITIALISED)
    assert output(installed.run(*flags, program, directory=tmp_path, **AUTO)) == [f"{SDK} False"]


def test_auto_instrument_turns_otelctx_on(wheel: Environment, tmp_path: Path) -> None:
    variables = declare(tmp_path) | AUTO | {"OTELCTX_ENABLED": ""}
    assert output(wheel.run(script(tmp_path, IN_A_POOL), directory=tmp_path, **variables)) == ["slack:C1"]


def test_auto_instrument_waits_for_a_sitecustomize_that_is_there(wheel: Environment, tmp_path: Path) -> None:
    script(tmp_path, "import sys; print('opentelemetry.sdk' in sys.modules)", "sitecustomize.py")
    program = script(tmp_path, INITIALISED)
    finished = wheel.run(program, directory=tmp_path, PYTHONPATH=str(tmp_path), **AUTO)
    assert output(finished) == ["False", f"{SDK} True"]


@pytest.mark.parametrize("program_of_otel", [False, True], ids=["alone", "beside opentelemetry-instrument"])
def test_auto_instrument_initialises_opentelemetry_once(
    wheel: Environment, tmp_path: Path, program_of_otel: bool
) -> None:
    # OpenTelemetry calls what stands in this group each time that it initialises itself.
    counting = wheel.site_packages / "counting-1.dist-info"
    counting.mkdir()
    (counting / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1\n")
    (counting / "entry_points.txt").write_text("[opentelemetry_pre_instrument]\ncounting = counting:count\n")
    script(wheel.site_packages, "def count(): print('initialised')", "counting.py")
    try:
        program = script(tmp_path, "print('program')")
        before = ("-c", OPENTELEMETRY_INSTRUMENT, wheel.python) if program_of_otel else ()
        # `opentelemetry-instrument` replaces itself with the program; that one is what the variable names.
        variables = AUTO | {"OTELCTX_AUTO_INSTRUMENT_PROGRAMS": "program"}
        assert output(wheel.run(*before, program, directory=tmp_path, **variables)) == ["initialised", "program"]
    finally:
        shutil.rmtree(counting)
        (wheel.site_packages / "counting.py").unlink()


@pytest.mark.parametrize(
    ("name", "globs", "initialised"),
    [
        ("pip.py", "", False),
        ("pip.py", "*", True),
        ("program.py", "!program", False),
        ("program.py", "gunicorn", False),
    ],
)
def test_auto_instrument_asks_which_programs_are_meant(
    wheel: Environment, tmp_path: Path, name: str, globs: str, initialised: bool
) -> None:
    variables = AUTO | {"OTELCTX_AUTO_INSTRUMENT_PROGRAMS": globs}
    lines = output(wheel.run(script(tmp_path, INITIALISED, name), directory=tmp_path, **variables))
    assert lines == [f"{SDK} False" if initialised else "None False"]
