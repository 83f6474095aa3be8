"""Layers of a configuration: which wins, how keys outside of files are read, what errors say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.caches.redis import RedisOptions
from pipeline.config.fields import Mismatch, OneOf, Setting, known_keys
from pipeline.config.layers import Layers, merged, read_layers
from pipeline.config.op_settings import resolve_op
from pipeline.config.reader import Reader
from pipeline.config.schema import OpConfig, ServiceConfig, load_config, unknown_ops
from pipeline.config.yaml import ConfigSource
from pipeline.errors import ConfigError

FILES = {
    "config.yml": """\
rpc_port: 18070
host: ${HOST:-127.0.0.1}
allowed_hosts: [a, b]
log: {level: INFO, format: text}
op:
  bow:
    concurrency: 2
    batch_size: 4
""",
    "config.prod.yml": """\
allowed_hosts: [c]
log: {format: json}
op:
  bow:
    concurrency: 8
  cnn: {retry: 2}
""",
    "config.gpu.yml": "op: {bow: {concurrency: 1}}",
    "config.empty.yml": "",
    "config.list.yml": "[1]",
    "pw": "hunter2\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    return tmp_path


def read(text: str | None = None, *settings: str, **environ: str) -> ServiceConfig:
    """Return config.yml, or another text in its place, with a layer of settings and variables."""
    if text is not None:
        Path("config.yml").write_text(text)
    return load_config("config.yml", None, Layers(environ=environ, settings=settings))


def refusal(*settings: str, text: str | None = None, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, *settings, **environ)
    return str(caught.value)


# Profiles ---------------------------------------------------------------------------------


def test_a_profile_wins_key_by_key_and_replaces_lists():
    config = read(PIPELINE_PROFILE="prod")
    assert config.allowed_hosts == ("c",)
    assert (config.log.level, config.log.format) == ("INFO", "json")
    assert (config.op["bow"].concurrency, config.op["bow"].batch_size) == (8, 4)
    assert config.op["cnn"].retry == 2


def test_of_several_profiles_the_last_wins():
    assert read(PIPELINE_PROFILE="prod, gpu").op["bow"].concurrency == 1
    assert read(PIPELINE_PROFILE="gpu,prod,empty").op["bow"].concurrency == 8


def test_a_profile_of_the_command_line_replaces_that_of_the_environment():
    layers = Layers(environ={"PIPELINE_PROFILE": "prod"}, profiles=("gpu",))
    config = load_config("config.yml", None, layers)
    assert (config.op["bow"].concurrency, config.log.format) == (1, "text")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dev", "PIPELINE_PROFILE=dev: config.dev.yml: No such file or directory"),
        ("../x", "PIPELINE_PROFILE: '../x' cannot be a profile"),
        ("list", "config.list.yml: expected a mapping (key: value), found [1] (list)"),
    ],
)
def test_a_missing_profile_is_named(name, said):
    assert said in refusal(PIPELINE_PROFILE=name)


def test_an_error_names_the_file_of_its_layer():
    Path("config.prod.yml").write_text("op:\n  bow:\n    concurrency: no\n    retr: 2\n")
    assert refusal(PIPELINE_PROFILE="prod").startswith("config.prod.yml:3: op.bow.concurrency: ")
    Path("config.yml").write_text("op: {bow: {concurrency: x}}")
    assert "config.prod.yml:3: op.bow.concurrency" in refusal(PIPELINE_PROFILE="prod")


def test_a_profile_of_a_dict_is_a_warning():
    layers = Layers(environ={"PIPELINE_PROFILE": "prod"})
    config = load_config(None, {"rpc_port": 1024}, layers)
    assert config.warnings == (
        "PIPELINE_PROFILE: the configuration is not a file, so it has no profiles",
    )


# Keys outside of files ---------------------------------------------------------------------


def test_the_environment_wins_over_files_and_set_over_the_environment():
    environ = {"PIPELINE__OP__bow__concurrency": "16", "PIPELINE_PROFILE": "prod"}
    assert read(**environ).op["bow"].concurrency == 16
    assert read(None, "op.bow.concurrency=32", **environ).op["bow"].concurrency == 32


def test_a_dict_is_overridden_but_not_changed():
    given: dict[str, Any] = {"rpc_port": 1024, "op": {"bow": {"retry": 2}}}
    config = load_config(None, given, Layers(environ={"PIPELINE__OP__bow__concurrency": "3"}))
    assert (config.op["bow"].retry, config.op["bow"].concurrency) == (2, 3)
    assert given == {"rpc_port": 1024, "op": {"bow": {"retry": 2}}}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PIPELINE__OP__BOW__CONCURRENCY", "3", 3),
        ("PIPELINE__op__bow__concurrency", "3", 3),
        ("PIPELINE__OP__bow", "{concurrency: 3}", 3),
        ("PIPELINE__OP", "{bow: {concurrency: 3}}", 3),
        ("PIPELINE__OP__bow__concurrency", "null", 1),
        ("PIPELINE__OP__bow__concurrency", "", 1),
        ("PIPELINE__OP__bow", "~", None),
        ("pipeline__op__bow__concurrency", "3", 2),
        ("PIPELINE_OP__bow__concurrency", "3", 2),
    ],
)
def test_a_variable_names_a_key_in_any_case(name, value, expected):
    op = read(**{name: value}).op.get("bow", OpConfig())
    assert op.concurrency == (expected or 1)


def test_a_section_is_applied_before_its_keys():
    environ = {"PIPELINE__OP__bow__retry": "3", "PIPELINE__OP": "{bow: {retry: 2, batch_size: 6}}"}
    op = read(**environ).op["bow"]
    assert (op.retry, op.batch_size, op.concurrency) == (3, 6, 2)


def test_names_keep_their_case_where_two_differ_by_it_alone():
    config = read(FILES["config.yml"] + "  BOW: {}\n", PIPELINE__OP__BOW__retry="3")
    assert (config.op["BOW"].retry, config.op["bow"].retry) == (3, 1)
    assert set(read(None, "op.Bow.retry=3").op) == {"bow", "BOW", "Bow"}


@pytest.mark.parametrize(
    ("setting", "name"),
    [('op."a.b".retry=3', "a.b"), ("op.a-b.retry=3", "a-b"), ("op.a__b.retry=3", "a__b")],
)
def test_set_names_any_op(setting, name):
    assert read(None, setting).op[name].retry == 3


def test_a_value_has_the_type_of_its_key():
    settings = ("op.bow.model_version=7", "allowed_hosts=[a, b]", "statistics=no", "timeout=500")
    config = read(None, *settings, "log.level=debug", "dag.fuse=off", "op.bow.fetch_list=[x=1]")
    assert (config.op["bow"].model_version, config.allowed_hosts) == ("7", ("a", "b"))
    assert (config.statistics, config.timeout_s, config.log.level) == (False, 0.5, "DEBUG")
    assert (config.dag.fuse, config.op["bow"].fetch_list) == ("off", ("x=1",))


@pytest.mark.parametrize("text", ["!!python/object:os.system x", "[", "a: b: c", "%", "*x", "- "])
def test_a_text_value_is_not_parsed_as_yaml(text):
    assert read(None, f"op.bow.model_name={text}").op["bow"].model_name == text


def test_options_of_a_named_plug_in_are_keys():
    config = read(None, "cache.redis={host: h, port: 1}", PIPELINE__CACHE__REDIS__PASSWORD="007")
    options = config.cache["redis"]
    assert isinstance(options, RedisOptions)
    assert (options.host, options.password) == ("h", "007")


@pytest.mark.parametrize(
    ("settings", "environ", "said"),
    [
        (["op.bow.retry=x"], {}, "--set: op.bow.retry: expected int >= 1, found 'x' (str)"),
        (["op.bow"], {}, "--set op.bow: expected key=value"),
        (["=3"], {}, "--set =3: expected key=value"),
        (["a..b=3"], {}, "--set a..b=3: expected key=value"),
        (['op."a"b=3'], {}, "expected key=value"),
        (["rpc_port.x=3"], {}, "--set: rpc_port: expected int 1024..65535"),
        (
            [],
            {"PIPELINE__OP__bow__retry": "x"},
            "environment variable PIPELINE__OP__bow__retry: op.bow.retry: expected int >= 1",
        ),
        ([], {"PIPELINE__": "x"}, "environment variable PIPELINE__: expected PIPELINE__KEY"),
        ([], {"PIPELINE__OP____retry": "x"}, "variable PIPELINE__OP____retry: expected"),
        (["op.bow={retry: 2, retry: 3}"], {}, "--set:1: retry: given twice"),
        (["op.bow.timeout=!!int x"], {}, "--set: op.bow.timeout: expected int"),
        (["op=&a [*a]"], {}, "nested deeper than"),
        (["op.bow.fetch_list.0=x"], {}, "expected list of str, found {'0': 'x'} (dict)"),
        (["host=\udcff"], {}, "--set: no text in UTF-8"),
        ([], {"PIPELINE__HOST": "\udcff"}, "PIPELINE__HOST: no text in UTF-8"),
        (["op=[1]"], {}, "--set: op: expected a mapping (key: value), found [1] (list)"),
        ([".".join(["a"] * 1500) + "=1"] * 2, {}, "--set: nested deeper than 32 levels"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_source(settings, environ, said):
    assert said in refusal(*settings, **environ)


def test_an_unknown_key_is_a_warning_that_names_the_nearest():
    config = read(
        None, "op.bow.concurency=3", PIPELINE__HTPP_PORT="1", PIPELINE__OP__bwo__retry="2"
    )
    assert set(config.warnings) == {
        "--set: op.bow.concurency: unknown key, ignored; did you mean concurrency?",
        "environment variable PIPELINE__HTPP_PORT: htpp_port: unknown key, ignored; "
        "did you mean http_port?",
    }
    assert unknown_ops(config, ["bow"]) == [
        "environment variable PIPELINE__OP__bwo__retry: op.bwo: no Op of the graph has this name, "
        "ignored; did you mean bow?"
    ]


# Constructors ------------------------------------------------------------------------------


def test_settings_outside_of_files_override_the_constructor():
    given = {"concurrency": 5, "retry": 6}
    assert resolve_op("bow", given, read()).concurrency == 5
    op = resolve_op("bow", given, read(None, "op.bow.concurrency=7"))
    assert (op.concurrency, op.retry) == (7, 6)
    assert resolve_op("bow", given, read(None, "op.bow={concurrency: 7}")).concurrency == 7


def test_a_part_of_an_argument_of_the_constructor_is_refused():
    config = read(None, "op.bow.sequence.max_idle_ms=5")
    with pytest.raises(ConfigError, match=r"op\.bow\.sequence\.max_idle_ms .* argument sequence"):
        resolve_op("bow", {"sequence": "direct"}, config)


# Expressions -------------------------------------------------------------------------------


def test_an_expression_has_the_type_of_its_key():
    text = 'rpc_port: "${PORT}"\nhost: ${HOST}\nop: {bow: {model_version: "${N}", retry: "${N}"}}\n'
    config = read(text, PORT="18070", HOST="::1", N="2")
    assert (config.rpc_port, config.host) == (18070, "::1")
    assert (config.op["bow"].model_version, config.op["bow"].retry) == ("2", 2)


def test_items_and_options_may_be_expressions():
    redis = "{host: h, port: 1, password: '${N}'}"
    config = read(f"rpc_port: 0\nallowed_hosts: [x, '${{N}}']\ncache: {{redis: {redis}}}", N="12")
    assert config.allowed_hosts == ("x", "12")
    assert getattr(config.cache["redis"], "password", None) == "12"


def test_an_expression_adds_no_keys():
    assert "found '{a: 1}' (str)" in refusal(text="rpc_port: 0\nop: ${X}", X="{a: 1}")


def test_an_invalid_value_names_its_expression():
    said = refusal(text="rpc_port: 0\nop:\n  bow:\n    retry: ${N}\n", N="many")
    assert said == (
        "config.yml:4: op.bow.retry: expected int >= 1, found 'many' (str), which is ${N}"
    )


def test_a_secret_is_in_no_message():
    said = refusal(text="rpc_port: ${file:pw}\nop: {bow: '${file:pw}'}")
    assert "hunter2" not in said
    assert "config.yml:1: rpc_port: expected int 1024..65535, or 0 for any free port" in said
    assert "found a secret, which is ${file:pw}" in said


def test_files_are_relative_to_the_configuration(folder, monkeypatch):
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    Path("../config.yml").write_text("rpc_port: 0\nop: {bow: {encryption_key: '${file:pw}'}}")
    assert load_config("../config.yml").op["bow"].encryption_key == "hunter2"


def test_a_dict_has_no_expressions():
    config = load_config(None, {"rpc_port": 0, "host": "${A}"}, Layers(environ={"A": "b"}))
    assert config.host == "${A}"


# Merging -----------------------------------------------------------------------------------


def test_a_replaced_value_leaves_no_place_and_no_secret():
    first = ConfigSource(
        "a", {"x": {"y": 1}}, {("x",): 1, ("x", "y"): 2}, secrets=frozenset([("x", "y")])
    )
    both = merged(first, ConfigSource("b", {"x": 3}, {("x",): 9}))
    assert both.data == {"x": 3}
    assert (both.place(("x",)), both.place(("x", "y"))) == ("b:9: x", "b:9: x.y")
    assert not both.is_secret(("x",))


def test_a_null_takes_a_value_away():
    source, _ = read_layers(ServiceConfig, "config.yml", None, Layers(settings=("op.bow=",)))
    assert source.data["op"] == {"bow": None}  # type: ignore[index]


# Every key ---------------------------------------------------------------------------------

KEYS = [
    (path.replace("<name>", "bow"), setting)
    for path, setting in known_keys(ServiceConfig)
    if setting.section is None and setting.chosen is None
]


def sample(setting: Setting) -> object:
    """Return a value that the key takes, other than its default where there is one."""
    default = setting.default
    names = setting.rule.known if isinstance(setting.rule, OneOf) else ()
    candidates = (
        *names,
        not default,
        2000,
        1025,
        0.5,
        "json",
        "oldest",
        "off",
        "x",
        ["x"],
        {"x": "y"},
        1,
    )
    fitting = [candidate for candidate in (*candidates, default) if _fits(setting, candidate)]
    return next((item for item in fitting if item != default), default)


def _fits(setting: Setting, value: object) -> bool:
    try:
        setting.read(value)
    except Mismatch:
        return False
    return True


@pytest.mark.parametrize(("path", "setting"), KEYS, ids=[path for path, _ in KEYS])
def test_environment_and_set_accept_the_keys_of_a_file(path, setting):
    value = sample(setting)
    text = value if isinstance(value, str) else json.dumps(value)
    data: Any = value
    for key in reversed(path.split(".")):
        data = {key: data}
    variable = "PIPELINE__" + "__".join(path.split(".")).upper().replace("__BOW__", "__bow__")
    given = [
        Layers(environ={variable: text}),
        Layers(settings=(f"{path}={text}",)),
    ]
    base: dict[str, Any] = {"op": {"bow": None}}
    wanted = fields_of(merged(ConfigSource("a", base), ConfigSource("b", data)))
    for layers in given:
        source, paths = read_layers(ServiceConfig, None, base, layers)
        assert fields_of(source) == wanted, (path, text)
        assert paths, path


def fields_of(source: ConfigSource) -> tuple[dict[str, Any], list[str]]:
    """Return what a Source says, and the kinds of its mistakes."""
    reader = Reader(source, ServiceConfig)
    values = reader.fields(ServiceConfig, source.data, ())
    return values, [problem.rpartition(": ")[2] for problem in reader.problems]
