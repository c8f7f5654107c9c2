"""What ``examples/production`` tells operators to write: every name in it is one that otelctx, or the tool, knows."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import otelctx
from otelctx import config

ROOT = Path(__file__).parent.parent
PRODUCTION = ROOT / "examples" / "production"
FILES = [path for path in PRODUCTION.rglob("*") if path.is_file() and path.suffix != ".pyc"] + [
    ROOT / "docker-compose.yml"
]
PAGES = [PRODUCTION / "README.md", *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("file", [*FILES, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_variable_of_ours_is_one_that_is_read(file: Path) -> None:
    named = set(re.findall(r"\bOTELCTX_[A-Z_]+\b", file.read_text()))
    settings = {option.variable.replace("<NAME>", "SESSION") for option in config.all_options("session")}
    assert named <= {*config.PLAIN_VARIABLES, *settings}


@pytest.mark.parametrize("file", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(file: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", file.read_text()):
        if not target.startswith("http"):
            assert (file.parent / target).exists(), target


def test_the_readme_names_whatever_there_is_to_call_and_to_set() -> None:
    readme = (ROOT / "README.md").read_text()
    code = " ".join(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", readme, flags=re.DOTALL)))
    wanted = {*otelctx.__all__, *config.PLAIN_VARIABLES, *(option.path[-1] for option in config.all_options())}
    assert {name for name in wanted if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", code)} == set()


def test_the_pages_name_nothing_of_otelctx_that_is_not_there() -> None:
    for page in PAGES:
        for name in re.findall(r"\botelctx\.([a-z_]+)\(", page.read_text()):
            assert hasattr(otelctx, name), f"{page.name}: otelctx.{name}()"


def environment_of_unit() -> dict[str, str]:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    lines = (PRODUCTION / "systemd" / "otelctx.conf").read_text().splitlines()
    numbered = [line.replace("Environment=", f"Environment.{at}=", 1) for at, line in enumerate(lines)]
    parser.read_string("\n".join(numbered))
    return dict(value.split("=", 1) for name, value in parser["Service"].items() if name.startswith("Environment"))


def test_the_drop_in_and_its_settings_are_right() -> None:
    environ = environment_of_unit()
    assert environ["OTELCTX_ENABLED"] == "true"
    settings, problems = config.load(PRODUCTION / "systemd" / Path(environ.pop("OTELCTX_CONFIG")).name, environ=environ)
    assert problems == ()
    assert settings.presets == ("hermes",)
    assert settings.claim.env["task_id"] == "HERMES_KANBAN_TASK"


def test_the_drop_in_is_for_the_program_that_the_unit_runs() -> None:
    from otelctx.auto_instrument import allows, program_of

    globs = environment_of_unit()["OTELCTX_AUTO_INSTRUMENT_PROGRAMS"]
    assert allows(globs, program_of(["python", "-m", "hermes_cli.main", "gateway", "run"]))
    assert not allows(globs, program_of(["pip", "install", "x"]))


def test_systemd_takes_the_drop_in(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd here")
    unit = tmp_path / "hermes-gateway.service"
    unit.write_text("[Unit]\nDescription=x\n[Service]\nExecStart=/bin/true\n")
    (tmp_path / "hermes-gateway.service.d").mkdir()
    shutil.copy(PRODUCTION / "systemd" / "otelctx.conf", tmp_path / "hermes-gateway.service.d")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    about = [line for line in done.stderr.splitlines() if "otelctx" in line]
    assert (done.returncode, about) == (0, []), done.stderr


def manifests() -> dict[str, Any]:
    text = (PRODUCTION / "kubernetes" / "gateway.yaml").read_text()
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(text)}


def test_the_settings_in_the_config_map_are_right() -> None:
    settings = tomllib.loads(manifests()["ConfigMap"]["data"]["otelctx.toml"])
    _, problems = config.load(settings, environ={})
    assert problems == ()


def test_what_the_pod_mounts_is_where_the_settings_look() -> None:
    found = manifests()
    env = {one["name"]: one["value"] for one in found["Instrumentation"]["spec"]["python"]["env"]}
    pod = found["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    env |= {one["name"]: one["value"] for one in container["env"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in pod["spec"]["volumes"]} == set(mounts.values())
    assert str(Path(env["OTELCTX_CONFIG"]).parent) in mounts
    assert str(Path(env["OTELCTX_SECRET_FILE"]).parent) in mounts
    assert Path(env["OTELCTX_CONFIG"]).name in found["ConfigMap"]["data"]
    inject = pod["metadata"]["annotations"]["instrumentation.opentelemetry.io/inject-python"]
    assert inject == found["Instrumentation"]["metadata"]["name"]


@pytest.mark.parametrize("name", ["docker", "kubernetes"])
def test_everything_that_an_image_copies_is_there_and_let_through(name: str) -> None:
    dockerfile = (PRODUCTION / name / "Dockerfile").read_text()
    ignored = (PRODUCTION / name / "Dockerfile.dockerignore").read_text().split()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
    assert copied
    for source in " ".join(copied).split():
        assert (ROOT / source).exists(), source
        assert f"!{source.rstrip('/')}" in ignored


def test_the_injected_image_is_of_this_version() -> None:
    from otelctx.scope import VERSION

    image = manifests()["Instrumentation"]["spec"]["python"]["image"]
    assert image.endswith(f":{VERSION}")
    assert f"-t {image} " in (PRODUCTION / "kubernetes" / "Dockerfile").read_text()
