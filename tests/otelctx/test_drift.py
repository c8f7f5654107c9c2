"""Drift: which variables a spawn function is seen to put into a child's environment, and what is said of them."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import otelctx
from otelctx.config import Config, ConfigError, load
from otelctx.drift import Drift, SourceError, check, declared
from otelctx.testing import assert_env_covered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Install

CLAIM = {"claim": {"env": {"task_id": "K_TASK"}, "behaviour_only": ["K_MODE"]}}


def configured(**tables: object) -> Config:
    config, problems = load({**CLAIM, **tables}, environ={})
    assert not problems
    return config


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., set[str]]:
    """``put(source)``: the names that ``spawn`` in a module of this source puts, and of unread ones where."""
    numbers = iter(range(1000))

    def read(source: str, target: str = "spawn", prefix: str = "K_", **modules: str) -> set[str]:
        name = f"dispatcher_{next(numbers)}"
        for other, text in {name: source, **modules}.items():
            (tmp_path / f"{other}.py").write_text("import os\nimport subprocess\n" + textwrap.dedent(text))
        found = check(f"{name}:{target}", prefix, Config(), [str(tmp_path)])
        return {put.name if not put.unread else f"line {put.line}: {put.unread}" for put in found.undeclared}

    return read


# --- every way of writing --------------------------------------------------------------------------------------------

WRITES = {
    "assignment": 'env["K_X"] = "1"',
    "two targets": 'env["K_X"] = other = "1"',
    "unpacked": 'env["K_X"], other = "1", "2"',
    "unpacked from a call": 'env["K_X"], other = task.both()',
    "augmented": 'env["K_X"] += ":1"',
    "update with a literal": 'env.update({"K_X": "1"})',
    "update with a keyword": 'env.update(K_X="1")',
    "update with pairs": 'env.update([("K_X", "1")])',
    "update with a made literal": 'env.update(dict(K_X="1"))',
    "update with a comprehension": 'env.update({name: "1" for name in ("K_X",)})',
    "update with pairs that are made": 'env.update((name, "1") for name in ("K_X",))',
    "update through the type": 'dict.update(env, {"K_X": "1"})',
    "setdefault": 'env.setdefault("K_X", "1")',
    "setitem": 'env.__setitem__("K_X", "1")',
    "in-place or": 'env |= {"K_X": "1"}',
    "or": 'env = env | {"K_X": "1"}',
    "a new literal": 'env = {**env, "K_X": "1"}',
    "a new dict": 'env = dict(env, K_X="1")',
    "a new dict of a new literal": 'env = dict({**env, "K_X": "1"})',
    "a literal's own expansion": 'env = {**env, **{"K_X": "1"}}',
    "a variable on top": 'extra = {"K_X": "1"}\n    env.update(extra)',
    "a variable filled on top": 'extra = {}\n    extra["K_X"] = "1"\n    env = {**env, **extra}',
    "an annotated variable": 'extra: dict[str, str] = {"K_X": "1"}\n    env = {**env, **extra}',
    "a walrus": 'env.update(extra := {"K_X": "1"})',
    "a condition": 'env.update({"K_X": "1"} if task else {})',
    "an alternative": 'env.update(None or {"K_X": "1"})',
    "an alias": 'other = env\n    other["K_X"] = "1"',
    "a branch": 'if task:\n        env["K_X"] = "1"',
    "a loop over names": 'for name in ("K_X",):\n        env[name] = "1"',
    "a loop over names put together": 'for name in ("K_X",) + ("K_X",):\n        env[name] = "1"',
    "a loop over a literal": 'for name in {"K_X": "1"}:\n        env[name] = "1"',
    "a loop over pairs": 'for name, value in (("K_X", "1"),):\n        env[name] = value',
    "a loop over zipped names": 'for name, value in zip(["K_X"], task):\n        env[name] = value',
    "a loop over numbered names": 'for number, name in enumerate(["K_X"]):\n        env[name] = "1"',
    "a loop over named pairs": 'two = [("K_X", "1")]\n    for name, value in two:\n        env[name] = value',
    "a name that a condition names": 'if name := "K_X":\n        env[name] = "1"',
    "a loop over a literal's items": 'for name, value in {"K_X": "1"}.items():\n        env[name] = value',
    "try": 'try:\n        env["K_X"] = "1"\n    except ValueError:\n        pass',
    "with": 'with task:\n        env["K_X"] = "1"',
    "match": 'match task:\n        case 1:\n            env["K_X"] = "1"',
    "a lambda": '(lambda: env.update(K_X="1"))()',
    "a local constant": 'name = "K_X"\n    env[name] = "1"',
    "a known f-string": 'kind = "X"\n    env[f"K_{kind}"] = "1"',
    "a concatenation": 'kind = "X"\n    env["K_" + kind] = "1"',
    "either of two": 'env["K_X" if task else "K_X"] = "1"',
    "one or the other": 'env["K_X" or "K_X"] = "1"',
    "a name that is named there": 'env[(name := "K_X")] = "1"',
    "a name that is made a string": 'env[str("K_X")] = "1"',
    "from the keys": 'env.update(dict.fromkeys(["K_X"], "1"))',
    "the process's own": 'os.environ["K_X"] = "1"',
    "the process's own, in bytes": 'os.environb[b"K_X"] = b"1"',
    "putenv": 'os.putenv("K_X", "1")',
    "a nested function": 'def put():\n        env["K_X"] = "1"\n    put()',
    "a nested function of a name": 'def put(name):\n        env[name] = "1"\n    put("K_X")',
    "a nested function that is handed on": 'def put():\n        env["K_X"] = "1"\n    task.later(put)',
}

BASES = {
    "a copy": "env = os.environ.copy()",
    "a dict": "env = dict(os.environ)",
    "an expansion": "env = {**os.environ}",
    "an annotated one": "env: dict[str, str] = {**os.environ}",
    "an empty one": "env = {}",
    "a filtered one": 'env = {k: v for k, v in os.environ.items() if not k.startswith("A")}',
    "the caller's": "env = dict(task.env)",
}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_every_way_of_writing_into_every_kind_of_environment_is_seen(
    write: str, base: str, put: Callable[..., set[str]]
) -> None:
    source = f"def spawn(task):\n    {base}\n    {write}\n    subprocess.Popen(['w'], env=env)\n"
    assert put(source) == {"K_X"}
    # A name that does not look like an environment's, where it is one.
    renamed = re.sub(r"(?<![.\w])env\b(?!=)", "bag", source)
    assert put(renamed) == {"K_X"}


COPIES = {
    "itself": "os.environ",
    "imported": "environ",
    "a copy": "os.environ.copy()",
    "a dict": "dict(os.environ)",
    "a deep copy": "copy.deepcopy(os.environ)",
    "an expansion": "{**os.environ}",
    "a filtered one": '{k: v for k, v in os.environ.items() if not k.startswith("A")}',
    "a merged one": 'os.environ | {"A": "1"}',
    "either": "os.environ.copy() if task else {}",
    "an alternative": "task or os.environ.copy()",
    "a copy of a copy": "dict(first)",
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_what_is_made_from_the_processs_environment_is_one_whatever_becomes_of_it(
    copied: str, put: Callable[..., set[str]]
) -> None:
    source = f"""
