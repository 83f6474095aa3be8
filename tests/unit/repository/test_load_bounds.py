"""Bounds of what a request to load a model may ask of the server."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from pipeline.frontends.v2.control import Overrides
from pipeline.frontends.v2.errors import V2Error, V2Status
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.model_checks import check_bounds, check_sent


def refusal_of_sent(name: str, overrides: Overrides) -> str:
    with pytest.raises(V2Error) as refused:
        check_sent(name, overrides)
    assert refused.value.kind is V2Status.INVALID
    return str(refused.value)


@pytest.mark.parametrize("name", ["\0", "a\0b", "a\nb", "x" * 256, "\u00e9" * 128, "a\x7f"])
def test_names_that_no_folder_has_are_refused(name: str) -> None:
    assert "no folder can have this name" in refusal_of_sent(name, Overrides())


@pytest.mark.parametrize("name", ["a b", "m\u00f6del", "\U0001f600", 'a"b', "x" * 255])
def test_other_names_are_looked_for(name: str) -> None:
    check_sent(name, Overrides("{}", {"1/model.py": b"", "/labels.txt": b"", "1/a/b": b""}))


_LONG = "a/" * 1500 + "b"


@pytest.mark.parametrize(
    "path", ["../x", "/../x", "1/../../x", "", "/", ".", "1/a\0b", "x" * 300, _LONG]
)
def test_a_path_outside_the_folder_is_refused(path: str) -> None:
    text = refusal_of_sent("m", Overrides("{}", {path: b"x"}))
    assert "is not a path below the folder of the model" in text


def test_a_file_below_another_is_refused() -> None:
    text = refusal_of_sent("m", Overrides("{}", {"1/a": b"", "1/a/b": b""}))
    assert text == "failed to load 'm', file:1/a/b is below another file"


@pytest.mark.parametrize("config", ["[" * 101, '{"a":' * 5000, "{a:" * 101 + "1" + "}" * 101])
def test_deep_nesting_is_refused(config: str) -> None:
    assert "nested deeper than 100" in refusal_of_sent("m", Overrides(config))
    check_sent("m", Overrides('{"a": "' + "[" * 200 + '"}'))


_SAMPLE = "model_warmup { name: 'w' count: %d inputs { key: 'x' value { dims: [ %d ] } } }"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("instance_group { name: 'g' count: -5 }", "g has the count -5"),
        ("instance_group { count: 1000000 }", "1000000 instances, more than 8.*--max-instances"),
        ("instance_group { count: 5 } instance_group { count: 4 }", "9 instances, more than 8"),
        ("instance_group { kind: KIND_GPU count: 3 gpus: [ 0, 1, 2 ] }", "9 instances"),
        ("max_batch_size: 2147483647 sequence_batching { }", "sequences each"),
        ("sequence_batching { oldest { max_candidate_sequences: 70000 } }", "70000 sequences each"),
        (_SAMPLE % (2**31 - 1, 1), "2147483647 runs"),
        (_SAMPLE % (1, 2**40), "model_warmup w: x has more than"),
    ],
)
def test_numbers_that_take_the_server_along_are_refused(config: str, text: str) -> None:
    given = text_format.Parse(config, ModelConfig())
    if not given.instance_group:
        given.instance_group.add(count=1)
    with pytest.raises(V2Error, match=text) as refused:
        check_bounds("m", given, 8)
    assert refused.value.kind is V2Status.INVALID


@pytest.mark.parametrize(
    "config",
    [
        "instance_group { count: 8 }",
        "max_batch_size: 2147483647 dynamic_batching { priority_levels: 18446744073709551615 }",
        "max_batch_size: 64 sequence_batching { } instance_group { count: 8 }",
        _SAMPLE % (1000, 2**20),
    ],
)
def test_usual_numbers_are_accepted(config: str) -> None:
    check_bounds("m", text_format.Parse(config, ModelConfig()), 8)
