"""Forms of answers: what they write is what the codecs write, whatever the answer says beside."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pipeline.proto.inference_v2_pb2 import ModelInferResponse
from pipeline.proto.slices import Limits
from pipeline.proto.v2.codec import InferResponse, response_pieces
from pipeline.proto.v2.forms import OutputsForm, cut_json, json_codec
from pipeline.proto.v2.json import write_response
from pipeline.proto.v2.message_forms import MessageOutputs

PARAMETERS = {"sequence_id": 0, "sequence_start": False, "mine": "a\0b", "share": 0.5}
ARRAY = np.arange(3, dtype=np.float32)


def response_of(request_id, array, parameters):
    return InferResponse("m", "1", request_id, parameters, {"y": array})


@pytest.mark.parametrize("parameters", [{}, PARAMETERS], ids=["plain", "parameters"])
@pytest.mark.parametrize("request_id", ["", "seven"])
def test_a_form_writes_the_bytes_of_the_codecs(parameters, request_id):
    learnt, response = (
        response_of("first", ARRAY, parameters),
        response_of(request_id, ARRAY + 1, parameters),
    )
    for binary in (set(), {"y"}):
        form = OutputsForm.of(learnt, binary)
        assert form.write(request_id, [ARRAY + 1]) == (
            *write_response(response, binary, Limits()),
            (),
        )
    message = MessageOutputs.of(learnt).write(request_id, [ARRAY + 1])
    wanted = b"".join(map(bytes, response_pieces(response)))
    assert ModelInferResponse.FromString(message) == ModelInferResponse.FromString(wanted)


@pytest.mark.parametrize("codec", [OutputsForm.of, MessageOutputs.of], ids=["json", "message"])
def test_answers_written_together_equal_answers_written_separately(codec):
    chance = random.Random(7)
    for _ in range(200):
        count, rows = chance.randint(2, 5), chance.randint(1, 3)
        stacks = {
            name: np.array(
                [chance.uniform(-9, 9) for _ in range(count * rows * width)],
                chance.choice([np.float32, np.int64, np.bool_]),
            ).reshape(count * rows, *chance.choice([(width,), (1, width)]))
            for name, width in (("y", chance.randint(1, 4)), ("z", 1))
        }
        each = [
            {name: stack[at * rows : (at + 1) * rows] for name, stack in stacks.items()}
            for at in range(count)
        ]
        binary = set(chance.sample(["y", "z"], chance.choice([0, 0, 1, 2])))
        form = codec(InferResponse("m", "1", "", PARAMETERS, each[0]), binary)
        ids = [chance.choice(["", "seven", 'a"b']) for _ in range(count)]
        wanted = [form.write(name, list(one.values())) for name, one in zip(ids, each, strict=True)]
        assert form.write_each(ids, list(stacks.values())) == wanted


def test_a_number_that_json_lacks_has_each_written_by_itself():
    form = OutputsForm.of(response_of("", ARRAY, {}), set())
    stack = np.array([[1, 2, 3], [1, np.nan, 3]], np.float32)
    assert form.write_each(["", ""], [stack]) is None
    assert form.write("", [stack[1]]) is None


def test_a_body_that_is_like_the_last_one_is_cut_as_any():
    chance = random.Random(7)
    cut, result = json_codec("m", "", Limits()).cut, 0
    heads = [b'{"inputs":[{"name":"x","shape":[1,2],', b'{"id":"7","inputs":[{"name":"x",', b"{"]
    lists = [b"[1, 2.5]", b"[]", b"[[1],[2]]", b" [3]", b'["]"]', b"[1", b"7", b"[1]]", b"[\0]"]
    tails = [b',"datatype":"FP32"}]}', b"}]}", b',"data":[4]}', b"]}", b""]
    for _ in range(5000):
        body = chance.choice(heads) + b'"data":' + chance.choice(lists) + chance.choice(tails)
        body = body[: chance.choice([None, None, None, chance.randint(0, len(body))])]
        assert cut(body, None) == cut_json(body, None), body
        result += cut(body, None) is not None
    assert result > 500