import copy
from os import environ

def spawn(task):
    first = os.environ.copy()
    bag = {copied}
    bag["K_X"] = "1"
"""
    assert put(source) == {"K_X"}


SPAWNS = {
    "a keyword": "subprocess.run(['w'], env=bag)",
    "a literal": "subprocess.run(['w'], env={**bag})",
    "keyword arguments": "options = dict(env=bag)\n    subprocess.run(['w'], **options)",
    "a dictionary of arguments": "options = {'env': bag}\n    subprocess.run(['w'], **options)",
    "an argument that is set": "options = {}\n    options['env'] = bag\n    subprocess.run(['w'], **options)",
    "exec": "os.execve('w', ['w'], bag)",
    "spawn": "os.spawnve(os.P_NOWAIT, 'w', ['w'], bag)",
    "posix_spawn": "os.posix_spawn('w', ['w'], bag)",
    "a partial": "import functools\n    functools.partial(subprocess.run, env=bag)()",
    "an unknown function": "task.launch(env=bag)",
    "a helper of this module": "launch(bag)",
}


@pytest.mark.parametrize("spawn", SPAWNS.values(), ids=SPAWNS)
def test_what_is_given_as_an_environment_is_one_whatever_it_is_called(spawn: str, put: Callable[..., set[str]]) -> None:
    source = f"""
def launch(bag):
    subprocess.Popen(["w"], env=bag)

