"""Forms of answers: what they write is what the codecs write, whatever the answer says beside."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.proto.inference_v2_pb2 import ModelInferResponse
from pipeline.proto.slices import Limits
from pipeline.proto.v2.codec import InferResponse, response_pieces
from pipeline.proto.v2.forms import OutputsForm
from pipeline.proto.v2.json import write_response
from pipeline.proto.v2.message_forms import MessageOutputs

PARAMETERS = {"sequence_id": 0, "sequence_start": False, "mine": "a\0b", "share": 0.5}
ARRAY = np.arange(3, dtype=np.float32)


def response_of(request_id, array, parameters):
    return InferResponse("m", "1", request_id, parameters, {"y": array})


@pytest.mark.parametrize("parameters", [{}, PARAMETERS], ids=["plain", "parameters"])
@pytest.mark.parametrize("request_id", ["", "seven"])
def test_a_form_writes_what_the_codecs_write(parameters, request_id):
    learnt, asked = (
        response_of("first", ARRAY, parameters),
        response_of(request_id, ARRAY + 1, parameters),
    )
    for binary in (set(), {"y"}):
        form = OutputsForm.of(learnt, binary)
        assert form.write(request_id, [ARRAY + 1]) == (*write_response(asked, binary, Limits()), ())
    message = MessageOutputs.of(learnt).write(request_id, [ARRAY + 1])
    wanted = b"".join(map(bytes, response_pieces(asked)))
    assert ModelInferResponse.FromString(message) == ModelInferResponse.FromString(wanted)
