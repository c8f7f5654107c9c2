"""`otelctx run`: what the command that it becomes finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

OTELCTX = (sys.executable, "-m", "otelctx", "run")

CODE = """
import json, os, sys
ours = {name: value for name, value in os.environ.items() if name.startswith("OTELCTX_")}
print(json.dumps([sys.argv[1:], os.getpid(), ours]))
"""
SHOW = (sys.executable, "-c", CODE)


def run(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTELCTX_")}
    command = [*OTELCTX, *arguments]
    return subprocess.run(
        command, cwd=cwd, env={**clean, **environ}, capture_output=True, text=True, timeout=50, check=False
    )


def test_the_command_has_otelctx_on_and_its_own_arguments() -> None:
    done = run("--", *SHOW, "--mode", "x y", "-h")
    assert done.returncode == 0, done.stderr
    arguments, _, environ = json.loads(done.stdout)
    assert arguments == ["--mode", "x y", "-h"]
    assert environ == {"OTELCTX_ENABLED": "true"}


def test_a_command_needs_no_dashes_before_it() -> None:
    arguments, _, environ = json.loads(run("--mode", "observe", *SHOW, "--config", "theirs").stdout)
    assert arguments == ["--config", "theirs"]
    assert environ == {"OTELCTX_ENABLED": "true", "OTELCTX_MODE": "observe"}


def test_options_win_over_the_environment_and_the_file_is_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("")
    environ = {"OTELCTX_ENABLED": "false", "OTELCTX_MODE": "enforce", "OTELCTX_CONFIG": "theirs.toml"}
    done = run("--mode", "observe", "--config", "mine.toml", "--", *SHOW, cwd=tmp_path, **environ)
    assert json.loads(done.stdout)[2] == {
        "OTELCTX_ENABLED": "true",
        "OTELCTX_MODE": "observe",
        "OTELCTX_CONFIG": str(tmp_path / "mine.toml"),
    }


def test_the_command_takes_the_process_over() -> None:
    process = subprocess.Popen([*OTELCTX, "--", *SHOW], stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=50)
    assert json.loads(output)[1] == process.pid


def test_its_exit_status_is_the_commands() -> None:
    assert run("--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7


def test_otelctx_is_on_in_a_python_that_is_run() -> None:
    code = "import threading, otelctx, contextvars\nseen = []\n"
    code += "with otelctx.bind(session='A'): t = threading.Thread(target=lambda: seen.append(otelctx.get('session')))\n"
    code += "with otelctx.bind(session='B'): t.start(); t.join(); print(seen)\n"
    done = run("--", sys.executable, "-c", code)
    assert (done.stdout, done.stderr) == ("['B']\n", "")


def test_a_command_that_is_not_there_is_exit_127_and_one_line() -> None:
    done = run("--", "otelctx-no-such-command")
    assert done.returncode == 127
    assert done.stderr == "Error: there is no command 'otelctx-no-such-command'\n"


def test_a_command_that_cannot_be_run_is_exit_126_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("no program")
    done = run("--", str(tmp_path / "data.txt"))
    assert done.returncode == 126
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_wrong_options_are_exit_2_and_nothing_is_run(tmp_path: Path) -> None:
    for wrong in (["--mode", "obsrve"], ["--config", str(tmp_path / "gone.toml")], []):
        done = run(*wrong, "--", *(SHOW if wrong else ()))
        assert done.returncode == 2, wrong
        assert done.stdout == ""