def spawn(task):
    bag = {{"K_X": "1"}}
    {spawn}
"""
    if spawn.startswith("launch"):
        source = source.replace('bag = {"K_X": "1"}', 'bag = {**os.environ, "K_X": "1"}')
    assert put(source) == {"K_X"}


def test_an_environment_that_is_built_in_the_call_is_read(put: Callable[..., set[str]]) -> None:
    assert put('def spawn(task):\n    subprocess.run(["w"], env={**os.environ, "K_X": "1", **{"K_Y": "2"}})\n') == {
        "K_X",
        "K_Y",
    }


def test_a_dictionary_that_is_no_environment_is_not_taken_for_one(put: Callable[..., set[str]]) -> None:
    source = """
def spawn(task):
    headers = {"K_HEADER": "1"}
    headers["K_OTHER"] = "2"
    env = os.environ.get("K_READ", "").strip()
    if env:
        headers.update(K_MORE=env)
    task.send(headers)
    subprocess.run(["w"], env=dict(os.environ))
"""
    assert put(source) == set()


def test_what_is_read_or_taken_out_is_not_put_in(put: Callable[..., set[str]]) -> None:
    source = """
def spawn(task):
    env = dict(os.environ)
    env.pop("K_GONE", None)
    del env["K_DELETED"]
    value = env["K_READ"] or env.get("K_GOT")
    subprocess.run(["w", value], env=env)
"""
    assert put(source) == set()


@pytest.mark.parametrize("each", ["os.environ", "os.environ.keys()", "base", "sorted(base)"])
def test_what_the_environment_has_already_is_not_put_in_by_a_loop_over_it(
    each: str, put: Callable[..., set[str]]
) -> None:
    source = f"""
def spawn(task):
    base = dict(os.environ)
    bag = {{}}
    for name in {each}:
        bag[name] = base[name]
    subprocess.run(["w"], env=bag)
