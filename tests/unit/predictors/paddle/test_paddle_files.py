"""Which files hold the weights, and that those of another model, or a part, are refused."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InitError
from pipeline.predictors.paddle.program import Program, find_weights, tensor_sizes
from pipeline.proto import paddle_program_pb2 as pb

FLOAT, INT64, NEW = 5, 3, 99


def tensor(*dims, data_type=FLOAT, size=4):
    """A tensor of zeros as Paddle writes it into a file of weights."""
    return head(*dims, data_type=data_type) + bytes(math.prod(dims) * size)


def head(*dims, data_type=FLOAT):
    described = pb.TensorDesc(data_type=data_type, dims=dims).SerializeToString()
    return struct.pack("<IQ", 0, 0) + struct.pack("<Ii", 0, len(described)) + described


def program(**weights):
    return Program({}, weights)


@pytest.fixture
def folder(tmp_path):
    for name in ("a.pdmodel", "__model__"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("name", ["a.pdiparams", "__params__", "fluid_params", "params"])
def test_all_weights_may_lie_in_one_file_of_these_names(folder, name):
    (folder / name).write_bytes(tensor(3, 4) + tensor(2))
    files = find_weights(folder / "a.pdmodel", program(b=2, w=12))
    assert files == (folder / "a.pdmodel", folder / name)


def test_weights_of_the_same_name_are_used_first(folder):
    for name in ("a.pdiparams", "__params__"):
        (folder / name).write_bytes(tensor(2))
    assert find_weights(folder / "a.pdmodel", program(w=2)).weights == folder / "a.pdiparams"


def test_each_weight_may_have_its_file(folder):
    for name in ("b", "w"):
        (folder / name).write_bytes(tensor(2))
    assert find_weights(folder / "__model__", program(b=2, w=2)).weights is None
    (folder / "w").unlink()
    with pytest.raises(InitError, match=r"are missing: w$"):
        find_weights(folder / "__model__", program(b=2, w=2))
    (folder / "w").write_bytes(tensor(3))
    with pytest.raises(InitError, match=r"w holds the weights of another model"):
        find_weights(folder / "__model__", program(b=2, w=2))


def test_many_missing_weights_are_counted(folder):
    with pytest.raises(InitError, match=r"w7 and 4 more"):
        find_weights(folder / "__model__", program(**{f"w{n}": 1 for n in range(12)}))


def test_a_program_without_weights_needs_no_file_of_them(folder):
    assert find_weights(folder / "a.pdmodel", program()).weights == folder / "a.pdiparams"


def test_missing_weights_are_named(folder):
    with pytest.raises(InitError, match=r"a\.pdmodel has no weights: put a\.pdiparams beside it"):
        find_weights(folder / "a.pdmodel", program(w=2))


@pytest.mark.parametrize("content", [b"", tensor(2), tensor(3) + tensor(2), tensor(4) * 3])
def test_weights_of_another_model_are_refused(folder, content):
    (folder / "a.pdiparams").write_bytes(content)
    with pytest.raises(InitError, match=r"another model: \d tensors of .* has 2 of 8"):
        find_weights(folder / "a.pdmodel", program(b=4, w=4))


def test_sizes_that_the_program_leaves_open_are_not_compared(folder):
    (folder / "a.pdiparams").write_bytes(tensor(2))
    assert find_weights(folder / "a.pdmodel", program(w=-2)).weights


def test_types_that_are_newer_than_this_reader_are_left_to_paddle(folder):
    (folder / "a.pdiparams").write_bytes(tensor(2, data_type=NEW))
    assert tensor_sizes(folder / "a.pdiparams") is None
    assert find_weights(folder / "a.pdmodel", program(w=5)).weights


DIMS = st.lists(st.integers(0, 4), max_size=4)


@given(st.lists(st.tuples(DIMS, st.sampled_from([(FLOAT, 4), (INT64, 8)]))))
def test_the_sizes_of_any_tensors_are_read(tmp_path_factory, tensors):
    path = tmp_path_factory.getbasetemp() / "weights"
    path.write_bytes(b"".join(tensor(*dims, data_type=t, size=size) for dims, (t, size) in tensors))
    assert tensor_sizes(path) == [math.prod(dims) for dims, _ in tensors]


@given(st.binary())
def test_no_file_of_weights_does_worse_than_be_refused(tmp_path_factory, tail):
    path = tmp_path_factory.getbasetemp() / "weights"
    path.write_bytes(tensor(2)[:16] + tail)
    try:
        tensor_sizes(path)
    except InitError as error:
        assert "not a complete file" in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize("cut", range(1, 36, 5))
def test_weights_that_were_cut_off_are_refused(folder, cut):
    (folder / "a.pdiparams").write_bytes((tensor(2) * 2)[:-cut])
    with pytest.raises(InitError, match=r"not a complete file|another model"):
        find_weights(folder / "a.pdmodel", program(b=2, w=2))


@pytest.mark.parametrize(
    "dims", [(-5, 4), (2**62, 2**62), (-(2**62),)], ids=["negative", "huge", "backwards"]
)
def test_sizes_that_cannot_be_are_refused(folder, dims):
    (folder / "a.pdiparams").write_bytes(head(*dims))
    with pytest.raises(InitError, match="not a complete file"):
        tensor_sizes(folder / "a.pdiparams")
