"""JSON as protobuf reads it: what becomes of it, and what stays wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.repository.model_config import is_nested_deeper, parse_json, strict_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1}", {"a": 1}),
        ("{a_1:true,'b' : [1,2,],}", {"a_1": True, "b": [1, 2]}),
        (r"""{'it\'s': 'a "word"', "c": "{d:1,}"}""", {"it's": 'a "word"', "c": "{d:1,}"}),
        (' { "a" : { b : [ ] , } , } \n', {"a": {"b": []}}),
        ('["x,]", ]', ["x,]"]),
    ],
)
def test_forms_that_protobuf_accepts_become_json(text: str, value: object) -> None:
    assert json.loads(strict_json(text)) == value


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_VALUES)
def test_valid_json_is_unchanged(value: object) -> None:
    text = json.dumps(value)
    assert json.loads(strict_json(text)) == value
    assert not is_nested_deeper(text, text.count("[") + text.count("{"))


@pytest.mark.parametrize("text", ["{a: 1 6}", "[1 6]", "[tr ue]", "[1'a']", "[- 1]"])
def test_separated_tokens_remain_separate(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        json.loads(strict_json(text))


@given(st.text("{}[],:'\"ab1\\ "))
def test_any_text_terminates(text: str) -> None:
    strict_json(text)
    is_nested_deeper(text, 3)


def test_the_depth_counts_open_brackets() -> None:
    text = '{"a": [{"b": 1}, {"c": "[[[["}]}'
    assert [is_nested_deeper(text, most) for most in (2, 3)] == [True, False]
    assert is_nested_deeper("[" * 100_000, 99_999)


def test_a_configuration_is_read_so() -> None:
    text = "{backend:'python', dynamic_batching:{max_queue_delay_microseconds:7,},}"
    config = parse_json(text, "config")
    assert config.backend == "python"
    assert config.dynamic_batching.max_queue_delay_microseconds == 7


def test_one_value_is_a_list_of_one() -> None:
    config = parse_json(
        """{"instance_group": {"kind": "KIND_CPU", "count": 5, "gpus": 0},
        "input": {"name": "x", "dataType": "TYPE_FP32", "dims": 4}, "output": null,
        "parameters": {"k": {"stringValue": "v"}},
        "dynamicBatching": {"preferred_batch_size": 4,
        "priority_queue_policy": {"2": {"max_queue_size": 7}}}}""",
        "config",
    )
    (group,) = config.instance_group
    assert (group.count, [*group.gpus]) == (5, [0])
    assert [(tensor.name, [*tensor.dims]) for tensor in config.input] == [("x", [4])]
    assert not config.output
    assert config.parameters["k"].string_value == "v"
    assert [*config.dynamic_batching.preferred_batch_size] == [4]
    assert config.dynamic_batching.priority_queue_policy[2].max_queue_size == 7


@pytest.mark.parametrize(
    "text", ['{"instance_group": 5}', '{"output": ""}', '{"input": {"dims": {}}}']
)
def test_another_kind_of_value_is_no_list_of_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"repeated field \w+ must be in \[\]"):
        parse_json(text, "config")


@pytest.mark.parametrize(
    "text",
    ["{a b}", "{a: TYPE_FP32}", "{'a: 1}", "[1 2]", "{" * 5000, '{"a":' * 5000 + "1", "{name: []}"],
)
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^config: "):
        parse_json(text, "config")