"""
    assert put(source) == set()


# --- names -----------------------------------------------------------------------------------------------------------

CONSTANTS = {
    "a module's constant": ('X = "K_X"', "env[X] = 1"),
    "an annotated constant": ('from typing import Final\nX: Final = "K_X"', "env[X] = 1"),
    "a constant of constants": ('P = "K_"\nX = P + "X"', "env[X] = 1"),
    "a formatted constant": ('P = "K_"\nX = f"{P}X"', "env[X] = 1"),
    "a class's attribute": ('class Names:\n    X = "K_X"', "env[Names.X] = 1"),
    "an enumeration's value": ('import enum\nclass Names(enum.Enum):\n    X = "K_X"', "env[Names.X.value] = 1"),
    "a conditional constant": ('if os.name == "nt":\n    X = "K_X"\nelse:\n    X = "K_X"', "env[X] = 1"),
    "a module's literal": ('EXTRA = {"K_X": "1"}', "env.update(EXTRA)"),
    "a module's literal, filled later": ('EXTRA = {}\nEXTRA["K_X"] = "1"', "env.update(EXTRA)"),
    "a module's names": ('NAMES = ("K_X",)', "for name in NAMES:\n        env[name] = 1"),
    "another module's names": ("from names import NAMES", "for name in NAMES:\n        env[name] = 1"),
    "another module's names, by its module": ("import names", "for name in names.NAMES:\n        env[name] = 1"),
    "another module's constant": ("from names import X", "env[X] = 1"),
    "another module's constant, by its module": ("import names", "env[names.X] = 1"),
    "another module's constant, imported inside": ("", "from names import X as Y\n    env[Y] = 1"),
    "another module's class": ("from names import Names", "env[Names.X] = 1"),
    "another module's literal": ("from names import EXTRA", "env.update(EXTRA)"),
}
NAMES = 'X = "K_X"\nNAMES = ["K_X"]\nEXTRA = {"K_X": "1"}\nclass Names:\n    X = "K_X"\n'


@pytest.mark.parametrize("above, write", CONSTANTS.values(), ids=CONSTANTS)
def test_a_name_that_is_a_constant_is_resolved(above: str, write: str, put: Callable[..., set[str]]) -> None:
    source = f"{above}\ndef spawn(task):\n    env = dict(os.environ)\n    {write}\n"
    assert put(source, names=NAMES) == {"K_X"}


UNREAD = {
    "an f-string": ('env[f"K_{task.kind}"] = 1', "f'K_{task.kind}'"),
    "a parameter": ("env[task] = 1", "task"),
    "an attribute": ("env[task.variable] = 1", "task.variable"),
    "a call": ("env.setdefault(task.name(), 1)", "task.name()"),
    "a name in a literal": ("env.update({task.name: 1})", "task.name"),
    "a comprehension": ("env.update({name: 1 for name in task})", "name"),
    "a loop": ("for name in task.names:\n        env[name] = 1", "name"),
    "a loop that may give a constant": ('for name in ("A", task):\n        env[name] = 1', "name"),
    "a constant or not": ('name = "A" if task else task.name\n    env[name] = 1', "name"),
    "a constant that is added to": ('name = "K_"\n    name += task\n    env[name] = 1', "name"),
    "a constant or what is matched": (
        'name = "A"\n    match task:\n        case [name]:\n            env[name] = 1',
        "name",
    ),
    "a constant or an exception": (
        'name = "A"\n    try:\n        pass\n    except KeyError as name:\n        env[name] = 1',
        "name",
    ),
    "a whole parameter": ("env.update(extra)", "what extra holds"),
    "an expanded parameter": ("env = {**env, **extra}", "what extra holds"),
    "a parameter merged": ("env |= extra", "what extra holds"),
    "an attribute merged": ("env.update(task.env)", "what task.env holds"),
    "keyword arguments merged": ("env.update(**extra)", "what extra holds"),
    "an unknown function's result": ("env.update(task.variables())", "what task.variables() returns"),
    "a loop over a parameter's items": (
        "for name, value in extra.items():\n        env[name] = value",
        "what extra holds",
    ),
    "a missing module's constant": ("from nowhere import NAME\n    env[NAME] = 1", "NAME"),
    "a missing module's function": ("from nowhere import fill\n    fill(env)", "fill() gets the environment"),
    "an unknown object's method": ("task.fill(env)", "task.fill() gets the environment"),
}


@pytest.mark.parametrize("write, what", UNREAD.values(), ids=UNREAD)
def test_what_cannot_be_read_is_said_with_its_line(write: str, what: str, put: Callable[..., set[str]]) -> None:
    source = f"def spawn(task, extra):\n    env = dict(os.environ)\n    {write}\n    subprocess.run(['w'], env=env)\n"
    (found,) = put(source)
    assert re.fullmatch(rf"line \d: {re.escape(what)}", found)


@pytest.mark.parametrize("name", ['f"OTHER_{task}"', '"OTHER_" + task', '"OTHER_%s" % task', '"OTHER_{}".format(task)'])
def test_an_unknown_name_counts_unless_its_beginning_rules_the_prefix_out(
    name: str, put: Callable[..., set[str]]
) -> None:
    source = f"def spawn(task):\n    env = dict(os.environ)\n    env[{name}] = 1\n"
    assert put(source) == set()
    assert put(source, prefix="OTHER_MORE") != set()
    assert put(source, prefix="OTH") != set()
    assert put(source, prefix="") != set()


def test_the_environment_that_the_caller_gives_to_start_from_is_the_callers(put: Callable[..., set[str]]) -> None:
    for base in ("env = base", "env = dict(base)", "env = base.copy()", "env = {**base}", "env = base or os.environ"):
        assert put(f"def spawn(task, base):\n    {base}\n    env['K_X'] = 1\n    subprocess.run(['w'], env=env)\n") == {
            "K_X"
        }


# --- helpers ---------------------------------------------------------------------------------------------------------

HELPERS = {
    "fills it": ('def fill(bag):\n    bag["K_X"] = "1"', "fill(env)"),
    "fills it by keyword": ('def fill(task, *, bag):\n    bag["K_X"] = "1"', "fill(task, bag=env)"),
    "is async": ('async def fill(bag):\n    bag["K_X"] = "1"', "await fill(env)"),
    "is called by another": ('def fill(bag):\n    more(bag)\ndef more(b):\n    b.update(K_X="1")', "fill(env)"),
    "gets the name": ('def fill(bag, name):\n    bag[name] = "1"', 'fill(env, "K_X")'),
    "has a default name": ('def fill(bag, name="K_X"):\n    bag[name] = "1"', "fill(env)"),
    "gets keywords": ("def fill(bag, **more):\n    bag.update(more)", 'fill(env, K_X="1")'),
    "returns it": ('def made():\n    return {**os.environ, "K_X": "1"}', "env = made()"),
    "returns a copy": ('def made(bag):\n    bag = dict(bag)\n    bag["K_X"] = "1"\n    return bag', "env = made(env)"),
    "is a context manager": (
        'import contextlib\n@contextlib.contextmanager\ndef made():\n    yield {**os.environ, "K_X": "1"}',
        "with made() as env:\n            pass",
    ),
    "returns what goes on top": ('def extra():\n    return {"K_X": "1"}', "env.update(extra())"),
    "returns a generator's": ('def pairs():\n    yield {"K_X": "1"}', "env.update(pairs())"),
    "is a method": ("", "self.fill(env)"),
    "is an inherited method": ("", "self.inherited(env)"),
    "is a static method": ("", "self.static(env)"),
    "is the parent's": ("", "super().inherited(env)"),
    "is the parent's, of a method that has its own": ("", "super().overridden(env)"),
    "keeps it in the object": ("", "self.bag = env\n        self.later()"),
    "is another module's": ("from names import fill", "fill(env)"),
    "is another module's, by its module": ("import names", "names.fill(env)"),
    "has another name": ('def fill(bag):\n    bag["K_X"] = "1"\nfilled = fill', "filled(env)"),
    "is a partial": ('import functools\ndef fill(bag):\n    bag["K_X"] = "1"', "functools.partial(fill)(env)"),
    "calls itself": ('def fill(bag):\n    bag["K_X"] = "1"\n    fill(bag)', "fill(env)"),
}


@pytest.mark.parametrize("above, call", HELPERS.values(), ids=HELPERS)
def test_a_helper_that_gets_or_returns_the_environment_is_followed(
    above: str, call: str, put: Callable[..., set[str]]
) -> None:
    source = f"""
{above}
class Base:
    def inherited(self, bag):
        bag["K_X"] = "1"
    def overridden(self, bag):
        bag["K_X"] = "1"
