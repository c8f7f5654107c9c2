"""What is built, and what an installed otelctx has at interpreter start."""

from __future__ import annotations

import email
import email.message
import re
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path, PurePosixPath

import pytest

from tests.installed import ROOT, build


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("editable"), "editable")


def names(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as opened:
        return set(opened.namelist())


def read(archive: Path, name: str) -> str:
    with zipfile.ZipFile(archive) as opened:
        return opened.read(name).decode()


def metadata(archive: Path) -> email.message.Message:
    return email.message_from_string(read(archive, "otelctx-0.1.0.dist-info/METADATA"))


def test_the_wheel_has_two_import_roots_and_the_start_up_line_and_nothing_else_at_its_root(wheel: Path) -> None:
    roots = {PurePosixPath(name).parts[0] for name in names(wheel)}
    assert roots == {"otelctx", "otelctx_instrumentation", "otelctx.pth", "otelctx-0.1.0.dist-info"}
    assert "otelctx/otelctx.pth" not in names(wheel)


def test_the_wheel_has_every_module_of_the_source_tree(wheel: Path) -> None:
    sources = {
        path.relative_to(root).as_posix()
        for root in (ROOT, ROOT / "instrumentation")
        for package in root.glob("otelctx*")
        for path in package.rglob("*.py")
    }
    assert "otelctx/bootstrap.py" in sources
    assert sources <= names(wheel)


@pytest.mark.parametrize(
    "name",
    [
        "otelctx/py.typed",
        "otelctx_instrumentation/py.typed",
        "otelctx/presets/hermes.toml",
        "otelctx/cli/_gateway/otelctx.toml",
        "otelctx/cli/_gateway/gateway/app.py",
        "otelctx-0.1.0.dist-info/licenses/LICENSE",
    ],
)
def test_the_wheel_ships(wheel: Path, name: str) -> None:
    assert name in names(wheel)


def test_no_cache_of_a_tool_is_in_the_wheel(wheel: Path) -> None:
    assert not [name for name in names(wheel) if "cache" in name]


def test_an_editable_install_has_the_start_up_line_after_the_paths_that_it_imports_from(editable: Path) -> None:
    files = sorted(name for name in names(editable) if name.endswith(".pth"))
    assert files == ["_otelctx.pth", "otelctx.pth"]  # `site` reads them in this order
    assert read(editable, "_otelctx.pth").split("\n") == [str(ROOT), str(ROOT / "instrumentation")]
    assert not [name for name in names(editable) if name.startswith(("otelctx/", "otelctx_instrumentation/"))]


def test_the_start_up_line_is_one_line_and_the_same_in_both(wheel: Path, editable: Path) -> None:
    line = read(wheel, "otelctx.pth")
    assert re.fullmatch(r"import [^\n]+\n", line)
    assert read(editable, "otelctx.pth") == line


def test_the_source_archive_builds_the_same_wheel(tmp_path: Path, wheel: Path) -> None:
    import hatchling.build

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        archive = tmp_path / hatchling.build.build_sdist(str(tmp_path))
        with tarfile.open(archive) as opened:
            opened.extractall(tmp_path, filter="data")
        patch.chdir(tmp_path / "otelctx-0.1.0")
        again = tmp_path / hatchling.build.build_wheel(str(tmp_path))
    assert names(again) == names(wheel)


def test_opentelemetry_finds_the_instrumentor_and_the_shell_the_command(wheel: Path) -> None:
    entry_points = ConfigParser()
    entry_points.read_string(read(wheel, "otelctx-0.1.0.dist-info/entry_points.txt"))
    assert dict(entry_points["opentelemetry_instrumentor"]) == {
        "otelctx": "otelctx_instrumentation:OtelctxInstrumentor"
    }
    assert dict(entry_points["console_scripts"]) == {"otelctx": "otelctx.cli:main"}


def test_the_instruments_extra_is_there_and_asks_for_nothing(wheel: Path) -> None:
    assert "instruments" in metadata(wheel).get_all("Provides-Extra", [])
    assert not [line for line in metadata(wheel).get_all("Requires-Dist", []) if "instruments" in line]


def test_no_requirement_is_pinned(wheel: Path) -> None:
    required = metadata(wheel).get_all("Requires-Dist", [])
    assert required
    assert not [line for line in required if "==" in line.partition(";")[0]]


def test_the_core_needs_opentelemetry_and_wrapt_alone(wheel: Path) -> None:
    core = [line for line in metadata(wheel).get_all("Requires-Dist", []) if "extra" not in line]
    assert {re.split(r"[<>=!;\s]", line)[0] for line in core} == {
        "opentelemetry-api",
        "opentelemetry-sdk",
        "opentelemetry-instrumentation",
        "wrapt",
    }
