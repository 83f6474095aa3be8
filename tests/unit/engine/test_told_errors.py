"""Which clients get internal errors in full, and which get one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from doubles import Engine, settle, virtual

from pipeline import Op, RequestOp
from pipeline.data import ChannelData
from pipeline.engine.request import AnswerFuture, RequestTarget
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.workers.peer_calls import PeerSink


class Raises(Op):
    def preprocess(self, input_dicts: Any) -> Any:
        raise OSError("no such file: /srv/secret")


@pytest.mark.parametrize("is_ours", [True, False])
@virtual
async def test_a_model_that_asks_another_one_reads_its_error_in_full(is_ours: bool):
    answers: list[ChannelData] = []
    target = RequestTarget(payload={"x": "1"}, wants_response=False)
    async with Engine(Raises("a", RequestOp()), {"errors": {"details": "safe"}}) as engine:
        begin = engine.executor.begin
        if is_ours:
            sink = PeerSink(False, lambda answer, _: answers.append(answer))
            begin(Request(), None, target, sink)
            while not sink.is_over:
                await settle()
        else:
            future = AnswerFuture()
            begin(Request(), None, target, future)
            answers.append(await future)
    assert ("/srv/secret" in str(answers[0].error)) is is_ours