class Dispatcher(Base):
    def overridden(self, bag):
        pass
    def fill(self, bag):
        bag["K_X"] = "1"
    @staticmethod
    def static(bag):
        bag["K_X"] = "1"
    def later(self):
        self.bag["K_X"] = "1"
    async def spawn(self, task):
        env = dict(os.environ)
        {call}
        subprocess.run(["w"], env=env)
"""
    fill = 'def fill(bag):\n    bag["K_X"] = "1"\n'
    assert put(source, "Dispatcher.spawn", names=fill) == {"K_X"}


def test_helpers_that_do_not_get_the_environment_are_not_its_business(put: Callable[..., set[str]]) -> None:
    source = """
def git(task):
    subprocess.run(["git"], env={"K_GIT": "1"})

def spawn(task):
    git(task)
    subprocess.run(["w"], env=dict(os.environ))
"""
    assert put(source) == set()


def test_helpers_nested_deeper_than_can_be_followed_are_said(put: Callable[..., set[str]]) -> None:
    chain = "\n".join(f"def f{n}(bag):\n    f{n + 1}(bag)" for n in range(12))
    source = f"{chain}\ndef f12(bag):\n    bag['K_X'] = 1\ndef spawn(task):\n    env = dict(os.environ)\n    f0(env)\n"
    (found,) = put(source)
    assert "nested too deeply" in found


# --- finding the function --------------------------------------------------------------------------------------------

PLACES = {
    "a function": ("spawn", "def spawn(env):\n    env['K_X'] = 1"),
    "an async function": ("spawn", "async def spawn(env):\n    env['K_X'] = 1"),
    "a decorated one": ("spawn", "import functools\n@functools.cache\ndef spawn(env):\n    env['K_X'] = 1"),
    "a method": ("A.spawn", "class A:\n    def spawn(self, env):\n        env['K_X'] = 1"),
    "a class method": ("A.spawn", "class A:\n    @classmethod\n    def spawn(cls, env):\n        env['K_X'] = 1"),
    "an inherited method": (
        "B.spawn",
        "class A:\n    def spawn(self, env):\n        env['K_X'] = 1\nclass B(A):\n    pass",
    ),
    "a nested function": ("make.spawn", "def make():\n    def spawn(env):\n        env['K_X'] = 1"),
    "one with its qualified name": ("make.<locals>.spawn", "def make():\n    def spawn(env):\n        env['K_X'] = 1"),
    "a nested function of an outer environment": (
        "make.spawn",
        "def make():\n    bag = {'K_X': 1}\n    def spawn():\n        subprocess.run(['w'], env=bag)",
    ),
    "either branch": (
        "spawn",
        "if os.name == 'nt':\n    def spawn(env):\n        pass\nelse:\n    def spawn(env):\n        env['K_X'] = 1",
    ),
    "another name": ("spawn", "def _spawn(env):\n    env['K_X'] = 1\nspawn = _spawn"),
    "a partial": ("spawn", "import functools\ndef _spawn(env):\n    env['K_X'] = 1\nspawn = functools.partial(_spawn)"),
    "an import": ("spawn", "from names import spawn"),
    "an imported class's method": ("A.spawn", "from names import B as A"),
}


@pytest.mark.parametrize("target, source", PLACES.values(), ids=PLACES)
def test_the_function_is_found_where_it_is_defined(target: str, source: str, put: Callable[..., set[str]]) -> None:
    names = "def spawn(env):\n    env['K_X'] = 1\nclass B:\n    def spawn(self, env):\n        env['K_X'] = 1\n"
    assert put(source, target, names=names) == {"K_X"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that must not be run."""
    inner = tmp_path / "drift_outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "drift_outer" / "__init__.py").write_text("raise SystemExit('run')")
    (inner / "__init__.py").write_text("raise SystemExit('run')")
    (inner / "names.py").write_text('X = "K_X"\nraise SystemExit("run")')
    (inner / "spawner.py").write_text(
        "from .names import X\nfrom ..above import fill\nraise SystemExit('run')\n"
        "def spawn(task):\n    env = {}\n    env[X] = 1\n    fill(env)\n"
    )
    (tmp_path / "drift_outer" / "above.py").write_text('def fill(env):\n    env["K_Y"] = 1\nraise SystemExit("run")')
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    assert not {name for name in set(sys.modules) - before if name.startswith("drift_outer")}


