"""Messages of known forms get the same answers as messages that are read field by field."""

from __future__ import annotations

from functools import partial

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from v2_doubles import Adds, Double, shown

from pipeline import Op, RequestOp
from pipeline.errors import PipelineError
from pipeline.frontends.grpc.server import GrpcError
from pipeline.frontends.v2 import V2Error, v2_error
from pipeline.frontends.v2.grpc import inference_service
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.slices import Limits, joined
from pipeline.proto.v2 import codec
from pipeline.proto.v2.codec import add_tensor, read_message, response_pieces
from pipeline.proto.v2.message_forms import cut_message


class Call:
    """A caller that says nothing beside its request."""

    takes_pieces = False

    def time_left(self):
        return None

    def header(self, name):
        return ""

    def headers(self):
        return ()


class Both:
    """The service, and the reader of messages before the same models."""

    def __init__(self, server):
        self.server = server
        self._infer = inference_service(server.models).methods["ModelInfer"]

    async def by_forms(self, message):
        try:
            return await self._infer(message, Call())
        except GrpcError as error:
            return error.status, str(error)

    async def by_fields(self, message):
        try:
            request = read_message(message, Limits())
            return joined(response_pieces(await self.server.models.inference.infer(request)))
        except (PipelineError, V2Error) as error:
            failure = v2_error(error)
            return grpc.StatusCode[failure.kind.grpc_status], str(failure)

    async def same(self, message):
        result, expected = await self.by_forms(message), await self.by_fields(message)
        assert result == expected
        return result


with_both = partial(shown, Both, "both")


class Mixed(Op):
    """Gives what it gets, and a sum."""

    def preprocess(self, input_dicts, data_id, log_id):
        (answer,) = input_dicts.values()
        return {**answer}, False, None, ""

    def postprocess(self, input_dicts, fetched, data_id, log_id):
        with np.errstate(all="ignore"):
            sums = {f"{name} sum": v.sum() for name, v in fetched.items() if not _is_text(v)}
        return {**fetched, **sums}, None, ""


def _is_text(value):
    return not isinstance(value, np.ndarray) or value.dtype == object


def message_of(*arrays, **more):
    request = pb.ModelInferRequest(**{"model_name": "svc", **more})
    for name, array in zip("xyz", arrays, strict=False):
        add_tensor(request.inputs, request.raw_input_contents, name, array)
    return request.SerializeToString()


@with_both()
async def test_requests_of_one_form_are_answered_each_with_its_own(both, monkeypatch):
    for number in range(6):
        if number == 2:
            monkeypatch.setattr(codec, "request_from_message", None)
        x = np.array([number, 0.5], np.float32)
        answer = pb.ModelInferResponse.FromString(
            await both.by_forms(message_of(x, id=f"é{number}"))
        )
        assert answer.id == f"é{number}"
        (raw,) = answer.raw_output_contents
        assert np.frombuffer(raw, np.float32).tolist() == [2 * number, 1]


@pytest.mark.parametrize("request_id", ["", "a", "é", "x" * 127, "x" * 128, "x" * 20000])
@with_both()
async def test_ids_of_any_length(both, request_id):
    for number in range(4):
        x = np.array([number], np.float32)
        assert isinstance(await both.same(message_of(x, id=request_id)), bytes)


@with_both(lambda: Adds("adds", RequestOp()))
async def test_arrays_can_be_written_to(both):
    for _ in range(4):
        assert isinstance(await both.same(message_of(np.float32([1, 2]))), bytes)


def test_an_endless_length_is_not_parsed():
    assert cut_message(b"\x0a" + b"\xff" * 60000) is None
    assert cut_message(b"\x0a\xff\xff\xff\xff\x7f" + b"x" * 100) is None


ARRAYS = st.sampled_from(
    [
        np.float32([1.5, -2]), np.float64([[1], [2]]), np.array([True, False]), np.int8([1, 2, 3]),
        np.array([b"a", b"", b"\xff"], object), np.uint16([]), np.float16([1, np.inf]),
        np.array([b"x" * 200], object), np.zeros((2, 0), np.int64), np.float32([np.nan]),
    ]
)  # fmt: skip


@st.composite
def messages(draw):
    """A request, right as a rule, in which fields may be in any order, twice, or damaged."""
    request = pb.ModelInferRequest(model_name=draw(st.sampled_from(["svc", "mixed", "none", ""])))
    request.model_version = draw(st.sampled_from(["", "1", "2", "x"]))
    request.id = draw(st.sampled_from(["", "1", "id", "é"]))
    for name in draw(st.lists(st.sampled_from("xyz"), max_size=3)):
        add_tensor(request.inputs, request.raw_input_contents, name, draw(ARRAYS))
    if draw(st.booleans()):
        request.parameters["mine"].string_param = "x"
    for name in draw(st.lists(st.sampled_from(["x", "x sum", "nope"]), max_size=2)):
        request.outputs.add(name=name)
    pieces = [request.SerializeToString()]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        more = draw(
            st.sampled_from(
                [
                    pb.ModelInferRequest(id="twice"), pb.ModelInferRequest(model_name="svc"),
                    pb.ModelInferRequest(raw_input_contents=[b"1234"]),
                    pb.ModelInferRequest(inputs=[{"name": "x", "datatype": "FP32", "shape": [1]}]),
                ]
            )
        )  # fmt: skip
        pieces.insert(draw(st.integers(0, 1)), more.SerializeToString())
    if draw(st.integers(0, 4)) == 0:
        pieces.append(draw(st.sampled_from([b"\x3a", b"\x3a\x05a", b"\x08\x01", b"\x1a\x01\xff"])))
    return b"".join(pieces)


@settings(max_examples=300, deadline=None)
@given(message=messages(), data=st.data())
@with_both(lambda: Mixed("mixed", RequestOp()))
async def test_any_message_is_answered_as_if_it_were_read_in_full(both, message, data):
    for _ in range(4):
        await both.same(message)
    for _ in range(4):
        changed = bytearray(message)
        if changed:
            at = data.draw(st.integers(0, len(changed) - 1))
            changed[at : at + data.draw(st.integers(0, 2))] = data.draw(
                st.binary(max_size=2) | st.just(b"")
            )
        for _ in range(3):
            await both.same(bytes(changed))
        await both.same(message)


class Fails(Double):
    def preprocess(self, input_dicts, data_id, log_id):
        raise ValueError("no")


@with_both(lambda: Fails("fails", RequestOp()))
async def test_errors_of_ops_are_returned(both):
    for _ in range(4):
        status, text = await both.by_forms(message_of(np.float32([1])))
        assert status is grpc.StatusCode.INTERNAL
        assert "no" in text
