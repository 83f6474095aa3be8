"""Large messages give what small ones give: the same cases through both, with tiny slices."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import orjson
import pytest
from google.protobuf.message import DecodeError

from pipeline import Op, RequestOp, ResponseOp
from pipeline.data import ChannelData
from pipeline.errors import PackageError, PayloadTypeError, TooLargeError
from pipeline.proto import codec, slices
from pipeline.proto.inference_v2_pb2 import ModelInferRequest, ModelInferResponse
from pipeline.proto.pipeline import array_repr, array_text, blocks, json_long, shapes
from pipeline.proto.pipeline import json as jsonpb
from pipeline.proto.pipeline import response as large
from pipeline.proto.pipeline.response import pack_large
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.slices import Limits
from pipeline.proto.v2 import codec as v2
from pipeline.proto.v2.json import read_request, write_response
from pipeline.proto.v2.raw import array_to_raw, raw_to_array
from pipeline.workers.shm.arena import Arena
from pipeline.workers.shm.server_memory import ServerMemory

LIMITS = Limits()
RNG = np.random.default_rng(0)
VALUES = {
    "f4": RNG.random(50).astype("f4"),
    "f8": RNG.random((3, 4)),
    "i8": RNG.integers(-(2**62), 2**62, 40),
    "i4": RNG.integers(-(2**31), 2**31, 30).astype("i4"),
    "u1": RNG.integers(0, 255, 100).astype("u1"),
    "i1": RNG.integers(-128, 127, 100).astype("i1"),
    "i2": RNG.integers(-300, 300, 50).astype("i2"),
    "u2": np.arange(65000, 65100).astype("u2"),
    "u8": np.arange(100).astype("u8"),
    "b": RNG.random(30) > 0.5,
    "c8": (RNG.random(20) + 1j).astype("c8"),
    "c16": RNG.random(10) + 2j,
    "f2": RNG.random(33).astype("f2"),
    "bf": RNG.random(33).astype(ml_dtypes.bfloat16),
    "bytes": b"abcdefg" * 20,
    "text": "hello",
    "texts": ["a", "b"] * 10,
    "none": np.zeros((0, 3)),
    "odd": np.array([np.inf, np.nan, -np.inf, 1.0]),
    "strided": RNG.random((6, 8))[:, ::2],
    "column": np.arange(90, dtype="i4").reshape(30, 3)[:, 1],
    "backwards": np.arange(40)[::-1],
    "fortran": np.asfortranarray(RNG.random((5, 7))),
    "x": RNG.random(9),
    "x.lod": np.array([0, 3]),
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Bounds so small that every case takes the way of large ones, in many slices."""
    monkeypatch.setattr(json_long, "SHORT_BYTES", 8)
    monkeypatch.setattr(json_long, "_WINDOW_BYTES", 8)
    monkeypatch.setattr("pipeline.proto.v2.json.SHORT_BYTES", 0)
    monkeypatch.setattr(blocks, "_LONG", 3)
    monkeypatch.setattr(large, "SHORT_BYTES", 0)
    for module in (slices, array_repr):
        monkeypatch.setattr(module, "SLICE", 3)
    monkeypatch.setattr("pipeline.proto.v2.json_data.SLICE", 3)
    monkeypatch.setattr("pipeline.proto.v2.raw.SLICE", 3)


def outcome(read):
    try:
        return read()
    except PackageError as error:
        return str(error)


# JSON of the pipeline ---------------------------------------------------------------------------

