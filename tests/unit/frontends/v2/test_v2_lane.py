"""The lane for inference requests: whatever is sent, it answers as the routes do, or not at all."""

from __future__ import annotations

import asyncio
import json
import struct
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from v2_doubles import Adds, shown

from pipeline import Op, RequestOp
from pipeline.data import Tensor
from pipeline.engine.models import ModelState
from pipeline.engine.offload import Offload
from pipeline.engine.request import UnarySink
from pipeline.frontends.http.routes import HandOverError, WebRequest, WebResponse
from pipeline.frontends.v2.http import InferenceRoutes
from pipeline.proto.slices import Limits
from pipeline.proto.v2 import forms

LENGTH = b"inference-header-content-length"
PATH = "/v2/models/svc/infer"


class Sink(UnarySink):
    def __init__(self):
        self.answer = asyncio.get_running_loop().create_future()

    def end(self, answer):
        self.answer.set_result(answer)


class Both:
    """The lane and the routes, before one engine."""

    def __init__(self, server):
        self.server = server
        limits = Limits()
        self.routes = InferenceRoutes(server.models, Offload(threads=0), limits)
        self.in_lane = 0

    async def by_routes(self, body, path, headers):
        async def read():
            return body

        request = WebRequest("POST", path, path, "", headers, read, None)
        return await self.routes.endpoint(request)(request)

    def in_line(self, path, headers):
        return self.routes.inference.in_line(WebRequest("POST", path, path, "", headers, None))

    async def by_lane(self, body, path, headers):
        """None: it is left to the routes."""
        endpoint = self.in_line(path, headers)
        if endpoint is None:
            return None
        sink = Sink()
        try:
            endpoint.begin(body, sink)
        except HandOverError:
            return None
        except Exception as error:
            answer = error
        else:
            answer = await sink.answer
        reply = endpoint.reply(answer, None)
        if isinstance(reply, bytes):
            return WebResponse(body=reply)
        return reply if isinstance(reply, WebResponse) else await reply

    async def same(self, body, length=None, path=PATH, **headers):
        """Ask both; return the reply of the lane, None if it has left it to the routes."""
        said = {name.encode(): value for name, value in headers.items()}
        if length is not None:
            said[LENGTH] = b"%d" % length
        result = await self.by_lane(body, path, said)
        expected = await self.by_routes(body, path, said)
        if result is not None:
            self.in_lane += 1
            assert result == expected
        return result


with_both = partial(shown, Both, "both")


class Mixed(Op):
    """Gives its inputs back, some of them in other forms."""

    input_tensors = (
        Tensor("x", "FP32", (-1,)),
        Tensor("n", "INT16", (2, -1)),
        Tensor("b", "BOOL", (-1,)),
        Tensor("t", "BYTES", (-1,)),
    )
    output_tensors = (
        Tensor("x", "FP32", (-1,)),
        Tensor("n", "INT16", (2, -1)),
        Tensor("b", "BOOL", (-1,)),
        Tensor("t", "BYTES", (-1,)),
        Tensor("sum", "FP32", (1,)),
    )

    def preprocess(self, input_dicts, data_id, log_id):
        (answer,) = input_dicts.values()
        return {**answer}, False, None, ""

    def postprocess(self, input_dicts, fetched, data_id, log_id):
        with np.errstate(all="ignore"):
            return {**fetched, "sum": fetched["x"].sum()}, None, ""


def binary_body(x, request_id="", **more):
    """Return a request with 16-bit and other numbers as bytes, and the length of its JSON."""
    fields, raw = tensor("x", "FP32", np.array(x, np.float32), is_binary=True)
    head = {"id": request_id} if request_id else {}
    text = json.dumps({**head, "inputs": [fields], **more}).encode()
    return text + raw, len(text)


def json_body(x, request_id="", **more):
    fields, _ = tensor("x", "FP32", np.array(x, np.float32), is_binary=False)
    head = {"id": request_id} if request_id else {}
    return json.dumps({**head, "inputs": [fields], **more}).encode(), None


