"""A program file is read; any other file raises an InitError."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle_double import json_program, operator, parameter

from pipeline.errors import InitError
from pipeline.predictors.paddle.program import ProgramVar, read_program
from pipeline.proto import paddle_program_pb2 as pb

FLOAT, INT64, BF16, UNKNOWN = 5, 3, 22, 99
TENSOR, FEED, TEXTS = 7, 9, 26


def variable(name, data_type=FLOAT, dims=(-1, 3), lod_level=0, kind=TENSOR, persistable=False):
    tensor = pb.TensorDesc(data_type=data_type, dims=dims)
    lod_tensor = pb.LodTensorDesc(tensor=tensor, lod_level=lod_level)
    return pb.VarDesc(
        name=name, type=pb.VarType(type=kind, lod_tensor=lod_tensor), persistable=persistable
    )


def protobuf_program(*variables):
    block = pb.BlockDesc(vars=variables, ops=[pb.OpDesc(type="feed")])
    return pb.ProgramDesc(blocks=[block]).SerializeToString()


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


@pytest.mark.parametrize("name", ["a.pdmodel", "__model__"])
def test_a_protobuf_program_has_types_shapes_sequences_and_weights(file, name):
    program = read_program(
        file(
            name,
            protobuf_program(
                variable("x"),
                variable("ids", INT64, (-1,), lod_level=1),
                variable("scalar", BF16, ()),
                variable("odd", UNKNOWN),
                variable("text", kind=TEXTS),
                variable("w", dims=(3, 4), persistable=True),
                variable("feed", kind=FEED, persistable=True),
            ),
        )
    )
    assert program.vars["x"] == ProgramVar(np.dtype(np.float32), (None, 3), False)
    assert program.vars["ids"] == ProgramVar(np.dtype(np.int64), (None,), True)
    assert (str(program.vars["scalar"].dtype), program.vars["scalar"].shape) == ("bfloat16", ())
    assert program.vars["odd"].dtype is None
    assert program.vars["text"].dtype == np.dtype(object)
    assert program.weights == {"w": 12}
    assert not program.is_quantized


def test_quantized_models_are_detected_by_their_operators(file):
    for content in (
        json_program(operator("data", "x"), {"#": "1.dequantize_linear"}),
        json_program(operator("data", "x")),
    ):
        is_quantized = b"quantize" in content
        assert read_program(file("a.json", content)).is_quantized is is_quantized
    block = pb.BlockDesc(ops=[pb.OpDesc(type="fake_quantize_abs_max")])
    content = pb.ProgramDesc(blocks=[block]).SerializeToString()
    assert read_program(file("a.pdmodel", content)).is_quantized


def test_a_json_program_has_types_shapes_and_weights(file):
    operators = [
        parameter("w", (3, 4)),
        operator("data", "x", "0.t_i64", (-1, 3)),
        operator("data", "odd", "0.t_f4"),
        operator("matmul", "skipped"),
        operator("fetch", "fetch_name_0", "0.t_bf16", ()),
    ]
    program = read_program(file("a.json", json_program(*operators)))
    assert set(program.vars) == {"x", "odd", "fetch_name_0"}
    assert program.vars["x"] == ProgramVar(np.dtype(np.int64), (None, 3))
    assert program.vars["odd"].dtype is None
    assert str(program.vars["fetch_name_0"].dtype) == "bfloat16"
    assert program.weights == {"w": 12}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b""),
        ("a.json", b"[]"),
        ("a.json", b"null"),
        ("a.json", b'{"base_code": {"magic": "other"}}'),
        ("a.json", b'{"base_code": {"magic": "pir"}, "program": {"regions": [{"blocks": []}]}}'),
        ("a.json", json_program("text")),
        ("a.pdmodel", b""),
        ("a.pdmodel", b"PK\x03\x04"),
        ("a.pdmodel", pb.ProgramDesc().SerializeToString()),
        ("a.pdmodel", pb.ProgramDesc(blocks=[pb.BlockDesc()]).SerializeToString()),
        ("a.pdmodel", protobuf_program(variable("x"))[:-3]),
        ("a.pdmodel", json_program()),
    ],
)
def test_an_invalid_program_is_refused_with_its_path(file, name, content):
    path = file(name, content)
    with pytest.raises(InitError, match=rf"{path} is no Paddle program: .*encrypted"):
        read_program(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InitError, match="cannot read"):
        read_program(tmp_path)


@given(st.binary() | st.binary().map(lambda tail: b"\x0a" + bytes([len(tail) % 128]) + tail))
def test_no_protobuf_file_does_worse_than_be_refused(tmp_path_factory, content):
    refused_or_read(tmp_path_factory, "a.pdmodel", content)


ANYTHING = st.recursive(
    st.none() | st.integers(-(2**63), 2**63) | st.text() | st.just("pir"),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from([*"#AONTD", "AT", "TT"]), inner)
    ),
)


@given(ANYTHING)
def test_no_json_file_does_worse_than_be_refused(tmp_path_factory, value):
    refused_or_read(tmp_path_factory, "a.json", json_program(value))


def refused_or_read(tmp_path_factory, name, content):
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    try:
        read_program(path)
    except InitError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
