"""Configuration: what is read, what is refused and in which words, and the reference config.yml."""

from __future__ import annotations

import contextlib
import copy
import logging
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT

from pipeline.config.fields import known_keys
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import (
    OpConfig,
    ServiceConfig,
    load_config,
    op_warnings,
    unknown_ops,
)
from pipeline.config.yaml import MAX_DEPTH, flow
from pipeline.errors import ConfigError
from pipeline.predictors.base import LocalModel, as_own_struct
from pipeline.predictors.onnx import OnnxModel
from pipeline.predictors.paddle import PaddleModel

REFERENCE = ROOT / "config.yml"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes config.yml into the current folder, so that messages name it without a path."""
    monkeypatch.chdir(tmp_path)

    def write_config(text: str) -> Path:
        path = Path("config.yml")
        path.write_text(text, encoding="utf-8")
        return path

    return write_config


def service(**keys: Any) -> ServiceConfig:
    return load_config(yml_dict={"rpc_port": 18070, **keys})


def op_config(**keys: Any) -> OpConfig:
    return service(op={"bow": keys}).op["bow"]


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        service(**keys)
    return str(caught.value)


def op_refusal(**keys: Any) -> str:
    return refusal(op={"bow": keys})


# Where a configuration comes from --------------------------------------------------------


def test_exactly_one_source_is_wanted() -> None:
    with pytest.raises(ConfigError, match="give yml_file or yml_dict"):
        load_config()
    with pytest.raises(ConfigError, match="both given"):
        load_config("config.yml", {})


def test_a_missing_file_is_named_with_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_config("nowhere.yml")
    assert "nowhere.yml: No such file" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_a_dict_is_not_changed_by_reading_it() -> None:
    given_dict = {"http_port": 18071, "op": {"bow": {"timeout": 3000, "fetch_list": ["a"]}}}
    before = copy.deepcopy(given_dict)
    load_config(yml_dict=given_dict)
    load_config(yml_dict=given_dict)
    assert given_dict == before


def test_a_file_and_the_dict_in_it_give_the_same_configuration(write: Write) -> None:
    keys = {
        "http_port": 18071,
        "worker_num": 4,
        "dag": {"is_thread_op": False, "tracer": {"interval_s": 10}},
        "op": {"bow": {"timeout": 3000, "local_service_conf": {"devices": "0,1"}}},
    }
    from_file = load_config(write(yaml.safe_dump(keys)))
    from_dict = load_config(yml_dict=keys)
    assert from_file.source == "config.yml"
    for field in ("rpc_port", "http_port", "worker_num", "dag", "op", "warnings"):
        assert getattr(from_file, field) == getattr(from_dict, field)


@pytest.mark.parametrize("text", ["- rpc_port", "rpc_port", "12"])
def test_a_file_without_a_mapping_is_refused(write: Write, text: str) -> None:
    with pytest.raises(ConfigError, match="expected a mapping"):
        load_config(write(text))


@pytest.mark.parametrize("text", ["", "# only a comment", "null"])
def test_an_empty_file_lacks_a_port(write: Write, text: str) -> None:
    with pytest.raises(ConfigError, match="no port to listen on: set rpc_port"):
        load_config(write(text))


def test_a_yaml_error_has_file_line_column_and_problem(write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write("rpc_port: 18070\ndag: retry: 1\n"))
    assert str(caught.value).startswith("config.yml:2:11: not valid YAML: mapping values")


@pytest.mark.parametrize("text", [b"a: \xff\xfe", b"a: \x00", b"!!python/object:os.system {}"])
def test_text_outside_safe_yaml_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "config.yml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load_config(path)


def test_a_duplicate_key_is_refused_with_both_lines(write: Write) -> None:
    text = "rpc_port: 18070\nop:\n  bow:\n    timeout: 1\n    retry: 2\n    timeout: 3\n"
    with pytest.raises(ConfigError) as caught:
        load_config(write(text))
    assert str(caught.value) == "config.yml:6: op.bow.timeout: given twice, first at line 4"


def test_own_and_earlier_keys_win_over_merged_mappings(write: Write) -> None:
    config = load_config(
        write(
            "rpc_port: 18070\n"
            "op:\n"
            "  one: &one {batch_size: 2, concurrency: 3}\n"
            "  two: &two {batch_size: 4, retry: 5, concurrency: 6}\n"
            "  bow: {<<: [*one, *two], concurrency: 7}\n"
        )
    )
    bow = config.op["bow"]
    assert (bow.batch_size, bow.retry, bow.concurrency) == (2, 5, 7)


def test_a_merged_mistake_is_reported_at_its_own_line(write: Write) -> None:
    text = "rpc_port: 18070\nop:\n  one: &one\n    retry: x\n  bow:\n    <<: *one\n"
    with pytest.raises(ConfigError) as caught:
        load_config(write(text))
    assert [line.split(": expected")[0] for line in str(caught.value).splitlines()] == [
        "config.yml:4: op.one.retry",
        "config.yml:4: op.bow.retry",
    ]


def test_aliases_of_aliases_do_not_exhaust_the_memory(write: Write) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(ConfigError, match="aliases followed"):
        load_config(write("\n".join(lines)))


@pytest.mark.parametrize("text", ["op: &a {bow: *a}", "op: &a {<<: *a}", "op: &a [*a]"])
def test_an_alias_of_itself_is_refused(write: Write, text: str) -> None:
    with pytest.raises(ConfigError, match="nested deeper"):
        load_config(write(text))


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting_is_refused_before_it_can_crash_the_parser(write: Write, opening: str) -> None:
    newer_libyaml = "exceeded maximum nesting depth"
    text = f"nested deeper than {MAX_DEPTH} levels|{newer_libyaml}"
    with pytest.raises(ConfigError, match=text):
        load_config(write(opening * 100_000))


# Ports -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_ports", "expected"),
    [
        ({"rpc_port": 18070}, (18070, None)),
        ({"http_port": 18071}, (18072, 18071)),
        ({"rpc_port": 9000, "http_port": 9001}, (9000, 9001)),
        ({"http_port": 0}, (0, 0)),
        ({"rpc_port": 0}, (0, None)),
        ({"rpc_port": None, "http_port": 1024}, (1025, 1024)),
        (
            {"rpc_port": 9000, "http_port": 9000, "rpc_host": "::1", "http_host": "127.0.0.2"},
            (9000, 9000),
        ),
        (
            {
                "rpc_port": 9000,
                "rpc_host": "127.0.0.2",
                "dag": {
                    "enable_prometheus": True,
                    "prometheus_port": 9000,
                    "prometheus_host": "127.0.0.3",
                },
            },
            (9000, None),
        ),
    ],
)
def test_ports(given_ports: dict[str, Any], expected: tuple[int, int | None]) -> None:
    config = load_config(yml_dict=given_ports)
    assert (config.rpc_port, config.http_port) == expected


@pytest.mark.parametrize("port", [1, 1023, 65536, -1, "18070", True, 18070.0])
def test_a_port_out_of_range_is_refused_once(port: object) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(yml_dict={"rpc_port": port})
    text = str(caught.value)
    assert text.startswith("yml_dict: rpc_port: expected int 1024..65535, or 0 for any free port")
    assert len(text.splitlines()) == 1


def test_a_missing_port_is_reported_with_other_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(yml_dict={"worker_num": 0})
    assert len(str(caught.value).splitlines()) == 2


def test_ports_must_differ() -> None:
    assert "http_port: expected a port other" in refusal(http_port=18070)
    metrics = {"enable_prometheus": True, "prometheus_port": 18070}
    assert "dag.prometheus_port: expected a port other" in refusal(dag=metrics)
    assert service(dag={**metrics, "enable_prometheus": False}).dag.prometheus_port == 18070


def test_the_highest_http_port_needs_an_rpc_port() -> None:
    with pytest.raises(ConfigError, match="set rpc_port"):
        load_config(yml_dict={"http_port": 65535})


# Units, null, closed sets ----------------------------------------------------------------


def test_milliseconds_become_seconds() -> None:
    config = service(timeout=1500, stop_grace_period=0, op={"bow": {"timeout": 20}})
    assert config.timeout_s == 1.5
    assert config.stop_grace_period_s == 0.0
    assert config.op["bow"].timeout_s == 0.02


@pytest.mark.parametrize("off", [-1, 0, -20])
def test_zero_or_less_means_no_timeout(off: int) -> None:
    bow = op_config(timeout=off, auto_batching_timeout=off)
    assert bow.timeout_s is None
    assert bow.auto_batching_timeout_s is None


def test_the_switch_interval_is_in_microseconds_and_zero_leaves_it_alone() -> None:
    assert service(switch_interval=200).switch_interval_s == 0.0002
    assert service(switch_interval=0).switch_interval_s is None


def test_the_tracer_interval_is_in_seconds() -> None:
    assert service(dag={"tracer": {"interval_s": 10}}).dag.tracer.interval_s == 10
    assert service(dag={"tracer": {"interval_s": -1}}).dag.tracer.interval_s is None


def test_null_is_the_default_for_every_key() -> None:
    nothing: dict[str, Any] = {}
    for key, setting in known_keys(ServiceConfig):
        if "." not in key and setting.key != "rpc_port":
            nothing[key] = None
    assert service(**nothing) == service()
    op_keys = {
        s.key: None for k, s in known_keys(ServiceConfig) if re.fullmatch(r"op\.\S+?>\.\w+", k)
    }
    assert op_config(**op_keys) == OpConfig()
    assert service(op={"bow": None}).op["bow"] == OpConfig()


def test_words_of_a_closed_set_are_read_in_any_case() -> None:
    local = op_config(local_service_conf={"precision": "FP16"}).local_service_conf
    assert local.engine_options == {"precision": "fp16"}
    model = {"engine": "openvino", "precision": "BF16"}
    assert op_config(local_service_conf=model).local_service_conf.engine_options["precision"] == (
        "bf16"
    )


def test_a_named_engine_checks_its_own_keys() -> None:
    model = {"engine": "openvino", "precision": "fp16"}
    text = "local_service_conf.precision: expected fp32 or bf16, found 'fp16'"
    assert text in refusal(op={"a": {"local_service_conf": model}})
    assert service(log={"level": "debug"}).log.level == "DEBUG"


def test_both_spellings_of_first_arrive_are_accepted() -> None:
    for key in ("channel_recv_frist_arrive", "channel_recv_first_arrive"):
        config = service(dag={key: True})
        assert config.dag.channel_recv_first_arrive
        assert not config.warnings
    both = {"channel_recv_frist_arrive": True, "channel_recv_first_arrive": True}
    assert service(dag=both).dag.channel_recv_first_arrive
    both["channel_recv_first_arrive"] = False
    assert "differ; keep channel_recv_first_arrive only" in refusal(dag=both)


def test_a_local_model_runs_in_this_process_by_default() -> None:
    local = op_config(local_service_conf={"model_config": "model"}).local_service_conf
    assert local.client_type == "local_predictor"
    assert local.engine is None


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        service().worker_num = 1


# Errors and their texts ------------------------------------------------------------------


def test_an_error_has_file_line_key_expected_and_actual_value(write: Write) -> None:
    text = "rpc_port: 18070\nop:\n  bow:\n    concurrency: 2\n    retry: 'abc'\n"
    with pytest.raises(ConfigError) as caught:
        load_config(write(text))
    expected = "config.yml:5: op.bow.retry: expected int >= 1, found 'abc' (str)"
    assert str(caught.value) == expected


def test_all_mistakes_of_a_file_are_reported_together(write: Write) -> None:
    text = (
        "rpc_port: 80\nrpc_port: 81\nworker_num: 0\nhost: 2026-99-99\nlog: [x]\n"
        "op:\n  bow: {timeout: 1.5}\n  1: {}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(write(text))
    lines = str(caught.value).splitlines()
    keys = {line.split(": ")[1] for line in lines}
    assert keys == {"rpc_port", "worker_num", "host", "log", "op.bow.timeout", "op.1"}
    assert len(lines) == 7  # rpc_port is given twice, and wrong


def test_a_bool_is_not_an_int() -> None:
    text = op_refusal(concurrency=True)
    assert "expected int >= 1, found True (bool" in text
    assert "are not numbers" in text


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"timeout": 2000.0}, "timeout: expected int <= 2147483647 (ms), found 2000.0 (float)"),
        ({"timeout": 10**10}, "timeout: expected int <= 2147483647 (ms), found 10000000000 (int)"),
        (
            {"batching": "greedy"},
            "batching: expected full or adaptive or dynamic or iterative, found 'greedy' (str)",
        ),
        (
            {"batching": 1},
            "batching: expected full or adaptive or dynamic or iterative, found 1 (int)",
        ),
        (
            {"workers": True},
            "workers: expected thread or process or model or ray, found True (bool)",
        ),
        ({"fetch_list": "a"}, "fetch_list: expected list of str, found 'a' (str)"),
        ({"fetch_list": [1]}, "fetch_list: expected list of str, found [1] (list)"),
        ({"batch_size": 0}, "batch_size: expected int >= 1, found 0 (int)"),
        ({"use_encryption_model": 1}, "expected true or false, found 1 (int)"),
        ({"local_service_conf": "m"}, "expected a mapping (key: value), found 'm' (str)"),
        ({"local_service_conf": {"device_type": 7}}, "expected int -1..6, found 7 (int)"),
        ({"local_service_conf": {"precision": "fp8"}}, "expected fp32 or fp16 or int8 or bf16"),
    ],
)
def test_refusals_of_op_keys(keys: dict[str, Any], words: str) -> None:
    assert words in op_refusal(**keys)


@pytest.mark.parametrize("cards", [0, [0, 1], "a", "0,,1", "gpu:0"])
def test_devices_are_card_numbers_in_quotes(cards: object) -> None:
    text = op_refusal(local_service_conf={"devices": cards})
    assert 'devices: expected card numbers in quotes, such as "0" or "0,1"' in text


@pytest.mark.parametrize("cards", ["", "0", "0,1, 2"])
def test_devices_are_read(cards: str) -> None:
    assert op_config(local_service_conf={"devices": cards}).local_service_conf.devices == cards


def test_a_grace_period_is_not_negative() -> None:
    assert "stop_grace_period: expected int 0..2147483647 (ms)" in refusal(stop_grace_period=-1)


def test_the_value_in_an_error_is_shortened_to_one_line() -> None:
    for monster in ("x" * 10_000, 10**5000, list(range(10_000)), {"a\nb": "\n" * 500}):
        text = refusal(worker_num=monster)
        assert len(text) < 300
        assert "\n" not in text


def test_odd_keys_are_shown_in_one_short_line() -> None:
    odd: dict[Any, Any] = {10**5000: 1, "x" * 10_000: 1, "a\nb": 1, (1, 2): 1, frozenset(): 1}
    warnings = load_config(yml_dict={"rpc_port": 18070, **odd}).warnings
    assert len(warnings) == len(odd)
    assert max(map(len, warnings)) < 300
    assert "\n" not in "".join(warnings)


# Unknown keys ----------------------------------------------------------------------------


def test_an_unknown_key_is_a_warning_with_the_nearest_known_one(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pipeline.config.schema"):
        config = load_config(write("rpc_port: 18070\nop:\n  bow:\n    batchsize: 4\n"))
    warning = "config.yml:4: op.bow.batchsize: unknown key, ignored; did you mean batch_size?"
    assert config.warnings == (warning,)
    assert caplog.messages == [warning]
    assert config.op["bow"].batch_size == 1


def test_a_misspelt_port_is_warned_of_before_it_is_missed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigError, match="no port"):
        load_config(yml_dict={"rpc_prot": 18070})
    assert caplog.messages == ["yml_dict: rpc_prot: unknown key, ignored; did you mean rpc_port?"]


def test_a_removed_key_is_ignored_with_its_reason() -> None:
    (warning,) = service(dag={"fuse_processes": True}).warnings
    assert warning.endswith("dag.fuse_processes: ignored: Ops in processes always run in their own")
    (warning,) = service(op={"bow": {"fuse_processes": True}}).warnings
    assert "unknown key" in warning


def test_a_misplaced_key_is_a_warning_with_its_place() -> None:
    (warning,) = service(op={"bow": {"devices": "0"}}).warnings
    assert warning.endswith("it belongs at op.<name>.local_service_conf.devices")


@pytest.mark.parametrize(
    "keys",
    [
        {"prot": 1},
        {1: 2},
        {None: 2},
        {"dag": {"zzz": 1}},
        {"dag": {"tracer": {"interval": 1}}},
        {"log": {"lvl": 1}},
        {"op": {"bow": {"local_service_conf": {"model": 1}}}},
    ],
)
def test_unknown_keys_are_warned_of_at_every_level(keys: dict[Any, Any]) -> None:
    assert len(load_config(yml_dict={"rpc_port": 18070, **keys}).warnings) == 1


def test_the_legacy_gateway_port_is_ignored_silently() -> None:
    assert service(grpc_gateway_port=8080).warnings == ()


def test_names_that_the_graph_does_not_have() -> None:
    config = service(op={"bow": {}, "cmbine": {}, "@DAGExecutor": {"concurrency": 8}})
    assert unknown_ops(config, ["bow", "cnn", "combine"]) == [
        "yml_dict: op.cmbine: no Op of the graph has this name, ignored; did you mean combine?"
    ]


# Constructor, YAML, default --------------------------------------------------------------


def test_the_constructor_wins_over_yaml_and_yaml_over_the_default() -> None:
    config = service(op={"bow": {"concurrency": 3, "batch_size": 4}})
    op = resolve_op("bow", {"batch_size": 5}, config)
    assert (op.batch_size, op.concurrency, op.retry) == (5, 3, 1)
    assert resolve_op("cnn", {}, config).concurrency == 1


def test_a_constructor_argument_equal_to_the_default_wins_too() -> None:
    config = service(op={"bow": {"timeout": 3000, "retry": 5}})
    op = resolve_op("bow", {"timeout": -1, "retry": 1}, config)
    assert op.timeout_s is None
    assert op.retry == 1


def test_missing_arguments_do_not_override_yaml() -> None:
    config = service(op={"bow": {"retry": 5, "timeout": 3000}})
    op = resolve_op("bow", {"retry": 0, "timeout": None, "fetch_list": None}, config)
    assert op.retry == 5
    assert op.timeout_s == 3.0


def test_timeouts_of_the_constructor_are_milliseconds_and_may_be_fractions() -> None:
    op = resolve_op("bow", {"timeout": 0.5, "auto_batching_timeout": 20}, service())
    assert op.timeout_s == 0.0005
    assert op.auto_batching_timeout_s == 0.02


def test_lists_of_the_constructor_are_frozen() -> None:
    op = resolve_op("bow", {"fetch_list": ["a"], "server_endpoints": ("h:1",)}, service())
    assert op.fetch_list == ("a",)
    assert op.server_endpoints == ("h:1",)


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("concurrency", 0, "expected int >= 1, found 0 (int)"),
        ("retry", -1, "expected int >= 1, found -1 (int)"),
        ("retry", False, "expected int >= 1, found False (bool"),
        ("timeout", "3 s", "expected number <= 2147483647 (ms), found '3 s' (str)"),
        ("timeout", float("nan"), "found nan (float)"),
        ("timeout", float("inf"), "found inf (float)"),
        ("timeout", True, "found True (bool"),
        ("batch_size", 2.0, "found 2.0 (float)"),
        ("local_service_conf", {}, "unknown"),
        ("naem", 1, "unknown"),
    ],
)
def test_constructor_mistakes_name_op_and_argument(argument: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_op("bow", {argument: value}, service())
    assert str(caught.value).startswith(f"Op 'bow', argument {argument}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(("is_thread_op", "workers"), [(True, "thread"), (False, "process")])
def test_an_op_inherits_missing_keys_from_dag(is_thread_op: bool, workers: str) -> None:
    dag = {"is_thread_op": is_thread_op, "channel_recv_first_arrive": True}
    op_keys = {"bow": {"workers": "process", "channel_recv_first_arrive": False}}
    config = service(dag=dag, op=op_keys)
    cnn, bow = resolve_op("cnn", {}, config), resolve_op("bow", {}, config)
    assert (cnn.workers, cnn.channel_recv_first_arrive) == (workers, True)
    assert (bow.workers, bow.channel_recv_first_arrive) == ("process", False)


def test_a_batch_larger_than_worker_num_is_warned_of() -> None:
    ops = {"bow": OpConfig(batch_size=8), "cnn": OpConfig(batch_size=4)}
    (warning,) = op_warnings(service(worker_num=4), ops)
    assert "'bow'" in warning
    assert "worker_num: 4" in warning
    assert "batch_size 8" in warning
    assert op_warnings(service(), ops) == []


def test_a_client_type_without_a_server_is_warned_of() -> None:
    remote = OpConfig(client_type="triton", server_endpoints=("127.0.0.1:8001",))
    ops = {"bow": OpConfig(client_type="triton"), "cnn": OpConfig(), "remote": remote}
    (warning,) = op_warnings(service(), ops)
    assert "op.bow.client_type: triton has no effect without server_endpoints" in warning
    assert op_warnings(service(), {"bow": OpConfig(client_type="local_predictor")}) == []


def test_worker_num_counts_requests_or_copies() -> None:
    alone, several = service(worker_num=4), service(worker_num=4, build_dag_each_worker=True)
    assert (alone.replicas, alone.max_active) == (0, 4)
    assert (several.replicas, several.max_active) == (4, None)
    assert service(build_dag_each_worker=True).replicas == 1
    big = {"big": resolve_op("big", {"batch_size": 8}, several)}
    assert op_warnings(several, big) == [], "then it does not limit requests"


# The reference configuration -------------------------------------------------------------


def _uncommented(text: str) -> str:
    """The reference with its examples switched on: `#key: value`, unlike `# prose`."""
    return re.sub(r"(?m)^(\s*)#(\w+:)", r"\1\2", text)


def test_the_reference_is_read_without_a_warning(write: Write) -> None:
    assert load_config(REFERENCE).warnings == ()
    assert load_config(write(_uncommented(REFERENCE.read_text()))).warnings == ()


def test_the_reference_has_only_defaults() -> None:
    config = load_config(REFERENCE)
    ports = {"rpc_port": config.rpc_port, "http_port": config.http_port}
    bare = load_config(yml_dict={**ports, "op": {"example": {}}})
    options = config.op["example"].local_service_conf.engine_options
    for engine in (PaddleModel, OnnxModel):
        assert as_own_struct(LocalModel("m", options=options), engine) == engine("m")
    cast(dict[str, object], options).clear()
    for field in set(ServiceConfig.__struct_fields__) - {"source", "places"}:
        assert getattr(config, field) == getattr(bare, field), field


GENERATED = runpy.run_path(str(ROOT / "scripts" / "generate_reference.py"))


def test_generated_files_are_up_to_date() -> None:
    files = GENERATED["generated"]()
    assert {Path("config.yml"), Path(GENERATED["REFERENCE"])} <= set(files)
    for path, text in files.items():
        assert (ROOT / path).read_text() == text, f"{path}: run scripts/generate_reference.py"


@pytest.mark.parametrize(("key", "setting"), list(known_keys(ServiceConfig)))
def test_the_reference_explains_every_key(key: str, setting: Any) -> None:
    section, _, name = key.replace("<name>", "NAME").rpartition(".")
    page = (ROOT / GENERATED["REFERENCE"]).read_text()
    table = page.partition(f"## `{section or 'config.yml'}`\n")[2].partition("\n## ")[0]
    (row,) = re.findall(rf"^\| `{name}`.*", table, re.MULTILINE)
    assert setting.doc.replace("*", r"\*").replace("<", "&lt;") in row
    assert setting.default is None or f"`{flow(setting.default)}`" in row


# Anything at all -------------------------------------------------------------------------

_KEYS = sorted({setting.key for _, setting in known_keys(ServiceConfig)} | {"bow", "zzz", "<<"})
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["thread", "full", "0,1", "18070"])
    | st.dates()
    | st.binary(max_size=4)
)
_TREES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_KEYS) | _SCALARS, inner, max_size=6)
    ),
    max_leaves=20,
)
_SECTIONS = st.dictionaries(
    st.sampled_from([key.split(".")[0] for key, _ in known_keys(ServiceConfig)]), _TREES
)


def _only_config_errors(read: Callable[[], object]) -> None:
    with contextlib.suppress(ConfigError):
        read()


@given(_SECTIONS | _TREES)
def test_any_dict_is_read_or_refused(tree: Any) -> None:
    _only_config_errors(lambda: load_config(yml_dict=tree))


@given(op=_TREES, argument=st.sampled_from(_KEYS), value=_TREES)
def test_any_op_and_argument_is_read_or_refused(op: Any, argument: str, value: Any) -> None:
    _only_config_errors(lambda: service(op={"bow": op}))
    _only_config_errors(lambda: resolve_op("bow", {argument: value}, service()))


_TAGS = ["", "!!int ", "!!float ", "!!bool ", "!!null ", "!!timestamp ", "!!binary ", "!!set "]
_WORDS = st.sampled_from(["", "x", "''", "1", ".", "0b", "0x", "1:60", "2026-99-99", "=", "<<"])


@given(
    key=st.sampled_from(_KEYS),
    tag=st.sampled_from(_TAGS),
    value=_WORDS
    | st.text("0123456789-+:._eExb ", max_size=25)
    | st.sampled_from(["9" * 5000, "0x" + "f" * 5000]),
)
def test_any_tagged_scalar_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, key: str, tag: str, value: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "scalar.yml"
    path.write_text(f"{key}: {tag}{value}\n")
    _only_config_errors(lambda: load_config(path))


@given(text=st.binary(max_size=60) | st.text("&*a:<[]{}, \n-!#'\"|>%@", max_size=60))
def test_any_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: bytes | str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    _only_config_errors(lambda: load_config(path))
