"""Environments of their own with otelctx installed in them, for tests of what happens at interpreter start.

The distribution is built by its own build back end and unpacked as an installer would do. Everything else comes from
the environment that runs the tests, by a path. Its ``.pth`` files are not processed there: its otelctx plays no part.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).parents[1]

Kind = Literal["wheel", "editable"]


class Environment(NamedTuple):
    """A virtual environment."""

    python: Path
    site_packages: Path

    def run(
        self, *arguments: str | Path, directory: Path, text: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run its interpreter with these arguments, and with nothing of our own environment but what is named."""
        return subprocess.run(
            [self.python, *arguments],
            cwd=directory,
            env=clean_environ(**variables),
            capture_output=True,
            text=True,
            timeout=50,
            input=text,
            check=False,
        )


def clean_environ(**variables: str) -> dict[str, str]:
    """Return this process's environment with ``variables``, and without what else steers Python or OpenTelemetry."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OTEL", "VIRTUAL_ENV"))}
    return kept | variables


def build(directory: Path, kind: Kind) -> Path:
    """Build the distribution as a wheel, or as the wheel of an editable install, and return its path."""
    hook = {"wheel": "build_wheel", "editable": "build_editable"}[kind]
    code = f"import hatchling.build, sys; print(hatchling.build.{hook}(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", code, directory], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    assert built.returncode == 0, built.stderr
    return directory / built.stdout.split()[-1]


def environment(directory: Path, kind: Kind) -> Environment:
    """Make an environment in ``directory`` with otelctx installed in it."""
    wheel = build(directory, kind)
    home = directory / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}"
    site_packages = home / "lib" / version / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages)
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in sorted(paths)))
    return Environment(home / "bin" / "python", site_packages)