BODIES = [
    rb'{"key":["a","b,\"c","d\\",",","\\\",,"],"value":["1","2","3","4","\u00e9"]}',
    b'{"tensors":[{"name":"x","elem_type":1,"elemType":2,"float_data":[1,2.5,"NaN",1e5,4]}]}',
    b'{"tensors":[{"elemType":2,"elem_type":1,"int_data":[1,2.0,"3",100000,-4]}]}',
    b'{"tensors":[{"int64_data":["9223372036854775807",1,-5,2.0]}]}',
    b'{"tensors":[{"byte_data":"aGVsbG8gd29ybGQ="},{"str_data":["q","[","]","{,}"]}]}',
    b'{"tensors":[{"bool_data":[true,false,true,true]}],"logid":"77"}',
    b'  { "key" : [ "a" , "b" , "ccccccc" ] , "value":[ "1","2" , "3"  ] }  ',
    b'{"zz":[[],[[1,{"a":[1,2]}]]],"key":["aaaaaaaaaaaaaaaaaaaaa,aaaaaaa"],"value":["x"]}',
    b'{"key":["a","b"],"key":["c"],"value":null,"tensors":null}',
    b'{"key":[        ],"tensors":[]}',
    b'{"name":"zz","method":"kk","clientip":"1.1.1.1"}',
    b'{"key":"x"}',
    b'{"key":[1,2,3,4,5]}',
    b'{"key":["a","b","c",["d"],"e"]}',
    b'{"tensors":[{"float_data":[1,2,3,4,"x",5]}]}',
    b'{"tensors":[{"float_data":[1e40,1,2]}]}',
    b'{"tensors":[{"int_data":[1,2,3,4,5,2147483648]}]}',
    b'{"tensors":[{"float_data":[true,1,1,1]}]}',
    b'{"tensors":{"a":1}}',
    b'{"clientip":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28]}',
    b'{"tensors":[{"elem_type":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24]}]}',
    b"[1,2,3]",
]


@pytest.mark.parametrize("body", BODIES)
def test_large_json_is_the_request_that_small_json_is(body):
    small = outcome(lambda: jsonpb.request_from_json(body, "n", "m"))
    assert outcome(lambda: jsonpb.large_request_from_json([body], "n", "m", LIMITS)) == small


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"key":["a",]}', "the request is not JSON"),
        (b'{"zz":"\xff"}', "the request is not JSON: str is not valid UTF-8"),
        (b"[" * 5000, "the request is not JSON"),
        (b'{"tensors":[{},5,{}]}', r"tensors\[1\] must be an object"),
        (b'{"key":["a","b",{"c":1,"d":2},"e"]}', r"key\[2\] must be a string"),
    ],
)
def test_large_json_that_is_wrong_is_refused(body, text):
    with pytest.raises(PackageError, match=text):
        jsonpb.large_request_from_json([body], "n", "m", LIMITS)


def test_more_strings_than_allowed_are_refused_by_the_keys_name():
    body = orjson.dumps({"key": ["a"] * 50, "value": ["b"] * 50})
    with pytest.raises(TooLargeError, match=r"more than max_text_elements \(20\)"):
        jsonpb.large_request_from_json([body], "n", "m", Limits(text_elements=20))


def test_more_tensors_than_a_message_may_have_are_not_made(monkeypatch):
    monkeypatch.setattr(json_long, "MAX_TENSORS", 3)
    with pytest.raises(TooLargeError, match="more than 3 objects in its tensors"):
        jsonpb.large_request_from_json([b'{"tensors":[{},{},{},{}]}'], "n", "m", LIMITS)


# JSON of the v2 protocol ------------------------------------------------------------------------


def body_of(datatype, shape, data, **more):
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
    return orjson.dumps({"inputs": [tensor], **more})


V2_BODIES = [
    body_of("FP32", [5], [1, 2.5, 3, -4, 1e9]),
    body_of("FP32", [2, 3], [[1, 2, 3], [4, 5, 6]], id="7"),
    body_of("INT64", [2, 2, 2], [[[1, 2], [3, 4]], [[5, 6], [7, 2**60]]]),
    body_of("BYTES", [2, 2], [["a,]", '"['], ["\\", "{}"]]),
    body_of("BYTES", [4], ["é", "", ",", "xxxxxxxxxxxxxxxxxxxx"]),
    body_of("BOOL", [3], [True, False, True]),
    body_of("UINT8", [3], [1.0, 2, 255]),
    body_of("UINT8", [3], [1, 2, 256]),
    body_of("INT32", [6], [1, 2, 3, 4, "5", 6]),
    body_of("FP32", [7], [1, 2, 3]),
    body_of("FP32", [2], [1, 2, 3, 4, 5]),
    body_of("FP32", [3], [1, 1e39, 2]),
    body_of("FP16", [3], [1, 2, 3]),
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[4],"data":[1,NaN,-Infinity,2]}]}',
    b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[3],"data":["NaN","a",""]}]}',
]