BODIES = pytest.mark.parametrize("body_of", [binary_body, json_body])
OUTS = pytest.mark.parametrize("output", [{}, {"parameters": {"binary_data_output": True}}])


@BODIES
@OUTS
@with_both()
async def test_requests_of_one_form_are_answered_each_with_its_own(both, body_of, output):
    for number in range(5):
        body, length = body_of([number, 0.5], f"id{number}", **output)
        reply = await both.same(body, length)
        size = dict(reply.headers).get(LENGTH)
        assert (size is not None) is bool(output)
        head = json.loads(reply.body[: int(size)] if size else reply.body)
        assert head["id"] == f"id{number}"
        y = np.frombuffer(reply.body[int(size) :], np.float32) if size else head["outputs"][0]
        assert (y if size else np.array(y["data"])).tolist() == [2.0 * number, 1.0]
    assert both.in_lane == 5


@BODIES
@with_both()
async def test_the_third_request_of_a_form_is_not_read_again(both, body_of, monkeypatch):
    def read(*args, **more):
        raise AssertionError("it is read again")

    for number in range(2):
        await both.same(*body_of([number, 1]))
    monkeypatch.setattr(forms, "read_request", read)
    for number in range(2):
        await both.same(*body_of([number, 2], ""))
        with pytest.raises(AssertionError, match="read again"):
            await both.by_lane(*sent(body_of([number, 2, 3])))


@BODIES
@with_both(lambda: Adds("adds", RequestOp()))
async def test_arrays_can_be_written_to(both, body_of):
    for _ in range(4):
        assert await both.same(*body_of([1, 2]))


@with_both()
async def test_the_id_of_a_request_may_be_anywhere_in_its_json(both):
    for request_id in ("a", "b", "a", "b", "", "é", 'q"', "\\", "x" * 5000):
        for number in range(3):
            fields, raw = tensor("x", "FP32", np.float32([number]), is_binary=True)
            for more in ({"id": "z"}, {"parameters": {}}, {}):
                first = json.dumps({"id": request_id, "inputs": [fields], **more}).encode()
                twice = first[:-1] + b', "id": "twice"}'
                last = json.dumps({"inputs": [fields], "id": request_id}).encode()
                for text in (first, twice, last):
                    assert await both.same(text + raw, len(text))


@with_both()
async def test_a_damaged_body_of_a_known_form_is_left_to_the_routes(both):
    good, length = binary_body([1, 2], "7")
    for _ in range(3):
        assert await both.same(good, length)
    for body, size in (
        (good + b"x", length), (good[:-1], length), (good, length - 1), (good, length + 1),
        (good, len(good) + 1), (good, 0), (good.replace(b"7", b"\n"), length),
        (good.replace(b"7", b"\xff"), length), (good[:length], length), (b"", None),
    ):  # fmt: skip
        assert await both.same(body, size) is None
    good, _ = json_body([1, 2], "7")
    for _ in range(3):
        assert await both.same(good)
    for result, put in (
        (b"1.0", b"true"), (b"1.0", b"[1.0]"), (b"1.0", b'"1"'), (b"1.0", b"01"),
        (b"1.0", b"1e39"), (b"1.0", b""), (b"1.0", b"1.0, 2.0"), (b"1.0", b"]"),
        (b"[1.0, 2.0]", b"\0"), (b"[1.0, 2.0]", b"[]"), (b"]", b"}"), (b"7", b"\x1f"),
    ):  # fmt: skip
        assert put in (changed := good.replace(result, put, 1))
        assert await both.same(changed) is None
    assert (await both.same(good.replace(b"1.0", b"NaN"))).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {LENGTH: b"0"}, {LENGTH: b"-1"}, {LENGTH: b"+1"}, {LENGTH: b" 1"}, {LENGTH: b"1 "},
        {LENGTH: b"0001"}, {LENGTH: b"x"}, {LENGTH: b""}, {b"accept-encoding": b"gzip"},
        {b"accept-encoding": b"*"},
    ],
)  # fmt: skip
@with_both()
async def test_unusual_headers_are_left_to_the_routes(both, headers):
    assert both.in_line(PATH, {b"content-length": b"4", **headers}) is None
    assert both.in_line(PATH, {b"accept-encoding": b"identity, gzip;q=0"}) is not None


