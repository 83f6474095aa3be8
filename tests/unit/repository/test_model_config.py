"""Configurations of models are read from text, YAML and JSON, and shown as Triton shows them."""

from __future__ import annotations

import msgspec
import pytest

from pipeline.errors import ConfigError
from pipeline.proto.v2.config_json import as_json
from pipeline.repository.model_config import parse_json, parse_text, read_model_config

TEXT = """
name: "m"
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
output { name: "y" data_type: TYPE_STRING dims: 1 }
dynamic_batching {
  priority_levels: 2
  default_priority_level: 1
  priority_queue_policy { key: 2 value { default_timeout_microseconds: 7 } }
}
parameters: { key: "k" value: { string_value: "v" } }
"""
YAML = """
name: m
backend: python
max_batch_size: 8
input: [{name: x, data_type: TYPE_FP32, dims: [-1, 3]}]
output: [{name: y, data_type: TYPE_STRING, dims: [1]}]
dynamic_batching:
  priority_levels: 2
  default_priority_level: 1
  priority_queue_policy: {2: {default_timeout_microseconds: 7}}
parameters: {k: {string_value: v}}
"""


def test_both_formats_are_equal(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "config.pbtxt").write_text(TEXT)
    (tmp_path / "b" / "config.yml").write_text(YAML)
    of_text, of_yaml = read_model_config(tmp_path / "a"), read_model_config(tmp_path / "b")
    assert of_text == of_yaml
    assert of_text is not None
    assert of_text.dynamic_batching.priority_queue_policy[2].default_timeout_microseconds == 7


def test_a_folder_without_a_file_has_no_configuration(tmp_path):
    assert read_model_config(tmp_path) is None


def test_two_files_in_one_folder_are_refused(tmp_path):
    (tmp_path / "config.pbtxt").write_text(TEXT)
    (tmp_path / "config.yml").write_text(YAML)
    with pytest.raises(ConfigError, match=r"there are config\.pbtxt and config\.yml"):
        read_model_config(tmp_path)


def test_a_number_that_no_enum_has_is_an_error_of_the_file():
    text = b"input { data_type: 99999999999999999999 }"
    with pytest.raises(ConfigError, match=r"m/config\.pbtxt:.*99999999999999999999"):
        parse_text(text, "m/config.pbtxt")


def test_an_error_in_a_text_has_its_line():
    with pytest.raises(ConfigError, match=r'm/config\.pbtxt:2:1.*no field named "nope"'):
        parse_text(b'name: "m"\nnope: 1', "m/config.pbtxt")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "truncated"),
        ("[]", "expected a mapping, found list"),
        ('{"nope": 1}', 'no field named "nope"'),
        ('{"max_batch_size": "many"}', "max_batch_size"),
    ],
)
def test_invalid_json_is_refused(text, expected):
    with pytest.raises(ConfigError, match=f"config: .*{expected}"):
        parse_json(text, "config")


def test_missing_keys_are_shown_with_defaults_and_numbers_are_numbers():
    shown = as_json(parse_text(TEXT.encode(), "x"))
    order = ["name", "platform", "backend", "version_policy", "max_batch_size", "input", "output"]
    assert [name for name in shown if name in order] == [name for name in order if name in shown]
    (policy,) = shown["dynamic_batching"]["priority_queue_policy"].values()
    assert [*policy][:2] == ["timeout_action", "default_timeout_microseconds"]
    (x,) = shown["input"]
    assert x == {
        "name": "x",
        "data_type": "TYPE_FP32",
        "format": "FORMAT_NONE",
        "dims": [-1, 3],
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": False,
        "is_non_linear_format_io": False,
    }
    batching = shown["dynamic_batching"]
    assert batching["max_queue_delay_microseconds"] == 0
    assert batching["priority_queue_policy"]["2"]["default_timeout_microseconds"] == 7
    assert shown["parameters"] == {"k": {"string_value": "v"}}
    assert shown["cc_model_filenames"] == {}
    assert "ensemble_scheduling" not in shown
    assert "optimization" not in shown


def test_a_shown_configuration_is_parsed_unchanged():
    config = parse_text(TEXT.encode(), "x")
    assert parse_json(msgspec.json.encode(as_json(config)), "x") == config


@pytest.mark.parametrize(
    ("value", "told"),
    {
        "-5": "Expected integer, got: -5",
        '"five"': 'Expected integer, got: "five"',
        "12345678901": "Integer out of range (12345678901)",
    }.items(),
)
def test_an_invalid_number_is_refused_with_tritons_message(value, told):
    text = f"ensemble_scheduling {{ max_inflight_requests: {value} }}"
    with pytest.raises(ConfigError) as caught:
        parse_text(text.encode(), "x")
    assert str(caught.value).endswith(told)
