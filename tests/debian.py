"""Programs of Debian's, for tests that need a real server: downloaded and unpacked, never installed.

That needs no rights and starts no service. What was fetched is kept in the user's cache directory. A newer Debian's
programs can be had as well (`suite`): the mirror is the one that this system uses.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.environments import cache_directory

TIMEOUT = 300.0  # seconds for one command; a suite's list is some 10 MB


def unpacked(*packages: str, suite: str | None = None) -> Path:
    """The directory in which `packages` are unpacked, as they would lie under ``/``; the test is skipped off Debian.

    `suite`: a newer release of Debian (``sid``) in place of this system's.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("there is no Debian package manager here to get " + ", ".join(packages))
    about = hashlib.sha256("\n".join((suite or "", *sorted(packages))).encode()).hexdigest()[:16]
    root = cache_directory() / f"debian-{about}"
    if not root.exists():
        with tempfile.TemporaryDirectory(dir=root.parent) as unfinished:
            folder = Path(unfinished)
            _download(folder, packages, _of_suite(folder, suite) if suite else [])
            for package in folder.glob("*.deb"):
                _run(["dpkg", "-x", str(package), str(folder / "root")], folder)
            try:
                (folder / "root").rename(root)  # whole or not at all
            except OSError:
                if not root.exists():  # else another session was faster
                    raise
    return root


def _download(folder: Path, packages: tuple[str, ...], options: list[str]) -> None:
    command = ["apt-get", *options, "download", "--quiet", *packages]
    if subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=TIMEOUT).returncode:
        _run(["apt-get", *options, "update", "--quiet"], folder)  # a machine without lists
        _run(command, folder)


def _of_suite(folder: Path, suite: str) -> list[str]:
    """apt's options for another release, whose lists are kept in `folder`; the system's own are not touched."""
    wanted = ["--format", "$(REPO_URI)", "Created-By: Packages", "Component: main", "Origin: Debian"]
    mirrors = _run(["apt-get", "indextargets", *wanted], folder).split()
    if not mirrors:  # the origin is known only where there are lists
        mirrors = _run(["apt-get", "indextargets", *wanted[:-1]], folder).split()
    mirror = next((found for found in mirrors if found.rstrip("/").endswith("/debian")), None)
    if mirror is None:
        pytest.skip(f"this system has no mirror of Debian to get {suite} from")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / "apt" / name).mkdir(parents=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    sources = folder / "apt" / "sources.list"
    sources.write_text(f"deb [signed-by={keyring}] {mirror} {suite} main\n")
    places = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "apt" / "lists",
        "Dir::Cache": folder / "apt" / "cache",
    }
    return [part for name, place in places.items() for part in ("-o", f"{name}={place}")]


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)
    return done.stdout