@pytest.mark.parametrize(
    "path",
    ["/v2/models/nope/infer", "/v2/models/svc", "/v2/models/svc/ready", "/v2/models/svc/infer/",
     "/v2/models/svc/versions/x/infer", "/svc/prediction", "/v2/models//infer",
     "/v2/models/svc/versions/01/infer", "/v2/models/svc/versions/0/infer"],
)  # fmt: skip
@with_both()
async def test_other_paths_are_left_to_the_routes(both, path):
    assert both.in_line(path, {}) is None


@pytest.mark.parametrize("path", ["/v2/models/svc/versions/1/infer", "/v2/models/double/infer"])
@with_both()
async def test_a_version_and_an_op_have_the_lane_too(both, path):
    for number in range(4):
        assert (await both.same(*binary_body([number]), path=path)).status == 200
    assert await both.same(*binary_body([1]), path="/v2/models/svc/versions/2/infer") is None


@with_both()
async def test_an_unloaded_model_is_not_requested(both):
    for number in range(4):
        assert await both.same(*binary_body([number]))
    for state in (ModelState.LOADING, ModelState.READY, ModelState.UNLOADING):
        for entry in both.server.registry.entries():
            entry.advance(state)
    assert await both.same(*binary_body([5])) is None


@with_both()
async def test_the_form_of_large_requests_is_learned_again_after_a_change_of_models(both):
    """Otherwise all later requests would take the routes, as long as the server runs."""
    whole, length = binary_body(np.ones(20_000))
    body, fields = memoryview(bytearray(whole)), {LENGTH: b"%d" % length}
    fields[b"content-length"] = b"%d" % len(whole)
    for _ in range(2):
        assert await both.by_lane(body, PATH, fields) is None
        expected = await both.by_routes(body, PATH, fields)
    for _ in range(2):
        assert await both.by_lane(body, PATH, fields) == expected
        both.server.registry.changes += 1
        assert await both.by_lane(body, PATH, fields) is None
        await both.by_routes(body, PATH, fields)


@BODIES
@with_both()
async def test_the_memory_of_forms_is_bounded(both, body_of):
    for number in range(1500):
        for _ in range(2 if number % 3 else 1):
            await both.by_lane(*sent(body_of([1], parameters={"mine": number})))
    (known,) = both.routes.inference._forms.values()
    assert 0 < len(known._memory.known) <= forms._MOST_FORMS
    assert len(known._memory._seen) <= forms._MOST_SEEN
    body = body_of([1], parameters={"mine": "x" * 5000})
    for _ in range(4):
        assert await both.same(*body)
    assert all(len(key) < 5000 for key in known._memory.known)


def sent(body):
    data, length = body
    return data, PATH, {} if length is None else {LENGTH: b"%d" % length}


@with_both()
async def test_a_full_server_answers_503(both):
    for number in range(3):
        assert await both.same(*binary_body([number]))
    both.server.engine.executor._admission.queue_size = 0
    both.server.engine.executor._admission.is_open = False
    assert (await both.same(*binary_body([5]))).status == 503


# Bodies -------------------------------------------------------------------------------------

FLOATS = st.lists(st.floats(width=32), min_size=0, max_size=5)
SHORTS = st.lists(st.integers(-(2**15), 2**15 - 1), min_size=1, max_size=3)
TEXTS = st.lists(st.text(max_size=4) | st.sampled_from(["]", '"', "\\", "\0", "é"]), max_size=3)
ODD = st.sampled_from(
    [None, True, 1.5, -1, 2**70, "x", "", [], [[]], {}, {"a": 1}, [1], [1.0], ["1"], "1e5", "\0"]
)


def tensor(name, datatype, array, is_binary):
    fields = {"name": name, "shape": list(array.shape), "datatype": datatype}
    if not is_binary:
        return {**fields, "data": array.ravel().tolist()}, b""
    if datatype == "BYTES":
        texts = [element.encode() for element in array.ravel()]
        raw = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    else:
        raw = array.tobytes()
    return {**fields, "parameters": {"binary_data_size": len(raw)}}, raw