@pytest.mark.parametrize("body", V2_BODIES)
def test_large_v2_json_is_the_request_that_small_json_is(body, monkeypatch):
    result = outcome(lambda: read_request(body))
    monkeypatch.setattr("pipeline.proto.v2.json.SHORT_BYTES", 10**6)
    small = outcome(lambda: read_request(body))
    if isinstance(small, str):
        assert result == small
        return
    assert (result.id, result.parameters) == (small.id, small.parameters)
    assert result.inputs["x"].dtype == small.inputs["x"].dtype
    np.testing.assert_array_equal(result.inputs["x"], small.inputs["x"])


@pytest.mark.parametrize("data", [[[1, 2], [3]], [[1], 2, 3], [1, [2, 3]], [[1, 2, 3], []]])
def test_long_uneven_lists_are_refused(data):
    with pytest.raises(PackageError, match="side by side"):
        read_request(body_of("FP32", [3], data))


def test_more_bytes_elements_than_allowed_are_refused_in_any_form():
    limits = Limits(text_elements=2)
    with pytest.raises(TooLargeError, match="max_text_elements"):
        read_request(body_of("BYTES", [3], ["a", "b", "c"]), limits=limits)
    with pytest.raises(TooLargeError, match="max_text_elements"):
        raw_to_array("BYTES", [3], b"\0\0\0\0" * 3, limits)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(20, dtype="i8"),
        np.array([1.5, np.nan, np.inf, -np.inf, 2]),
        np.array([b"a", "é", b""] * 4, object),
        np.array([True, False] * 5),
    ],
)
def test_many_elements_are_written_as_a_few_are(array, monkeypatch):
    response = v2.InferResponse("m", outputs={"x": array})
    result = write_response(response)
    monkeypatch.setattr("pipeline.proto.v2.json_data.SLICE", 10**6)
    assert result == write_response(response)


def test_an_answer_with_too_much_json_names_the_key_and_the_alternative():
    response = v2.InferResponse("m", outputs={"x": np.arange(50)})
    with pytest.raises(PackageError, match=r"max_json_bytes \(40 bytes\).*'binary_data'"):
        write_response(response, (), Limits(json_bytes=40))


# protobuf ---------------------------------------------------------------------------------------


def response_op():
    op = ResponseOp(Op("a", RequestOp()))
    op.set_pack_format(True)
    return op


def test_a_large_answer_is_the_same_bytes_and_the_same_json():
    op, data = response_op(), ChannelData(1, payload=VALUES)
    small, result = op.pack_response_package(data), pack_large(VALUES, False, True, LIMITS)
    assert result.to_wire() == small.SerializeToString()
    assert result.message == small
    assert jsonpb.large_response_to_json(result, LIMITS) == jsonpb.response_to_json(small)


def test_a_large_answer_that_cannot_be_packed_is_an_error():
    answer = pack_large({"x": 2**70}, False, True, LIMITS)
    assert isinstance(answer, Response)
    assert "tensor 'x'" in answer.err_msg
    with pytest.raises(PayloadTypeError):
        large.large_tensor("x", np.arange(9).astype("M8[s]"), None)


def request():
    tensors = response_op().pack_response_package(ChannelData(1, payload=VALUES)).tensors
    return Request(key=["k"] * 9, value=["v"] * 9, logid=5, tensors=tensors)


def plain(value):
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.flags.writeable, value.tobytes()
    return value


def unpacked(request):
    payload, log_id, _, _ = RequestOp().unpack_request_package(request)
    return log_id, {name: plain(value) for name, value in payload.items()}


def sent(payload):
    """A message, as it was received in shared memory; the first of its tensors is aligned."""
    tensors = [codec.numpy_to_tensor(name, value) for name, value in payload.items()]
    message = Request(tensors=tensors).SerializeToString()
    memory = ServerMemory(Arena(2**24))
    place = memory.place(len(message), message.find(payload["x"].tobytes()))
    place[:] = np.frombuffer(message, np.uint8)
    return memory, place.data


