"""Environments for what the project's own does not have: it comes from the package index, never into that one.

What an environment needs is fetched once and kept in a directory of packages, one for each set of requirements and
interpreter, in the user's cache directory; ``OTELCTX_HOSTS_DIR`` names another place. It is written once and then only
read, so that any number of sessions may share it. The project's wheel is built from the checkout in every session and
installed into a fresh virtual environment that has those packages on its path: what is tested is what is in the tree,
and its ``.pth`` file lies where an installation puts it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
HOSTS_DIR = os.environ.get("OTELCTX_HOSTS_DIR")  # here and now: no test sees a variable of otelctx's
INSTALL_TIMEOUT = 600.0  # seconds: a first run downloads some 60 packages


def environment(folder: Path, *requirements: str, wheel: Path | None = None) -> Path:
    """Make an environment in `folder`: the `requirements`, this checkout's otelctx and what it depends on.

    `wheel`: otelctx as `wheel_of_checkout` has built it, for whoever makes several environments. Returns the path of
    the environment's interpreter, which is of the version that runs the tests.
    """
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    cache = cache_directory()
    uv = _uv(cache)
    packages = _packages(uv, cache, [*requirements, *project["dependencies"]])

    home = folder / "env"
    _run([*uv, "venv", "--no-project", "--python", sys.executable, str(home)])
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    # `site` reads .pth files in alphabetical order: otelctx.pth may import what this one puts on the path.
    Path(site, "_packages.pth").write_text(f"{packages}\n", encoding="utf-8")

    wheel = wheel_of_checkout(folder) if wheel is None else wheel
    _run([*uv, "pip", "install", "--no-deps", "--python", str(python), str(wheel)])
    return python


def wheel_of_checkout(folder: Path) -> Path:
    """Build this checkout's otelctx in `folder`, and give the path of its wheel."""
    uv = _uv(cache_directory())
    _run([*uv, "build", "--python", sys.executable, "--wheel", "--out-dir", str(folder), str(CHECKOUT)])
    (wheel,) = folder.glob("*.whl")
    return wheel


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


def cache_directory() -> Path:
    """Where what is fetched is kept."""
    if HOSTS_DIR:
        cache = Path(HOSTS_DIR).resolve()
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