@st.composite
def inputs(draw):
    """The fields of a request and the bytes behind it."""
    texts = draw(TEXTS)
    text = np.empty(len(texts), object)
    text[:] = texts
    row = draw(SHORTS)
    arrays = {
        "x": ("FP32", np.array(draw(FLOATS), np.float32)),
        "n": ("INT16", np.array([row, row[::-1]], np.int16)),
        "b": ("BOOL", np.array(draw(st.lists(st.booleans(), max_size=3)), np.bool_)),
        "t": ("BYTES", text),
    }
    forms = draw(st.sampled_from(["binary", "json", "both"]))
    collected, tail = [], b""
    for name, (datatype, array) in arrays.items():
        is_binary = forms == "binary" or (forms == "both" and draw(st.booleans()))
        fields, raw = tensor(name, datatype, array, is_binary)
        collected.append(fields)
        tail += raw
    return collected, tail


PARAMETERS = st.dictionaries(
    st.sampled_from(
        ["binary_data_output", "sequence_id", "timeout", "priority", "mine", "triton_x"]
    ),
    st.booleans() | st.integers(0, 10**8) | st.text(max_size=3),
    max_size=2,
)
OUTPUTS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["x", "n", "b", "t", "sum", "none"])},
        optional={
            "parameters": st.dictionaries(
                st.sampled_from(["binary_data", "classification"]),
                st.booleans() | st.just(0),
                max_size=1,
            )
        },
    ),
    max_size=3,
)


@st.composite
def bodies(draw):
    """JSON of a request, and the bytes behind it; often right."""
    result, tail = draw(inputs())
    fields = {}
    ids = draw(st.sampled_from(["first", "last", "none"]))
    name = draw(st.text(max_size=4) | st.sampled_from(["7", "a\\b", 'q"', "]"]))
    if ids == "first":
        fields["id"] = name
    parameters = draw(st.none() | PARAMETERS)
    if parameters is not None:
        fields["parameters"] = parameters
    fields["inputs"] = result
    outputs = draw(st.none() | OUTPUTS)
    if outputs is not None:
        fields["outputs"] = outputs
    if ids == "last":
        fields["id"] = name
    if draw(st.integers(0, 3)) == 0:
        _damage(draw, fields)
    spaces = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")]))
    text = json.dumps(fields, separators=spaces, ensure_ascii=draw(st.booleans()))
    return text.encode("utf-8", "surrogatepass"), tail


def _damage(draw, fields):
    places = [(fields, key) for key in fields]
    for item in fields["inputs"]:
        places += [(item, key) for key in item]
    for where, key in draw(st.lists(st.sampled_from(places), max_size=2)):
        if draw(st.booleans()):
            where[key] = draw(ODD)
        else:
            where.pop(key, None)


@settings(max_examples=100, deadline=None)
@given(body=bodies(), data=st.data())
@with_both(lambda: Mixed("mixed", RequestOp()))
async def test_lane_and_routes_give_equal_answers(both, body, data):
    text, tail = body
    has_length = bool(tail) or data.draw(st.booleans())
    for _ in range(4):
        await both.same(text + tail, len(text) if has_length else None)
    for _ in range(3):  # what is known now meets others
        changed = _changed(data.draw, text)
        rest = data.draw(st.sampled_from([tail, tail + b"x", tail[:-1]]))
        for _ in range(2):
            await both.same(changed + rest, len(changed) if has_length else None)
        at = data.draw(st.integers(0, len(text) + len(tail)))
        await both.same(text + tail, at)


def _changed(draw, text):
    """A few bytes are others, or there are more or less of them."""
    data = bytearray(text)
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        piece = draw(st.sampled_from([b"", b"\0", b"]", b"[", b'"', b"1", b",", b'"data":[', b" "]))
        data[at : at + draw(st.integers(0, 2))] = piece
    return bytes(data)
