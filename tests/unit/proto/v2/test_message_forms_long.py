"""Long messages of v2 in a view: their arrays stay there, and those of answers are views."""

from __future__ import annotations

import numpy as np

from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.slices import Limits
from pipeline.proto.v2.codec import InferResponse, large_request_from_message
from pipeline.proto.v2.message_forms import (
    MessageInputs,
    MessageOutputs,
    cut_message,
    raw_place,
)

_PIXELS = 100_000


def placed(shift: int = 0, **fields: object) -> memoryview:
    """A request of two arrays whose first one is aligned, but for `shift` bytes."""
    request = pb.ModelInferRequest(model_name="m", id="7")
    request.inputs.add(name="x", datatype="FP32", shape=[_PIXELS])
    request.inputs.add(name="y", datatype="UINT8", shape=[3])
    raws = [np.arange(_PIXELS, dtype=np.float32).tobytes(), b"abc"]
    request.raw_input_contents.extend(raws)
    data = request.SerializeToString()
    start = raw_place(memoryview(data))[1]
    room = np.empty(len(data) + 128, np.uint8)
    at = -(room.__array_interface__["data"][0] + start) % 64 + shift
    room[at : at + len(data)] = np.frombuffer(data, np.uint8)
    return room[at : at + len(data)].data


def form_of(view: memoryview) -> MessageInputs:
    head = bytes(view[: raw_place(view)[0]])
    cut = cut_message(head, is_head=True)
    assert cut is not None
    assert (cut.id, cut.raws) == ("7", [])
    result = MessageInputs.of(cut, large_request_from_message(view, Limits()))
    assert result is not None
    assert result.stay
    return result


def test_arrays_of_a_known_form_are_views_of_the_message():
    view = placed()
    arrays = form_of(view).on(view[raw_place(view)[0] :])
    assert arrays is not None
    assert arrays["x"].tolist() == list(range(_PIXELS))
    assert arrays["y"].tobytes() == b"abc"
    assert np.shares_memory(arrays["x"], np.frombuffer(view, np.uint8))
    assert arrays["x"].flags.writeable


def test_an_unaligned_long_message_is_left_to_the_copying_parser():
    view = placed(shift=1)
    assert form_of(view).on(view[raw_place(view)[0] :]) is None


def test_data_of_another_size_do_not_match_the_form():
    view = placed()
    raws = view[raw_place(view)[0] :]
    form = form_of(view)
    assert form.on(raws[:-1]) is None
    assert form.on(raws[:-5]) is None
    assert form.on(memoryview(bytes(raws) + bytes(raws[-5:]))) is None


def test_a_message_without_raw_contents_has_no_place_for_them():
    assert raw_place(pb.ModelInferRequest(model_name="m").SerializeToString()) == (0, 0)
    assert raw_place(b"\x0a") == (0, 0)
    assert raw_place(pb.ModelInferRequest(model_name="m" * 70_000).SerializeToString()) == (0, 0)


def test_a_long_answer_is_pieces_and_its_arrays_are_views():
    x, y = np.ones(_PIXELS, np.float32), np.arange(3)
    response = InferResponse("m", "1", "", {}, {"x": x, "y": y})
    form = MessageOutputs.of(response)
    assert form is not None
    pieces = form.write("7", [x, y])
    assert isinstance(pieces, list)
    (long,) = [piece for piece in pieces if isinstance(piece, memoryview)]
    assert np.shares_memory(np.frombuffer(long, np.uint8), x)
    FromString = pb.ModelInferResponse.FromString(b"".join(pieces))
    assert (FromString.id, FromString.raw_output_contents[0]) == ("7", x.tobytes())
    assert form.write("", [np.ones((2, _PIXELS), np.float32).T, y]) is None
    assert form.write_each(["7"], [x, y]) == [b"".join(pieces)]
    apart = np.ones((_PIXELS, 2), np.float32).T
    assert form.write_each(["7", "8"], [apart, np.stack([y, y])]) is None, "they lie apart"