def test_tensors_of_a_large_request_stay_where_they_were_received():
    """As arrays of their own, or as views for bytes: none is copied for a worker process."""
    floats, whole = np.arange(2**15, dtype=np.float32), np.arange(2**14)
    values = {"x": floats, "raw": bytes(2**15), "npy": shapes.array_to_npy(whole)}
    memory, message = sent(values)
    payload, *_ = RequestOp().unpack_request_package(large.read_request(message, LIMITS))
    assert type(payload["raw"]) is memoryview
    payload["x"] += 1
    kept = memory.serialize({"x": payload["x"], "raw": payload["raw"]})
    assert memory.used == 1
    result = kept.open()
    assert (result["raw"], result["x"].tolist()) == (values["raw"], (floats + 1).tolist())
    assert payload["npy"].tolist() == whole.tolist()
    assert payload["npy"].flags.aligned
    del payload, message, kept, result
    assert memory.used == 0
    memory.close()


def test_tensors_in_memory_that_is_not_to_be_written_to_are_copied():
    floats = np.arange(2**15, dtype=np.float32)
    message = Request(tensors=[codec.numpy_to_tensor("x", floats)]).SerializeToString()
    payload, *_ = RequestOp().unpack_request_package(large.read_request(message, LIMITS))
    payload["x"] += 1
    again, *_ = RequestOp().unpack_request_package(large.read_request(message, LIMITS))
    assert again["x"].tolist() == floats.tolist()


def test_a_large_request_is_unpacked_as_a_small_one():
    message = request()
    result = large.read_request(message.SerializeToString(), LIMITS)
    assert unpacked(result) == unpacked(message)
    assert (result.name, result.logid) == ("", 5)


def test_a_damaged_large_request_equals_protobufs_result():
    """Bytes changed, taken out and put in: an error in both, or the same in both."""
    message, rng = request().SerializeToString(), np.random.default_rng(1)
    for _ in range(400):
        broken = bytearray(message)
        for at in rng.integers(0, len(broken) - 4, 2):
            kind = rng.integers(3)
            broken[at : at + kind] = rng.bytes(int(rng.integers(1, 3)))
        verdict = _verdict(lambda data: large.read_request(data, LIMITS), bytes(broken))
        assert verdict == _verdict(Request.FromString, bytes(broken))


def _verdict(read, data):
    try:
        return unpacked(read(data))
    except (PackageError, DecodeError):
        return "refused"


def test_more_fields_than_text_elements_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(blocks, "_FIELDS_AT_ONCE", 4)
    with pytest.raises(TooLargeError, match="max_text_elements"):
        large.read_request(b"\x0a\x00" * 100, Limits(text_elements=10))


def test_small_numbers_that_would_take_much_memory_are_refused():
    message = Request(tensors=[{"name": "x", "int64_data": [1] * 100}]).SerializeToString()
    result = large.read_request(message, Limits(message_bytes=400))
    with pytest.raises(PackageError, match=r"800 bytes.*max_message_bytes \(400\)"):
        RequestOp().unpack_request_package(result)


@pytest.mark.parametrize(
    ("datatype", "name"),
    [
        ("FP32", "f4"),
        ("FP64", "f8"),
        ("INT64", "i8"),
        ("UINT8", "u1"),
        ("INT8", "i1"),
        ("UINT64", "u8"),
        ("BOOL", "b"),
    ],
)
@pytest.mark.parametrize("shape", [None, [3], [1000]])
def test_large_contents_are_read_as_small_ones(datatype, name, shape):
    message = ModelInferRequest(model_name="m", id="7")
    array = VALUES[name]
    tensor = message.inputs.add(name="x", datatype=datatype, shape=shape or array.shape)
    getattr(tensor.contents, v2._CONTENTS[datatype][0]).extend(array.ravel().tolist())
    small = outcome(lambda: plain(v2.request_from_message(message).inputs["x"]))
    data = message.SerializeToString()
    assert outcome(lambda: plain(v2.large_request_from_message(data, LIMITS).inputs["x"])) == small