def test_nothing_of_the_application_is_run_to_read_it(package: Path) -> None:
    found = check("drift_outer.inner.spawner:spawn", "K_", Config())
    assert [put.name for put in found.undeclared] == ["K_X", "K_Y"]


def test_nothing_is_run_where_import_hooks_wait_for_the_module(package: Path, install: Install) -> None:
    install(cron={"runners": ["drift_outer.inner.spawner:spawn"]})
    assert check("drift_outer.inner.spawner:spawn", "K_", Config())


def test_packages_without_an_init_file_are_found(tmp_path: Path) -> None:
    directory = tmp_path / "drift_bare" / "below" / "further"
    directory.mkdir(parents=True)
    (directory / "spawner.py").write_text("def spawn(env):\n    env['K_X'] = 1\n")
    assert check("drift_bare.below.further.spawner:spawn", "K_", Config(), [str(tmp_path)])


def test_a_module_that_is_loaded_is_read_from_its_own_file() -> None:
    found = check(f"{__name__}:spawn_of_this_module", "K_", Config(), [])
    assert [put.name for put in found.undeclared] == ["K_HERE"]


def spawn_of_this_module(env: dict[str, str]) -> None:
    env["K_HERE"] = "1"


WRONG = {
    "no colon": ("spawn", "does not name a function"),
    "no function": ("drift_one:", "does not name a function"),
    "no module": (":spawn", "does not name a function"),
    "not a name": ("drift_one:spawn()", "does not name a function"),
    "a path": ("./drift_one:spawn", "is not a module's name"),
    "a missing module": ("drift_none:spawn", "there is no module drift_none"),
    "a missing submodule": ("drift_one.inner:spawn", "there is no module drift_one.inner: drift_one is not a package"),
    "a missing function": ("drift_one:spawn_it", "there is no function spawn_it in the module drift_one"),
    "a missing method": ("drift_one:Class.spawn", "there is no function Class.spawn in the module drift_one"),
    "a class": ("drift_one:Class", "there is no function Class in the module drift_one"),
    "a variable": ("drift_one:VALUE", "there is no function VALUE in the module drift_one"),
    "a circle": ("drift_one:round", "there is no function round in the module drift_one"),
    "an import from nowhere": ("drift_one:gone", "there is no module drift_nowhere"),
    "a syntax error": ("drift_broken:spawn", "the module drift_broken cannot be read: invalid syntax, line 1"),
    "bytes that are no text": ("drift_bytes:spawn", "the module drift_bytes cannot be read: "),
    "a built-in module": ("sys:exit", "the module sys has no Python source"),
}


