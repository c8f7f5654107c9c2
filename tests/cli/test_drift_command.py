"""`otelctx drift`: its exit codes, and what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from otelctx.cli.drift import command

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's directory, which is the current one and is not on `sys.path`."""
    (tmp_path / "drift_project.py").write_text(
        "import os, subprocess\n"
        "raise SystemExit('run')\n"
        "def spawn(task):\n"
        "    env = dict(os.environ)\n"
        "    env['K_TASK'] = task.id\n"
        "    env['K_MODE'] = 'goal'\n"
        "    env['OTHER'] = '1'\n"
        "    subprocess.Popen(['worker'], env=env)\n"
        "def drifted(task):\n"
        "    env = dict(os.environ, K_TASK=task.id)\n"
        "    env.setdefault('K_TASKS', '1')\n"
    )
    (tmp_path / "otelctx.toml").write_text('claim.env.task_id = "K_TASK"\nclaim.behaviour_only = ["K_MODE"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTELCTX_CONFIG", "otelctx.toml")
    return tmp_path


def drift(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, prog_name="otelctx drift")


def test_a_spawn_function_whose_variables_are_declared_is_exit_0_and_one_line() -> None:
    result = drift("drift_project:spawn", "--prefix", "K_")
    assert result.exit_code == 0
    assert result.stdout == (
        "drift_project:spawn: what it puts into a child's environment named K_* is declared: K_MODE, K_TASK\n"
    )
    assert result.stderr == ""


def test_a_variable_that_nobody_declared_is_exit_1_and_its_name() -> None:
    result = drift("drift_project:drifted", "--prefix", "K_")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "drift_project:drifted puts 1 variable named K_* that nobody declared:",
        "  K_TASKS at line 11 (nearest declared: K_TASK)",
    ]


def test_without_a_prefix_every_variable_has_to_be_declared() -> None:
    result = drift("drift_project:spawn")
    assert result.exit_code == 1
    assert "  OTHER at line 7" in result.stdout.splitlines()


def test_a_file_that_is_named_declares_in_place_of_the_environments(project: Path) -> None:
    (project / "other.toml").write_text('scoped_env.names = ["K_TASK", "K_TASKS"]\n')
    assert drift("drift_project:drifted", "--prefix", "K_", "--config", "other.toml").exit_code == 0


def test_a_preset_named_by_the_environment_declares(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    (project / "drift_preset.py").write_text("def spawn(env):\n    env['HERMES_KANBAN_CLAIM_LOCK'] = 1\n")
    target = ("drift_preset:spawn", "--prefix", "HERMES_")
    assert drift(*target).exit_code == 1
    monkeypatch.setenv("OTELCTX_PRESETS", "hermes")
    assert drift(*target).exit_code == 0


@pytest.mark.parametrize(
    "target, line",
    [
        ("drift_project:gone", "Error: there is no function gone in the module drift_project\n"),
        ("drift_nowhere:spawn", "Error: there is no module drift_nowhere\n"),
        ("drift_project", "Error: 'drift_project' does not name a function; it is written module:function\n"),
        ("drift_broken:spawn", "Error: the module drift_broken cannot be read: invalid syntax, line 1\n"),
    ],
)
def test_a_function_that_cannot_be_found_or_read_is_exit_2_and_one_line(target: str, line: str, project: Path) -> None:
    (project / "drift_broken.py").write_text("spawn = = 1\n")
    result = drift(target, "--prefix", "K_")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == line


def test_a_configuration_that_is_wrong_is_exit_2_and_one_line(project: Path) -> None:
    (project / "otelctx.toml").write_text("claims = 1\nmodes = 2\n")
    result = drift("drift_project:spawn")
    assert result.exit_code == 2
    assert result.stderr == "Error: otelctx.toml: claims: unknown name; did you mean claim? (and 1 more)\n"


def test_the_command_runs_nothing_of_the_project_and_imports_no_opentelemetry(project: Path) -> None:
    code = (
        "import sys; from otelctx.cli.drift import command\n"
        "try: command(['drift_project:spawn', '--prefix', 'K_'])\n"
        "except SystemExit as end: print(end.code, [m for m in sys.modules if m.startswith(('drift_p', 'opentel'))])\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.stdout.splitlines()[-1:] == ["0 []"], ran.stderr