def test_large_raw_contents_are_read_as_small_ones():
    message = ModelInferRequest(model_name="m")
    for name, datatype, raw in (
        ("x", "FP32", VALUES["f4"].tobytes()),
        ("y", "BYTES", array_to_raw(np.array([b"a", b"bc"], object))),
        ("z", "FP64", b""),
    ):
        size = {"FP32": 50, "BYTES": 2, "FP64": 0}[datatype]
        message.inputs.add(name=name, datatype=datatype, shape=[size])
        message.raw_input_contents.append(raw)
    small = v2.request_from_message(message).inputs
    inputs = v2.large_request_from_message(message.SerializeToString(), LIMITS).inputs
    assert {name: plain(array)[:3] for name, array in inputs.items()} == {
        name: plain(array)[:3] for name, array in small.items()
    }
    for name, array in small.items():
        assert inputs[name].tolist() == array.tolist()


def test_a_large_v2_answer_is_the_same_message():
    outputs = {"x": VALUES["f4"], "s": VALUES["strided"], "b": np.array([b"a", b"bc"], object)}
    response = v2.InferResponse("m", "1", "id", {"a": 1}, outputs)
    message = ModelInferResponse(model_name="m", model_version="1", id="id")
    message.parameters["a"].int64_param = 1
    for name, array in outputs.items():
        v2.add_tensor(message.outputs, message.raw_output_contents, name, array)
    whole = message.SerializeToString(deterministic=True)
    assert b"".join(v2.response_pieces(response)) == whole


# BYTES and text ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 3])
def test_elements_of_one_length_are_read_as_others(size):
    elements = [bytes([number % 3]) * size for number in range(100)]
    raw = array_to_raw(np.array(elements, object) if size else np.array([b""] * 100, object))
    assert raw_to_array("BYTES", [100], raw).tolist() == elements
    odd = array_to_raw(np.array([*elements, b"longer"], object))
    assert raw_to_array("BYTES", [101], odd).tolist() == [*elements, b"longer"]


SHAPES = [
    (8,),
    (100,),
    (3, 5),
    (4, 30),
    (2, 3, 4),
    (2, 2, 2, 3),
    (1, 1, 50),
    (2, 3, 1, 4),
    (3, 200),
]
MAKERS = {
    "int64": lambda shape: RNG.integers(-300, 300, shape),
    "uint8": lambda shape: RNG.integers(0, 255, shape).astype("u1"),
    "float64": lambda shape: RNG.random(shape) * 100 + 1,
    "float32": lambda shape: (RNG.random(shape) * 10 + 1).astype("f4"),
    "powers": lambda shape: np.exp(RNG.random(shape) * 40 - 20).astype("f4"),
    "bool": lambda shape: RNG.random(shape) > 0.5,
    "zeros": np.zeros,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_text_of_many_elements_is_numpys(shape, make):
    array = make(shape)
    with np.printoptions(threshold=10**6):
        assert array_repr.quick_repr(array) == repr(array)


def test_text_that_is_too_long_is_refused_before_it_is_made():
    with pytest.raises(TooLargeError, match=r"max_json_bytes \(100 bytes\): ask for tensors"):
        array_text.numpy_to_text(np.zeros(10**9 // 1000, "u1"), Limits(json_bytes=100))
    with pytest.raises(TooLargeError, match="max_text_elements"):
        array_text.numpy_to_text(["a"] * 10, Limits(text_elements=9))


def test_a_text_message_is_parsed_without_a_copy():
    seen: list[bytes] = []

    class Kind:
        @staticmethod
        def FromString(data: bytes) -> Request:
            seen.append(data)
            return Request.FromString(data)

    message = Request(key=["x"], value=["text" * 50]).SerializeToString()
    read = blocks.hollow(message, Kind, large._REQUEST_SHAPE, LIMITS)
    assert read.value == ["text" * 50]
    assert seen[0] is message


def test_long_text_of_an_answer_is_written_in_slices_as_protobuf_writes_it(monkeypatch):
    lengths: list[int] = []

    def joined(pieces):
        lengths.extend(map(len, pieces))
        return slices.joined(pieces)

    monkeypatch.setattr(large, "joined", joined)
    monkeypatch.setattr(large, "SLICE_BYTES", 7)
    head = Response(err_msg="m", key=["a", "b", "c"], value=["é€𝄞x" * 40, "", "plain" * 40])
    assert large.LargeResponse(head, []).to_wire() == head.SerializeToString()
    assert max(lengths) <= 4 * 7