@pytest.mark.parametrize("target, what", WRONG.values(), ids=WRONG)
def test_a_function_that_cannot_be_found_or_read_is_one_line_that_says_why(
    target: str, what: str, tmp_path: Path
) -> None:
    (tmp_path / "drift_one.py").write_text(
        "def spawn(env): pass\nclass Class: pass\nVALUE = 1\nround = around\naround = round\n"
        "from drift_nowhere import gone\n"
    )
    (tmp_path / "drift_broken.py").write_text("spawn = = 1\n")
    (tmp_path / "drift_bytes.py").write_bytes(b"# \xff\xfe\ndef spawn(env): pass\n")
    with pytest.raises(SourceError) as raised:
        check(target, "", Config(), [str(tmp_path)])
    assert what in str(raised.value)
    assert "\n" not in str(raised.value)


# --- what is declared ------------------------------------------------------------------------------------------------


def test_declared_are_the_claims_the_keys_the_scoped_and_the_behaviour_only_variables() -> None:
    config = configured(
        claim={"env": {"task_id": "A", "token": "B"}, "env_prefix": "K_", "behaviour_only": ["C"]},
        keys={"session": {"sources": [{"env": "D"}, {"contextvar": "m:v"}]}, "tenant": {"sources": [{"env": "E"}]}},
        scoped_env={"names": ["F"]},
    )
    assert declared(config) == {"A", "B", "C", "D", "E", "F"}


def drift_of(tmp_path: Path, body: str, config: Config, prefix: str = "K_") -> Drift:
    (tmp_path / "drift_told.py").write_text(f"def spawn(env):\n    {body}\n")
    return check("drift_told:spawn", prefix, config, [str(tmp_path)])


def test_a_variable_that_only_the_prefix_covers_is_not_declared(tmp_path: Path) -> None:
    config = configured(claim={"env": {"task_id": "K_TASK"}, "env_prefix": "K_"})
    assert [put.name for put in drift_of(tmp_path, "env['K_NEW'] = 1", config).undeclared] == ["K_NEW"]


def test_everything_declared_is_one_line_that_names_it(tmp_path: Path) -> None:
    found = drift_of(tmp_path, "env['K_TASK'] = env['K_MODE'] = env['OTHER'] = 1", configured())
    assert not found
    assert str(found) == (
        "drift_told:spawn: what it puts into a child's environment named K_* is declared: K_MODE, K_TASK"
    )


def test_no_variable_at_all_is_said_to_be_none(tmp_path: Path) -> None:
    found = drift_of(tmp_path, "env['OTHER'] = 1", configured())
    assert not found
    assert str(found) == "drift_told:spawn puts no variable named K_* into a child's environment"


def test_what_is_not_declared_is_named_with_its_line_and_the_nearest_that_is(tmp_path: Path) -> None:
    found = drift_of(tmp_path, "env['K_TASKS'] = 1\n    env['K_Z'] = 2\n    env[f'K_{env}'] = 3", configured())
    assert str(found) == (
        "drift_told:spawn puts 3 variables named K_* that nobody declared:\n"
        "  K_TASKS at line 2 (nearest declared: K_TASK)\n"
        "  K_Z at line 3\n"
        "  cannot be read at line 4: f'K_{env}'"
    )


def test_variables_are_not_near_for_what_all_of_them_have_in_common(tmp_path: Path) -> None:
    config = configured(claim={"env": {"task_id": "LONG_COMMON_PREFIX_TASK"}})
    for prefix, nearest in (("LONG_COMMON_PREFIX_", ""), ("", " (nearest declared: LONG_COMMON_PREFIX_TASK)")):
        found = drift_of(tmp_path, "env['LONG_COMMON_PREFIX_Z'] = 1", config, prefix=prefix)
        assert str(found).splitlines()[1] == f"  LONG_COMMON_PREFIX_Z at line 2{nearest}"
    found = drift_of(tmp_path, "env['LONG_COMMON_PREFIX_TASKS'] = 1", config, prefix="LONG_COMMON_PREFIX_")
    assert str(found).endswith(nearest)


def test_without_a_prefix_every_variable_is_considered(tmp_path: Path) -> None:
    found = drift_of(tmp_path, "env['K_TASK'] = 1\n    env['OTHER'] = 1", configured(), prefix="")
    assert [put.name for put in found.undeclared] == ["OTHER"]


