"""Which program an interpreter runs, and whether it is one of those that are meant."""

from __future__ import annotations

import shlex

import pytest

from otelctx.auto_instrument import Program, allows, program_of


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python app.py", "app.py"),
        ("python /srv/venv/bin/gunicorn -w 2 -c conf.py app:app", "gunicorn"),
        ("python -m uvicorn app:app -c x", "uvicorn"),
        ("python -I -X dev -W error -m package.module", "package.module"),
        ("python -Xdev -Werror::DeprecationWarning -Im pip install x", "pip"),
        ("python -mpip install x", "pip"),
        ("python -bb -vv --check-hash-based-pycs always tool.py -m pip", "tool.py"),
        ("python -c 'import app'", "-c"),
        ("python -Ic 'import app'", "-c"),
        ("python - -m pip", "-"),
        ("python directory/", "directory"),
        ("python", ""),
        ("python -i", ""),
        ("python -c 'from multiprocessing.spawn import spawn_main; spawn_main()' --multiprocessing-fork", "-c"),
        ("python -c 'from multiprocessing.resource_tracker import main;main(4)'", "multiprocessing.resource_tracker"),
        ("python -c 'from multiprocessing.forkserver import main; main(3)'", "multiprocessing.forkserver"),
    ],
)
def test_the_program_is_read_from_the_command_line_as_the_interpreter_reads_it(command: str, name: str) -> None:
    assert program_of(shlex.split(command)).name == name


@pytest.mark.parametrize(
    "program",
    [
        *("pip", "pip3", "pip3.12", "pip.exe", "pip.__main__", "pip.pyz", "get-pip.py", "__pip-runner__.py"),
        *("uv", "ensurepip", "setup.py", "_in_process.py", "hatch", "poetry", "virtualenv", "venv"),
        *("opentelemetry-instrument", "otelctx", "multiprocessing.resource_tracker", "multiprocessing.forkserver"),
    ],
)
def test_installers_build_tools_and_service_processes_are_left_out_by_default(program: str) -> None:
    assert not allows("", program_of(["python", f"/bin/{program}"]))


@pytest.mark.parametrize(
    "name", ["app.py", "pipeline.py", "gunicorn", "-c", "-", "", "uvicorn", "builder.py", "setup_db.py"]
)
def test_every_other_program_is_let_in_by_default(name: str) -> None:
    assert allows("", program_of(["python", name] if name else ["python"]))


@pytest.mark.parametrize(
    ("globs", "name", "let_in"),
    [
        ("gunicorn, uvicorn", "uvicorn", True),
        ("gunicorn, uvicorn", "celery", False),
        ("app", "app.py", True),
        ("app.py", "app.py", True),
        ("APP", "app.py", False),
        ("*", "pip", True),
        ("*, !pip", "pip", False),
        ("!pip, *", "pip", False),
        ("!manage", "manage.py", False),
        ("!manage", "app.py", True),
        ("!manage", "pip", False),
        ("package.*", "package.worker", True),
        (" , !, ", "app.py", True),
    ],
)
def test_globs_let_in_what_they_name_and_keep_out_what_they_negate(globs: str, name: str, let_in: bool) -> None:
    stem = name.removesuffix(".py")
    assert allows(globs, Program(name, stem)) is let_in
