"""A real Redis server for tests: Debian's, on a free port of this machine's own address, with nothing kept on disk.

Where there is none on the path, Debian's packages of it are downloaded and unpacked into the cache directory, never
installed: that needs no rights, and starts no service.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.environments import cache_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The program is in redis-tools; the others are the libraries that a minimal system lacks.
PACKAGES = ("redis-tools", "libjemalloc2", "liblzf1")
PATIENCE = 20.0


@contextmanager
def redis_server(folder: Path, port: int = 0) -> Iterator[str]:
    """A server for the length of the block; gives its address, ``redis://127.0.0.1:<port>``. `folder` is its own.

    Without a `port`, it is a free one.
    """
    program, environ = _program()
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended may still have it
        free.bind(("127.0.0.1", port))
        port = free.getsockname()[1]
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--databases", "1000", "--save", "", "--appendonly", "no", "--logfile", "redis.log"]
    server = subprocess.Popen(command, cwd=folder, env={**os.environ, **environ}, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > deadline:
                log = folder / "redis.log"
                pytest.fail(f"redis-server did not start: {log.read_text() if log.exists() else server.returncode}")
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(PATIENCE)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(7) == b"+PONG\r\n"
    except OSError:
        return False


def _program() -> tuple[Path, Mapping[str, str]]:
    """The server's program, and the variables that it needs to run."""
    if found := shutil.which("redis-server"):
        return Path(found), {}
    root = cache_directory() / "redis"
    if not root.exists():
        if shutil.which("apt-get") is None:
            pytest.skip("there is neither a redis-server here nor Debian's package manager to get one")
        with tempfile.TemporaryDirectory(dir=root.parent) as unfinished:
            _download(Path(unfinished))
            unpacked = Path(unfinished, "root")
            for package in Path(unfinished).glob("*.deb"):
                subprocess.run(["dpkg", "-x", str(package), str(unpacked)], check=True)
            # One program under several names; Debian's link of this one is in a package of its own.
            (unpacked / "usr" / "bin" / "redis-server").symlink_to("redis-check-rdb")
            try:
                unpacked.rename(root)  # whole or not at all
            except OSError:
                if not root.exists():  # else another session was faster
                    raise
    libraries = ":".join(str(path) for path in (root / "usr" / "lib").iterdir() if path.is_dir())
    return root / "usr" / "bin" / "redis-server", {"LD_LIBRARY_PATH": libraries}


def _download(folder: Path) -> None:
    command = ["apt-get", "download", "--quiet", *PACKAGES]
    if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode:
        subprocess.run(["apt-get", "update", "--quiet"], capture_output=True, check=False)  # a machine without lists
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)