# --- in a test of the application ------------------------------------------------------------------------------------


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "drift_asserted.py").write_text("def spawn(env):\n    env['K_TASK'] = env['K_NEW'] = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "drift_asserted:spawn"


def test_assert_env_covered_raises_what_drift_says(told: str) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_env_covered(told, prefix="K_", config=CLAIM)
    assert str(raised.value) == str(check(told, "K_", configured()))


def test_assert_env_covered_is_silent_where_everything_is_declared(told: str) -> None:
    assert_env_covered(told, prefix="K_TASK", config=configured())


def test_assert_env_covered_raises_where_there_is_no_such_function(told: str) -> None:
    with pytest.raises(AssertionError, match="there is no function gone in the module drift_asserted"):
        assert_env_covered("drift_asserted:gone", config={})


def test_assert_env_covered_goes_by_the_settings_in_force(told: str, install: Install) -> None:
    install(scoped_env={"names": ["K_NEW"]}, **CLAIM)
    assert_env_covered(told, prefix="K_")
    otelctx.uninstall()
    with pytest.raises(AssertionError):
        assert_env_covered(told, prefix="K_")


def test_assert_env_covered_reads_the_file_that_it_is_given(told: str, tmp_path: Path) -> None:
    (tmp_path / "otelctx.toml").write_text('claim.env.task_id = "K_TASK"\nscoped_env.names = ["K_NEW"]\n')
    assert_env_covered(told, prefix="K_", config=tmp_path / "otelctx.toml")


def test_assert_env_covered_refuses_a_configuration_that_is_wrong(told: str) -> None:
    with pytest.raises(ConfigError, match="unknown name"):
        assert_env_covered(told, config={"claims": {}})


# --- anything that can be written ------------------------------------------------------------------------------------

_names = st.sampled_from(["K_A", "K_B", "K_C"])
_texts = st.recursive(
    _names.map(lambda name: f'{{"{name}": "1"}}'),
    lambda inner: st.one_of(
        inner.map(lambda text: f"dict({text})"),
        inner.map(lambda text: f"{{**{text}}}"),
        inner.map(lambda text: f"({text}).copy()"),
        inner.map(lambda text: f"same({text})"),
        inner.map(lambda text: f"({text} if task else {text})"),
        st.tuples(inner, inner).map(lambda two: f"({two[0]} | {two[1]})"),
        st.tuples(inner, inner).map(lambda two: f"{{**{two[0]}, **{two[1]}}}"),
        st.tuples(inner, inner).map(lambda two: f"({{}} or {two[0]}) | {two[1]}"),
        st.tuples(inner, _names).map(lambda two: f'dict({two[0]}, {two[1]}="1")'),
    ),
    max_leaves=6,
)
_lines = st.lists(
    st.one_of(
        _texts.map(lambda text: f"env.update({text})"),
        _texts.map(lambda text: f"env |= {text}"),
        _texts.map(lambda text: f"env = {{**env, **{text}}}"),
        _texts.map(lambda text: f"extra = {text}; env.update(extra)"),
        _texts.map(lambda text: f"fill(env, {text})"),
        _names.map(lambda name: f'env["{name}"] = "1"'),
        _names.map(lambda name: f'env.setdefault("{name}", "1")'),
    ),
    min_size=1,
    max_size=5,
)

PROGRAM = """
def same(mapping):
    return mapping

def fill(bag, more):
    for name, value in more.items():
        bag[name] = value

def spawn(task):
    env = {{}}
    {body}
    run(env=env)
"""


@settings(deadline=None, max_examples=60)
@given(lines=_lines)
def test_whatever_a_program_puts_there_when_it_runs_is_seen_and_nothing_else(
    lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = PROGRAM.format(body="\n    ".join(lines))
    ran: list[dict[str, str]] = []
    scope: dict[str, object] = {"run": lambda env: ran.append(env)}
    exec(source, scope)
    spawn = scope["spawn"]
    assert callable(spawn)
    spawn(True)
    directory = tmp_path_factory.mktemp("program")
    (directory / "drift_program.py").write_text(source)
    found = check("drift_program:spawn", "", Config(), [os.fspath(directory)])
    assert {put.name or put.unread for put in found.undeclared} == set(ran[0])
