"""Arrays by their bytes: what is written and read is what protobuf writes and reads."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from golden import FRAMES
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.errors import PayloadTypeError
from pipeline.proto.brpc import arrays
from pipeline.proto.brpc.arrays import (
    Answer,
    AnswerReader,
    ArrayWriter,
    request_bytes,
    tensor_field,
)
from pipeline.proto.brpc.frames import FrameReader, decompress
from pipeline.proto.brpc.general_model import (
    BrpcElemType,
    dtype_of,
    tensor_to_array,
    value_to_tensor,
)
from pipeline.proto.general_model_pb2 import ModelOutput, Request, Response, Tensor

NUMERIC = [kind for kind in BrpcElemType if kind != BrpcElemType.STRING]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4)
NAMES = st.lists(st.text(max_size=8), max_size=3)
LOG_IDS = st.integers(0, 2**64 - 1)
FLOATS = st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)])
ROWS = np.arange(12.0).reshape(3, 4)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[str, str, np.ndarray]:
    dtype = dtype_of(draw(st.sampled_from(NUMERIC)))
    if dtype == ml_dtypes.bfloat16:
        array = draw(hnp.arrays(np.uint16, SHAPES)).view(dtype)
    else:
        array = draw(hnp.arrays(dtype, SHAPES))
    return draw(st.text(max_size=8)), draw(st.text(max_size=8)), array


def read_answer(data: bytes | memoryview) -> Answer:
    """Read an answer twice: the second time the layout is known."""
    read = AnswerReader()
    first, again = read(data), read(data)
    assert first.__class__ is again.__class__
    if isinstance(first, dict):
        assert isinstance(again, dict)
        assert list(first) == list(again)
        assert all(same_bits(first[name], again[name]) for name in first)
    return again


def writer(name: str, alias: str, array: np.ndarray) -> ArrayWriter:
    (kind,) = (kind for kind in NUMERIC if dtype_of(kind) == array.dtype)
    return ArrayWriter(name, alias, kind)


def written(array: np.ndarray) -> bytes:
    return b"".join(writer("x", "y", array).pieces(array))


def answer_of(outputs: dict[str, np.ndarray], engine: str = "general_infer_0") -> Response:
    tensors = [value_to_tensor(f"{alias}_0", alias, array) for alias, array in outputs.items()]
    return Response(outputs=[ModelOutput(tensor=tensors, engine_name=engine)])


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())


# --- writing ----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(inputs(), max_size=3), NAMES, LOG_IDS)
def test_a_request_has_the_bytes_that_protobuf_writes(
    feeds: list[tuple[str, str, np.ndarray]], fetch: list[str], log_id: int
) -> None:
    expected = Request(fetch_var_names=fetch, log_id=log_id)
    for name, alias, array in feeds:
        expected.tensor.append(value_to_tensor(name, alias, array))
    pieces = [writer(name, alias, array).pieces(array) for name, alias, array in feeds]
    assert request_bytes(pieces, fetch, log_id) == expected.SerializeToString()


@settings(deadline=None)
@given(inputs(), st.lists(st.integers(0, 9), max_size=3))
def test_any_tensor_is_written_with_its_offsets(
    feed: tuple[str, str, np.ndarray], lod: list[int]
) -> None:
    expected = Request(tensor=[value_to_tensor(*feed, lod)]).SerializeToString()
    assert request_bytes([tensor_field(*feed, lod)], (), 0) == expected


@pytest.mark.parametrize(
    "array",
    [
        ROWS.T,
        ROWS[:, ::2],
        ROWS[::-1],
        np.asfortranarray(ROWS),
        np.broadcast_to(np.float32(1), (3, 2)),
        np.arange(40)[::-2],
        np.arange(60_000, dtype=np.float32)[::2],  # large, and copied by numpy
        np.arange(60_000, dtype=np.float16).reshape(2, -1),
    ],
)
def test_elements_travel_in_the_order_of_the_shape(array: np.ndarray) -> None:
    expected = Request(tensor=[value_to_tensor("x", "y", array)]).SerializeToString()
    assert request_bytes([writer("x", "y", array).pieces(array)], (), 0) == expected


@pytest.mark.parametrize("count", [1, 64, 65, 1023, 1024, 40_000])
@pytest.mark.parametrize("most", [0x7F, 0x80, 2**14 - 1, 2**21, 2**28 - 1, 2**28, 2**63 - 1])
@pytest.mark.parametrize("least", [0, -1])
def test_integers_of_all_lengths_are_varints(count: int, most: int, least: int) -> None:
    numbers = np.random.default_rng(0).integers(0, most, count, endpoint=True)
    numbers[0] = most
    numbers[-1] = least if count > 1 else most
    expected = Request(tensor=[value_to_tensor("x", "y", numbers)]).SerializeToString()
    assert written(numbers) == expected


def test_arrays_of_many_shapes_and_lengths_are_distinguished() -> None:
    own = ArrayWriter("x", "y", BrpcElemType.INT64)
    for count in (1, 2, 300, 2, 1):
        for value in (1, 1000):
            numbers = np.full((1, count), value)
            expected = Request(tensor=[value_to_tensor("x", "y", numbers)]).SerializeToString()
            assert b"".join(own.pieces(numbers)) == expected


def test_text_has_no_writer_but_a_field() -> None:
    with pytest.raises(ValueError, match="not an array of numbers"):
        ArrayWriter("x", "y", BrpcElemType.STRING)
    text = np.array(["a", "失败"], object)
    expected = Request(tensor=[value_to_tensor("x", "y", text)]).SerializeToString()
    assert b"".join(tensor_field("x", "y", text)) == expected
    with pytest.raises(PayloadTypeError, match="'y'"):
        tensor_field("x", "y", np.array(["\ud800"], object))


def test_a_request_that_protobuf_could_not_read_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrays, "_MAX_BYTES", 100)
    assert len(request_bytes([[bytes(100)]], (), 0)) == 100
    with pytest.raises(ValueError, match="101 bytes"):
        request_bytes([[bytes(100), b"\0"]], (), 0)


# --- reading ----------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        FLOATS.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(max_dims=4, max_side=4))),
        min_size=1,
        max_size=3,
    ),
    st.text(max_size=8),
    LOG_IDS,
    st.booleans(),
)
def test_floats_are_cut_out_as_protobuf_reads_them(
    outputs: dict[str, np.ndarray], engine: str, log_id: int, is_view: bool
) -> None:
    response = answer_of(outputs, engine)
    response.log_id = log_id
    response.profile_time.extend([1, 2**40])
    data = response.SerializeToString()
    answer = read_answer(memoryview(data) if is_view else data)
    assert isinstance(answer, dict)
    assert list(answer) == list(outputs)
    for tensor in response.outputs[0].tensor:
        array = answer[tensor.alias_name]
        assert same_bits(array, tensor_to_array(tensor))
        assert array.flags.writeable
        assert array.flags.owndata


def test_the_arrays_of_two_answers_are_not_the_same_memory() -> None:
    data = answer_of({"x": np.ones((2, 2), np.float32)}).SerializeToString()
    first, second = read_answer(data), read_answer(data)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    first["x"][0] = 7
    assert second["x"].tolist() == [[1, 1], [1, 1]]


@settings(deadline=None)
@given(st.data())
def test_answers_of_all_sorts_are_read_in_turns(data: st.DataObject) -> None:
    read = AnswerReader()
    dtypes = FLOATS.flatmap(lambda dtype: hnp.arrays(dtype, st.sampled_from([(2,), (1, 2), (4,)])))
    for _ in range(data.draw(st.integers(1, 8))):
        outputs = data.draw(st.dictionaries(st.sampled_from("xyz"), dtypes, min_size=1))
        response = answer_of(outputs, data.draw(st.sampled_from(["e", "f"])))
        response.log_id = data.draw(st.integers(0, 3))
        response.err_no = data.draw(st.integers(0, 1))
        result = read(response.SerializeToString())
        if response.err_no:
            assert result == response
        else:
            assert isinstance(result, dict)
            assert list(result) == list(outputs)
            assert all(same_bits(result[name], outputs[name]) for name in outputs)


def test_of_an_answer_with_a_known_layout_only_the_numbers_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = AnswerReader()
    read(answer_of({"x": np.zeros(2), "y": np.zeros(3)}).SerializeToString())
    monkeypatch.setattr(arrays, "_layout", None)
    result = read(answer_of({"x": ROWS[0, :2], "y": ROWS[1, :3]}).SerializeToString())
    assert isinstance(result, dict)
    assert (result["x"].tolist(), result["y"].tolist()) == ([0, 1], [4, 5, 6])


def test_the_number_of_cached_layouts_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_KEPT", 3)
    read = AnswerReader()
    for size in range(1, 20):
        read(answer_of({"x": np.zeros(size)}).SerializeToString())
        assert 0 < len(read._layouts) <= 3
    many = answer_of({str(n): np.zeros(1) for n in range(100)}).SerializeToString()
    assert isinstance(read(many), dict)
    assert len(many) not in read._layouts, "what stands around them takes room"


FINE = answer_of({"x": np.ones(3, np.float32)})
NUMBERS = FINE.outputs[0].tensor[0]


def tensor(**fields: object) -> Tensor:
    changed = Tensor()
    changed.CopyFrom(NUMBERS)
    for name, value in fields.items():
        changed.ClearField(name)
        changed.MergeFrom(Tensor(**{name: value}))
    return changed


def output(*tensors: Tensor) -> Response:
    return Response(outputs=[ModelOutput(tensor=tensors, engine_name="e")])


@pytest.mark.parametrize(
    "response",
    [
        Response(),
        Response(err_no=5, err_msg="no"),
        Response(outputs=FINE.outputs, err_no=5),
        Response(outputs=[*FINE.outputs, *FINE.outputs]),
        output(tensor(lod=[0, 3])),
        output(tensor(alias_name="")),
        output(tensor(shape=[4])),
        output(tensor(shape=[])),
        output(tensor(shape=[-3])),
        output(tensor(shape=[3] + [1] * 64)),
        output(tensor(elem_type=0)),
        output(tensor(elem_type=99)),
        output(tensor(float_data=[], shape=[0])),
        output(tensor(int64_data=[1])),
        output(tensor(float64_data=[1.0])),
        output(tensor(tensor_content=b"x")),
        output(tensor(name="n" * 2000)),
        output(value_to_tensor("x", "x", np.arange(3))),
        output(NUMBERS, value_to_tensor("t", "t", ["text"])),
    ],
    ids=str,
)
def test_other_answers_are_left_to_protobuf(response: Response) -> None:
    assert read_answer(response.SerializeToString()) == response


def test_no_array_of_an_answer_without_tensors() -> None:
    assert read_answer(output().SerializeToString()) in ({}, output())


def test_fields_in_another_order_are_left_to_protobuf() -> None:
    apart = Tensor(float_data=NUMBERS.float_data).SerializeToString()
    around = tensor(float_data=[]).SerializeToString()
    inner = b"\x0a" + bytes([len(apart + around)])
    for body in (around + apart, apart[:1] + b"\x04" + apart[2:6] + b"\x12\x08" + apart[6:]):
        data = inner + body
        whole = b"\x0a" + bytes([len(data)]) + data
        try:
            expected = Response.FromString(whole)
        except DecodeError:
            with pytest.raises(DecodeError):
                read_answer(whole)
        else:
            assert read_answer(whole) == expected


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_damaged_bytes_are_read_as_protobuf_reads_them(
    data: st.DataObject,
) -> None:
    wire = bytearray(
        answer_of({"x": np.ones((2, 3), np.float32), "y": np.ones(2)}).SerializeToString()
    )
    for _ in range(data.draw(st.integers(1, 3))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(wire)))
    answer = bytes(wire[:end]) if data.draw(st.booleans()) else bytes(wire)
    try:
        expected = Response.FromString(answer)
    except DecodeError:
        with pytest.raises(DecodeError):
            read_answer(answer)
        return
    result = read_answer(answer)
    if isinstance(result, Response):
        assert result.SerializeToString() == expected.SerializeToString()
        return
    assert len(expected.outputs) == 1
    assert not expected.err_no
    read = {tensor.alias_name: tensor_to_array(tensor) for tensor in expected.outputs[0].tensor}
    assert result.keys() == read.keys()
    assert all(same_bits(result[alias], read[alias]) for alias in read)


def test_the_answer_of_a_genuine_server_is_read_as_protobuf_reads_it() -> None:
    (frame,) = FrameReader().feed(FRAMES["brpc general ok, gzip reply, all dtypes", "s2c"])
    body = decompress(frame.meta.compress_type, frame.body, 1000)
    assert read_answer(body) == Response.FromString(body)
