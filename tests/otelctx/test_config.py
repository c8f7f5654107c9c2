"""What `otelctx.config.load` makes of right and wrong settings: the value that counts, and the line that says why."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import otelctx.config
from otelctx.config import Config, ConfigError, KeyConfig, SourceConfig, all_options, load

README = """
mode = "repair"
presets = []
spans = "auto"
[keys.session]
attribute = "session.id"
baggage = "otelctx.session"
sources = [
  { contextvar = "tools.approval:_approval_session_key", empty = [""] },
  { contextvar = "gateway.session_context:_SESSION_KEY", unset = "gateway.session_context:_UNSET", empty = [""] },
  { getter = "tools.approval:get_current_session_key", kwargs = { default = "" }, empty = [""] },
  { env = "HERMES_SESSION_KEY" },
]
policy = { cron = "mint" }
[claim]
env = { task_id = "HERMES_KANBAN_TASK", attempt = "HERMES_KANBAN_RUN_ID", token = "HERMES_KANBAN_CLAIM_LOCK" }
env_prefix = "HERMES_KANBAN_"
behaviour_only = ["HERMES_KANBAN_BRANCH", "HERMES_KANBAN_GOAL_MODE", "HERMES_KANBAN_GOAL_MAX_TURNS"]
predicate = "agent.delegation_context:is_dispatcher_owned_worker_context"
[cron]
runners = ["cron.scheduler:run_job"]
[dispatch]
spawners = ["hermes_cli.kanban_db:_default_spawn"]
[threads]
service = ["mem-sync*", "cron-scheduler"]
[queues]
adopt = ["tools.process_registry:completion_queue"]
[scoped_env]
mode = "off"
hide_claim = "auto"
names = ["HERMES_SESSION_KEY"]
[subprocess]
carrier = false
[baggage]
outbound = "strip"
inbound = "drop"
[telemetry]
values = "plain"
[alerts]
per_minute = 10
"""
"""The configuration that the documentation shows: everything that can be set, in the shape it is written in."""


def config_of(source: Any = None, /, environ: dict[str, str] | None = None, **overrides: object) -> Config:
    config, problems = load(source, environ=environ or {}, **overrides)
    assert problems == ()
    return config


def problems_of(source: Any = None, /, environ: dict[str, str] | None = None, **overrides: object) -> tuple[str, ...]:
    return load(source, environ=environ or {}, **overrides)[1]


def value_at(config: Config, path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    return value


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "otelctx.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


# What counts.


def test_nothing_given_is_the_defaults() -> None:
    assert config_of() == Config()
    assert config_of().mode == "repair"
    assert config_of().baggage.outbound == "strip"
    assert config_of().baggage.inbound == "drop"
    assert config_of().scoped_env.hide_claim == "auto"
    assert config_of().alerts.per_minute == 10
    assert dict(config_of().keys) == {"session": KeyConfig("session", "session.id", "otelctx.session", (), {})}


def test_the_documented_file_is_read_as_it_stands(write: Any) -> None:
    config = config_of(write(README))
    session = config.keys["session"]
    assert [(source.kind, source.path) for source in session.sources] == [
        ("contextvar", "tools.approval:_approval_session_key"),
        ("contextvar", "gateway.session_context:_SESSION_KEY"),
        ("getter", "tools.approval:get_current_session_key"),
        ("env", "HERMES_SESSION_KEY"),
    ]
    assert session.sources[1].unset == "gateway.session_context:_UNSET"
    assert session.sources[2].kwargs == {"default": ""}
    assert session.sources[2].empty == ("",)
    assert session.policy == {"cron": "mint"}
    assert config.claim.env["attempt"] == "HERMES_KANBAN_RUN_ID"
    assert config.claim.env_prefix == "HERMES_KANBAN_"
    assert config.claim.predicate == "agent.delegation_context:is_dispatcher_owned_worker_context"
    assert config.cron.runners == ("cron.scheduler:run_job",)
    assert config.threads.service == ("mem-sync*", "cron-scheduler")
    assert config.queues.adopt == ("tools.process_registry:completion_queue",)
    assert config.scoped_env.names == ("HERMES_SESSION_KEY",)


def test_every_documented_setting_exists_and_no_other(write: Any) -> None:
    import tomllib

    documented = {
        f"{table}.{name}" if isinstance(value, dict) else table
        for table, value in tomllib.loads(README).items()
        if table != "keys"
        for name in (value if isinstance(value, dict) else [""])
    }
    assert {option.name for option in all_options() if option.path[0] != "keys"} == documented
    keys = {option.path[-1] for option in all_options() if option.path[0] == "keys"}
    assert keys == {"attribute", "baggage", "sources", "policy"}


def test_each_layer_beats_the_one_before(write: Any) -> None:
    path = write('mode = "observe"')
    assert config_of(path).mode == "observe"
    assert config_of(path, {"OTELCTX_MODE": "enforce"}).mode == "enforce"
    assert config_of(path, {"OTELCTX_MODE": "enforce"}, mode="repair").mode == "repair"


def test_a_preset_lies_below_the_file_that_names_it() -> None:
    file = {"presets": ["hermes"], "claim": {"env_prefix": "MINE_"}}
    config = config_of(file)
    assert config.presets == ("hermes",)
    assert config.claim.env_prefix == "MINE_"
    assert config.claim.env["task_id"] == "HERMES_KANBAN_TASK"


def test_the_strongest_list_of_presets_counts_and_an_empty_one_turns_them_off() -> None:
    assert config_of({"presets": ["hermes"]}, {"OTELCTX_PRESETS": "[]"}).keys["session"].sources == ()
    assert len(config_of({}, {"OTELCTX_PRESETS": "hermes"}).keys["session"].sources) == 4
    assert len(config_of({}, presets=["hermes"]).keys["session"].sources) == 4


def test_tables_merge_name_by_name_and_lists_replace() -> None:
    file = {"keys": {"session": {"policy": {"cron": "inherit"}, "sources": [{"env": "A"}, {"env": "B"}]}}}
    config = config_of(file, keys={"session": {"policy": {"task": "shed"}, "sources": [{"env": "C"}]}})
    assert config.keys["session"].policy == {"cron": "inherit", "task": "shed"}
    assert config.keys["session"].sources == (SourceConfig("env", "C"),)


def test_a_declared_key_is_named_after_itself_and_comes_after_session() -> None:
    config = config_of({"keys": {"tenant": {}, "session": {}, "user.id-1": {"attribute": "user.id"}}})
    assert list(config.keys) == ["session", "tenant", "user.id-1"]
    assert config.keys["tenant"] == KeyConfig("tenant", "otelctx.tenant", "otelctx.tenant", (), {})
    assert config.keys["user.id-1"].attribute == "user.id"
    assert config.keys["user.id-1"].baggage == "otelctx.user.id-1"


def test_the_file_is_the_one_that_the_environment_names_unless_one_is_given(write: Any) -> None:
    path = write('mode = "observe"')
    assert config_of(None, {"OTELCTX_CONFIG": str(path)}).mode == "observe"
    assert config_of({}, {"OTELCTX_CONFIG": str(path)}).mode == "repair"
    assert config_of(str(path)).mode == "observe"


def test_a_byte_order_mark_does_not_matter(write: Any) -> None:
    assert config_of(write(b'\xef\xbb\xbfmode = "observe"')).mode == "observe"


@pytest.mark.parametrize(
    "name, written, path, value",
    [
        ("MODE", "observe", "mode", "observe"),
        ("MODE", " Observe ", "mode", "observe"),
        ("BAGGAGE__OUTBOUND", "plain", "baggage.outbound", "plain"),
        ("ALERTS__PER_MINUTE", "7", "alerts.per_minute", 7),
        ("SUBPROCESS__CARRIER", "true", "subprocess.carrier", True),
        ("SUBPROCESS__CARRIER", "On", "subprocess.carrier", True),
        ("SUBPROCESS__CARRIER", "0", "subprocess.carrier", False),
        ("SCOPED_ENV__HIDE_CLAIM", "AUTO", "scoped_env.hide_claim", "auto"),
        ("SCOPED_ENV__HIDE_CLAIM", "no", "scoped_env.hide_claim", False),
        ("THREADS__SERVICE", "mem-*, cron", "threads.service", ("mem-*", "cron")),
        ("THREADS__SERVICE", "['a,b', \"c\"]", "threads.service", ("a,b", "c")),
        ("CLAIM__ENV__TASK_ID", "TASK", "claim.env", {"task_id": "TASK"}),
        ("CLAIM__ENV", '{ task_id = "TASK" }', "claim.env", {"task_id": "TASK"}),
        ("CLAIM__ENV", '{"task_id": "TASK"}', "claim.env", {"task_id": "TASK"}),
        ("KEYS__TENANT__ATTRIBUTE", "tenant.id", "keys.tenant.attribute", "tenant.id"),
        ("KEYS__SESSION__POLICY__CRON", "inherit", "keys.session.policy", {"cron": "inherit"}),
        ("KEYS__SESSION__SOURCES", '[{ env = "KEY" }]', "keys.session.sources", (SourceConfig("env", "KEY"),)),
        ("KEYS__SESSION__SOURCES", '[{"env": "KEY"}]', "keys.session.sources", (SourceConfig("env", "KEY"),)),
        ("MODE", "", "mode", "repair"),
        ("THREADS__SERVICE", " ", "threads.service", ()),
    ],
)
def test_the_environment_writes_every_kind_of_value(name: str, written: str, path: str, value: object) -> None:
    assert value_at(config_of(None, {f"OTELCTX_{name}": written}), path) == value


def test_the_variable_of_a_part_beats_that_of_its_table() -> None:
    environ = {"OTELCTX_BAGGAGE__OUTBOUND": "hash", "OTELCTX_BAGGAGE": '{ outbound = "plain", inbound = "trust" }'}
    config = config_of(None, environ)
    assert (config.baggage.outbound, config.baggage.inbound) == ("hash", "trust")


@pytest.mark.parametrize("name", otelctx.config.PLAIN_VARIABLES)
def test_variables_that_are_no_settings_are_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "anything").write_text("anything that is no secret")
    assert config_of({}, {name: str(tmp_path / "anything")}) == Config()  # which is long enough for a secret, too


def test_variables_of_others_are_left_alone() -> None:
    assert config_of(None, {"otelctx_mode": "x", "OTEL_MODE": "x", "XOTELCTX_MODE": "x"}) == Config()


def test_an_empty_string_takes_a_preset_s_name_away() -> None:
    assert config_of({"presets": ["hermes"], "claim": {"env_prefix": ""}}).claim.env_prefix is None


def test_a_configuration_cannot_be_changed() -> None:
    config = config_of(
        {"keys": {"a": {"sources": [{"getter": "m:f", "kwargs": {"x": 1}}], "policy": {"cron": "shed"}}}}
    )
    with pytest.raises(FrozenInstanceError):
        config.mode = "observe"  # type: ignore[misc]
    for mapping in (config.keys, config.keys["a"].policy, config.keys["a"].sources[0].kwargs, config.claim.env):
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]


def test_what_was_given_can_change_afterwards_without_changing_the_configuration() -> None:
    arguments = {"default": ""}
    config = config_of({"keys": {"session": {"sources": [{"getter": "m:f", "kwargs": arguments}]}}})
    arguments["default"] = "somebody"
    assert config.keys["session"].sources[0].kwargs == {"default": ""}


# What is wrong: one line, with its place and the nearest right name; the rest counts.


@pytest.mark.parametrize(
    "written, problem",
    [
        ('mode = "obsreve"', "mode: must be observe | repair | enforce, not 'obsreve'; did you mean 'observe'?"),
        ('mode = "Observe"', "mode: must be observe | repair | enforce, not 'Observe'; did you mean 'observe'?"),
        ("mode = 3", "mode: must be observe | repair | enforce, not 3"),
        ('mood = "observe"', "mood: unknown name; did you mean mode?"),
        ("[bagage]", "bagage: unknown name; did you mean baggage?"),
        ('[baggage]\noutbond = "sign"', "baggage.outbond: unknown name; did you mean baggage.outbound?"),
        ('outbound = "sign"', "outbound: unknown name; did you mean baggage.outbound?"),
        ("[zzzzzz]", "zzzzzz: unknown name"),
        ("baggage = 5", "baggage: must be a table, not 5"),
        ("keys = []", "keys: must be a table, not a list"),
        ("[keys]\ntenant = true", "keys.tenant: must be a table, not true"),
        ("[alerts]\nper_minute = true", "alerts.per_minute: must be a whole number above 0, not true"),
        ("[alerts]\nper_minute = 0", "alerts.per_minute: must be a whole number above 0, not 0"),
        ("[alerts]\nper_minute = -1", "alerts.per_minute: must be a whole number above 0, not -1"),
        ("[alerts]\nper_minute = 1.5", "alerts.per_minute: must be a whole number above 0, not 1.5"),
        ('[alerts]\nper_minute = "5"', "alerts.per_minute: must be a whole number above 0, not '5'"),
        ('[subprocess]\ncarrier = "yes"', "subprocess.carrier: must be true | false, not 'yes'"),
        ("[subprocess]\ncarrier = 1", "subprocess.carrier: must be true | false, not 1"),
        ('[scoped_env]\nhide_claim = "no"', "scoped_env.hide_claim: must be auto | true | false, not 'no'"),
        ('presets = "hermes"', "presets: must be a list, not 'hermes'; did you mean ['hermes']?"),
        ('presets = ["hermse"]', "presets[0]: must be a preset (hermes), not 'hermse'; did you mean 'hermes'?"),
        ('presets = ["../presets/hermes"]', "presets[0]: must be a preset (hermes), not '../presets/hermes'"),
        ('[cron]\nrunners = ["a.b"]', "cron.runners[0]: must be 'module:attribute', not 'a.b'; did you mean 'a:b'?"),
        (
            '[cron]\nrunners = ["a:b:c"]',
            "cron.runners[0]: must be 'module:attribute', not 'a:b:c'; did you mean 'a.b:c'?",
        ),
        ('[cron]\nrunners = ["-"]', "cron.runners[0]: must be 'module:attribute', not '-'"),
        ('[queues]\nadopt = ["a:b", 1]', "queues.adopt[1]: must be 'module:attribute', not 1"),
        ('[threads]\nservice = [" "]', "threads.service[0]: must be a string, not ' '"),
        ('[scoped_env]\nnames = ["$X"]', "scoped_env.names[0]: must be an environment variable's name, not '$X'"),
        (
            '[claim.env]\ntask = "T"',
            "claim.env.task: must be task_id | holder | attempt | token, not 'task'; did you mean 'task_id'?",
        ),
        ('[claim]\npredicate = "x"', "claim.predicate: must be 'module:attribute', not 'x'"),
        (
            '[keys.session.policy]\ncron = "mnt"',
            "keys.session.policy.cron: must be inherit | shed | mint, not 'mnt'; did you mean 'mint'?",
        ),
        ('[keys.session]\natribute = "x"', "keys.session.atribute: unknown name; did you mean keys.session.attribute?"),
        ("[keys.session]\nsources = [5]", "keys.session.sources[0]: must be a table such as { env = 'NAME' }, not 5"),
    ],
)
def test_each_wrong_value_is_one_line_that_says_where_what_and_what_was_meant(
    written: str, problem: str, write: Any
) -> None:
    path = write(written)
    assert problems_of(path) == (f"{path}: {problem}",)


def test_an_unknown_hop_kind_is_named_with_the_nearest_one() -> None:
    (problem,) = problems_of({"keys": {"session": {"policy": {"crom": "mint"}}}})
    assert problem.startswith("config: keys.session.policy.crom: must be thread | executor | ")
    assert problem.endswith("not 'crom'; did you mean 'cron'?")


@pytest.mark.parametrize(
    "source, problem",
    [
        ({}, ": must have exactly one of contextvar, getter, env, not none"),
        ({"empty": [""]}, ": must have exactly one of contextvar, getter, env, not none"),
        ({"env": "A", "getter": "a:b"}, ": must have exactly one of contextvar, getter, env, not getter and env"),
        ({"contextvr": "a:b"}, ".contextvr: unknown name; did you mean keys.session.sources[1].contextvar?"),
        ({"env": "A", "emtpy": [""]}, ".emtpy: unknown name; did you mean keys.session.sources[1].empty?"),
        ({"env": "A", "unset": "a:b"}, ".unset: is for a contextvar, not for env"),
        ({"getter": "a:b", "unset": "a:b"}, ".unset: is for a contextvar, not for getter"),
        ({"contextvar": "a:b", "kwargs": {}}, ".kwargs: is for a getter, not for contextvar"),
        ({"getter": "a:b", "kwargs": []}, ".kwargs: must be a table of keyword arguments, not a list"),
        ({"getter": "a:b", "kwargs": {"a b": 1}}, ".kwargs: must be a table of keyword arguments, not a table"),
        ({"getter": "a:b", "empty": ""}, ".empty: must be a list, not ''; did you mean ['']?"),
        ({"getter": "a:b", "empty": [[]]}, ".empty[0]: must be a plain value, not a list"),
        ({"contextvar": "a.b.c"}, ".contextvar: must be 'module:attribute', not 'a.b.c'; did you mean 'a.b:c'?"),
        ({"contextvar": 5}, ".contextvar: must be 'module:attribute', not 5"),
        ({"contextvar": "a:b", "unset": "c"}, ".unset: must be 'module:attribute', not 'c'"),
        ({"env": "A=B"}, ".env: must be an environment variable's name, not 'A=B'"),
        ({"env": ""}, ".env: must be an environment variable's name, not ''"),
    ],
)
def test_a_source_that_is_wrong_in_part_is_left_out_whole_and_its_neighbours_stay(
    source: dict[str, object], problem: str
) -> None:
    sources = [{"env": "FIRST"}, source, {"env": "LAST"}]
    config, problems = load({"keys": {"session": {"sources": sources}}}, environ={})
    assert problems == (f"config: keys.session.sources[1]{problem}",)
    assert [kept.path for kept in config.keys["session"].sources] == ["FIRST", "LAST"]


def test_a_list_without_a_usable_item_leaves_the_layer_below() -> None:
    config, problems = load({"presets": ["hermes"]}, environ={}, keys={"session": {"sources": [{"env": ""}]}})
    assert len(problems) == 1
    assert len(config.keys["session"].sources) == 4


def test_a_wrong_value_leaves_the_layer_below_and_the_rest_of_its_own() -> None:
    file = {"mode": "observe", "alerts": {"per_minute": 3}}
    config, problems = load(file, environ={"OTELCTX_MODE": "x", "OTELCTX_SPANS": "never"}, alerts={"per_minute": False})
    assert (config.mode, config.spans, config.alerts.per_minute) == ("observe", "never", 3)
    assert len(problems) == 2


@pytest.mark.parametrize(
    "name, written, problem",
    [
        ("MODE", "obsreve", "OTELCTX_MODE: must be observe | repair | enforce, not 'obsreve'; did you mean 'observe'?"),
        ("MOED", "observe", "OTELCTX_MOED: unknown name; did you mean OTELCTX_MODE?"),
        (
            "BAGGAGE_OUTBOUND",
            "plain",
            "OTELCTX_BAGGAGE_OUTBOUND: unknown name; did you mean OTELCTX_BAGGAGE__OUTBOUND?",
        ),
        (
            "BAGAGE__OUTBOUND",
            "plain",
            "OTELCTX_BAGAGE__OUTBOUND: unknown name; did you mean OTELCTX_BAGGAGE__OUTBOUND?",
        ),
        (
            "BAGGAGE__OUTBOND",
            "plain",
            "OTELCTX_BAGGAGE__OUTBOND: unknown name; did you mean OTELCTX_BAGGAGE__OUTBOUND?",
        ),
        ("SECRTE", "s3cret", "OTELCTX_SECRTE: unknown name; did you mean OTELCTX_SECRET?"),
        ("ENABLE", "1", "OTELCTX_ENABLE: unknown name; did you mean OTELCTX_ENABLED?"),
        ("", "1", "OTELCTX_: unknown name"),
        ("MODE__X", "1", "OTELCTX_MODE__X: must be observe | repair | enforce, not a table"),
        ("BAGGAGE", "plain", "OTELCTX_BAGGAGE: must be a table, not 'plain'"),
        ("ALERTS__PER_MINUTE", "many", "OTELCTX_ALERTS__PER_MINUTE: must be a whole number above 0, not 'many'"),
        ("ALERTS__PER_MINUTE", "1" * 5000, None),
        ("SUBPROCESS__CARRIER", "maybe", "OTELCTX_SUBPROCESS__CARRIER: must be true | false, not 'maybe'"),
        ("THREADS__SERVICE", "[a", "OTELCTX_THREADS__SERVICE: must be a list, not '[a'"),
        ("THREADS__SERVICE", "['a']\nb = 1", "OTELCTX_THREADS__SERVICE: must be a list, not \"['a']\\nb = 1\""),
        ("CRON__RUNNERS", "a:b, c", "OTELCTX_CRON__RUNNERS[1]: must be 'module:attribute', not 'c'"),
        (
            "KEYS__SESSION__SOURCES",
            "[{evn = 'A'}]",
            "OTELCTX_KEYS__SESSION__SOURCES[0].evn: unknown name; did you mean keys.session.sources[0].env?",
        ),
        ("BAGGAGE", "{outbond = 'plain'}", "OTELCTX_BAGGAGE.outbond: unknown name; did you mean baggage.outbound?"),
        (
            "KEYS__TENANT__ATRIBUTE",
            "a",
            "OTELCTX_KEYS__TENANT__ATRIBUTE: unknown name; did you mean OTELCTX_KEYS__TENANT__ATTRIBUTE?",
        ),
    ],
)
def test_a_wrong_variable_is_one_line_with_its_own_name(name: str, written: str, problem: str | None) -> None:
    (found,) = problems_of(None, {f"OTELCTX_{name}": written})
    if problem is not None:
        assert found == problem
    assert len(found) < 200


def test_the_value_of_an_unknown_variable_is_not_repeated_since_it_may_be_a_secret() -> None:
    assert "s3cret" not in " ".join(problems_of(None, {"OTELCTX_SECRTE": "s3cret"}))


def test_a_wrong_argument_is_named_as_one() -> None:
    assert problems_of({}, spans="neve") == (
        "argument: spans: must be auto | always | never, not 'neve'; did you mean 'never'?",
    )
    assert problems_of({}, alerts={"per_minute": -(10**5000)}) == (
        "argument: alerts.per_minute: must be a whole number above 0, not a value of type int",
    )
    assert problems_of({}, keys={"tenant": {1: 2}}) == ("argument: keys.tenant: names must be strings, not 1",)


@pytest.mark.parametrize(
    "name, near",
    [
        ("Tenant", "tenant"),
        ("my tenant", "my_tenant"),
        ("", ""),
        ("tenänt", ""),
        ("claim", ""),
        ("key", ""),
        ("hop.x", ""),
    ],
)
def test_a_key_s_name_is_plain_and_not_one_of_otelctx_s_own(name: str, near: str) -> None:
    config, problems = load({"keys": {name: {}}}, environ={})
    assert list(config.keys) == ["session"]
    (problem,) = problems
    assert "must be a key's name (a-z, 0-9, _ . -)" in problem
    assert problem.endswith(f"did you mean '{near}'?") == bool(near)


@pytest.mark.parametrize("attribute", ["", " ", "a b", "a\nb", "otel.x", "otelctx.key", "otelctx.mismatch.reason", 5])
def test_an_attribute_is_a_name_that_nobody_else_has_reserved(attribute: object) -> None:
    config, problems = load({"keys": {"session": {"attribute": attribute}}}, environ={})
    assert len(problems) == 1
    assert config.keys["session"].attribute == "session.id"


@pytest.mark.parametrize("entry", ["", "a b", "a,b", "a=b", "a;b", "a\nb", "ä", '"', "otelctx.claim", 5])
def test_a_baggage_entry_is_a_w3c_token_and_never_the_claim_s(entry: object) -> None:
    config, problems = load({"keys": {"session": {"baggage": entry}}}, environ={})
    assert len(problems) == 1
    assert config.keys["session"].baggage == "otelctx.session"


def test_two_keys_never_share_a_name_and_the_later_yields_to_its_layer_below() -> None:
    file = {"keys": {"a": {"attribute": "a.id"}, "b": {"attribute": "b.id"}}}
    config, problems = load(
        file, environ={"OTELCTX_KEYS__B__ATTRIBUTE": "a.id", "OTELCTX_KEYS__A__BAGGAGE": "otelctx.session"}
    )
    assert problems == (
        "OTELCTX_KEYS__B__ATTRIBUTE: 'a.id' is already the attribute of keys.a",
        "OTELCTX_KEYS__A__BAGGAGE: 'otelctx.session' is already the baggage of keys.session",
    )
    assert (config.keys["b"].attribute, config.keys["a"].baggage) == ("b.id", "otelctx.a")


def test_a_key_whose_every_name_is_taken_goes_and_the_others_stay() -> None:
    config, problems = load({"keys": {"a": {"attribute": "otelctx.b"}, "b": {}, "c": {}}}, environ={})
    assert problems == ("config: keys.b: 'otelctx.b' is already the attribute of keys.a",)
    assert list(config.keys) == ["session", "a", "c"]


def test_two_keys_may_swap_names_in_a_higher_layer() -> None:
    file = {"keys": {"a": {"attribute": "x"}, "b": {"attribute": "y"}}}
    config = config_of(file, keys={"a": {"attribute": "y"}, "b": {"attribute": "x"}})
    assert (config.keys["a"].attribute, config.keys["b"].attribute) == ("y", "x")


# The secret.


@pytest.mark.parametrize("name, needs, falls_to", [("outbound", "sign", "strip"), ("inbound", "verify", "drop")])
def test_signing_and_verifying_need_a_secret(name: str, needs: str, falls_to: str, tmp_path: Path) -> None:
    secret, empty, missing = tmp_path / "secret", tmp_path / "empty", tmp_path / "missing"
    secret.write_bytes(b"0123456789abcdef\n")
    empty.write_bytes(b"\n")

    def outcome(**environ: str) -> tuple[str, str]:
        config, problems = load({"baggage": {name: needs}}, environ={f"OTELCTX_{k}": v for k, v in environ.items()})
        return getattr(config.baggage, name), "".join(problems)

    place = f"config: baggage.{name}: '{needs}' needs a secret: "
    assert outcome(SECRET="0123456789abcdef") == (needs, "")
    assert outcome(SECRET_FILE=str(secret)) == (needs, "")
    assert outcome() == (falls_to, f"{place}set OTELCTX_SECRET, or OTELCTX_SECRET_FILE to a file that holds one")
    assert outcome(SECRET=" ") == outcome()
    assert outcome(SECRET_FILE=str(empty)) == (falls_to, f"{place}OTELCTX_SECRET_FILE: {empty} is empty")
    assert outcome(SECRET_FILE=str(missing)) == (
        falls_to,
        f"{place}OTELCTX_SECRET_FILE: {missing} cannot be read: No such file or directory",
    )
    assert outcome(SECRET="k") == (
        falls_to,
        f"{place}OTELCTX_SECRET: the secret is shorter than 16 bytes; `openssl rand -hex 32` makes a good one",
    )


def test_a_secret_that_is_none_is_told_whatever_is_to_be_done_with_it() -> None:
    config, problems = load({"telemetry": {"values": "hash"}}, environ={"OTELCTX_SECRET": "k"})
    assert config.telemetry.values == "hash"
    assert problems == ("OTELCTX_SECRET: the secret is shorter than 16 bytes; `openssl rand -hex 32` makes a good one",)
    assert load({}, environ={"OTELCTX_SECRET": "0123456789abcdef"})[1] == ()
    assert load({}, environ={"OTELCTX_SECRET_FILE": " "})[1] == ()


def test_without_a_secret_the_layer_below_counts() -> None:
    config, problems = load({"baggage": {"outbound": "hash"}}, environ={}, baggage={"outbound": "sign"})
    assert config.baggage.outbound == "hash"
    assert len(problems) == 1


# The file.


@pytest.mark.parametrize(
    "content, problem",
    [
        ('mode = "repair"\nspans = \n', ": line 2, column 9: Invalid value"),
        ('mode = "repair"\nspans', ": line 2, end of file: "),
        ("[claim]\n[claim]\n", ": line 2, column 7: "),
        (b'mode = "repair"\n# \xff\n', ": line 2: not UTF-8"),
        ("x = " + "[" * 10_000, ": "),
        ("x = " + "1" * 5_000, ": "),
    ],
)
def test_a_file_that_is_no_toml_says_at_which_line_and_the_rest_counts(
    content: str | bytes, problem: str, write: Any
) -> None:
    path = write(content)
    config, problems = load(path, environ={"OTELCTX_MODE": "observe"}, spans="never")
    assert (config.mode, config.spans) == ("observe", "never")
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}{problem}")


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "no.toml"
    assert problems_of(None, {"OTELCTX_CONFIG": str(missing)}) == (
        f"{missing}: cannot be read: No such file or directory",
    )
    assert problems_of(tmp_path) == (f"{tmp_path}: cannot be read: Is a directory",)
    (problem,) = problems_of("a\0b\n")
    assert problem.isprintable()
    assert "cannot be read" in problem


def test_a_source_that_is_neither_a_path_nor_a_table_is_one_line() -> None:
    assert problems_of(5) == ("config: must be a file's path or a table, not 5",)


# The rest.


def test_the_hermes_preset_is_right_on_its_own() -> None:
    config = config_of({"presets": ["hermes"]})
    assert config.keys["session"] == KeyConfig(
        "session",
        "session.id",
        "otelctx.session",
        (
            SourceConfig("contextvar", "tools.approval:_approval_session_key", empty=("",)),
            SourceConfig(
                "contextvar",
                "gateway.session_context:_SESSION_KEY",
                empty=("",),
                unset="gateway.session_context:_UNSET",
            ),
            SourceConfig("getter", "tools.approval:get_current_session_key", {"default": ""}, ("",)),
            SourceConfig("env", "HERMES_SESSION_KEY", empty=("",)),
        ),
    )
    assert config.claim.env["task_id"] == "HERMES_KANBAN_TASK"
    assert "HERMES_KANBAN_TASK" not in config.claim.behaviour_only
    assert all(name.startswith("HERMES_KANBAN_") for name in config.claim.behaviour_only)


def test_an_error_lists_its_problems_one_a_line() -> None:
    error = ConfigError(["mode: x", "spans: y"])
    assert error.problems == ("mode: x", "spans: y")
    assert str(error) == "mode: x\nspans: y"
    assert isinstance(error, ValueError)


def test_every_option_s_default_is_what_load_gives_and_its_variable_is_known() -> None:
    for option in all_options("tenant"):
        config = config_of({"keys": {"tenant": {}}})
        assert value_at(config, ".".join(option.path)) == option.default
        assert option.doc
        assert "unknown name" not in "".join(problems_of(None, {option.variable: "x"}))


def test_importing_the_module_loads_nothing_heavy_and_the_defaults_need_nothing_more() -> None:
    root = Path(otelctx.config.__file__).parent.parent
    heavy = {"tomllib", "difflib", "json", "logging", "threading", "pathlib", "importlib.resources", "wrapt"}
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r}); before = set(sys.modules)\n"
        "from otelctx.config import load; load(environ={})\n"
        f"print(sorted({heavy!r} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


NAMES = sorted(
    {part for option in all_options("session") for part in option.path}
    | {"contextvar", "getter", "env", "kwargs", "empty", "unset", "tenant", "cron", "task_id"}
)
VALUES = [
    "observe",
    "sign",
    "verify",
    "hermes",
    "module:attribute",
    "session.id",
    "otelctx.session",
    "a:b",
    "mint",
    "auto",
]
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(VALUES)
    | st.dates()
)
names = st.sampled_from(NAMES) | st.text(max_size=12)
tree = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(names, inner, max_size=5),
    max_leaves=25,
)
tables = st.dictionaries(names, tree, max_size=6)
right_shape = st.fixed_dictionaries(
    {},
    optional={
        "mode": tree,
        "presets": tree,
        "keys": st.dictionaries(
            st.sampled_from(["session", "tenant", "user"]) | names,
            st.fixed_dictionaries(
                {}, optional={"attribute": tree, "baggage": tree, "policy": tables, "sources": st.lists(tables) | tree}
            ),
            max_size=4,
        ),
        "claim": tables,
        "baggage": tables,
        "scoped_env": tables,
    },
)
variables = st.dictionaries(
    st.lists(names.map(str.upper) | st.sampled_from(NAMES).map(str.upper), min_size=1, max_size=4).map(
        lambda parts: "OTELCTX_" + "__".join(parts)
    ),
    st.sampled_from([*VALUES, "[]", "{}", "[{env='A'}]", '{"a": 1}', "a,b", "true", "5"]) | st.text(max_size=30),
    max_size=5,
).map(lambda found: {name: value for name, value in found.items() if name not in otelctx.config.PLAIN_VARIABLES})


def assert_usable(config: Config, problems: tuple[str, ...]) -> None:
    assert next(iter(config.keys)) == "session"
    for names_of_keys in ([k.attribute for k in config.keys.values()], [k.baggage for k in config.keys.values()]):
        assert len(set(names_of_keys)) == len(names_of_keys)
        assert all(names_of_keys)
    assert config.mode in ("observe", "repair", "enforce")
    assert config.baggage.outbound != "sign"
    assert config.baggage.inbound != "verify"
    assert type(config.alerts.per_minute) is int
    assert all(isinstance(source, SourceConfig) for key in config.keys.values() for source in key.sources)
    for problem in problems:
        assert problem.isprintable()
        assert ": " in problem


@settings(deadline=None, max_examples=150)
@given(
    tables | right_shape, variables, tables.map(lambda t: {k: v for k, v in t.items() if k != "environ"}) | right_shape
)
def test_load_never_raises_and_always_gives_a_usable_configuration(
    source: dict[str, object], environ: dict[str, str], overrides: dict[str, object]
) -> None:
    assert_usable(*load(source, environ=environ, **overrides))


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | st.text(alphabet="[]{}=\"'\\\n a1.,#", max_size=60).map(str.encode))
def test_load_never_raises_for_what_a_file_holds(content: bytes, write: Any) -> None:
    assert_usable(*load(write(content), environ={}))
