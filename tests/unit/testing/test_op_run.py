"""One Op with samples: all stages, batches, streams, and errors with their codes."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from pipeline import Answer, Goto, Op, ProductError, RequestOp
from pipeline.data import RequestInfo
from pipeline.errors import (
    ConfigError,
    InitError,
    InputError,
    PredictorUnavailableError,
    UserCodeError,
)
from pipeline.testing import FakePredictor, run_op


class Classify(Op):
    def preprocess(self, input_dicts):
        ((_, request),) = input_dicts.items()
        if not request["text"]:
            raise ProductError(51, "no text")
        return {"x": np.array([[len(request["text"])]], np.float32)}

    def postprocess(self, input_dicts, fetch_data):
        return {"label": str(fetch_data["prob"].argmax())}


def test_all_stages_run_in_batches_and_an_error_is_the_samples_own():
    model = FakePredictor({"prob": [[0.1, 0.9]]})
    samples = [{"text": "a"}, {"text": ""}, {"text": "ccc"}]
    answers = run_op(Classify("c", RequestOp()), samples, predictor=model, batch_size=3)
    assert answers[0] == answers[2] == {"label": "1"}
    with pytest.raises(ProductError, match="no text") as raised:
        answers[1]
    assert raised.value.code == 51
    assert set(answers.errors) == {1}
    assert answers.batches == [[0, 1, 2]]
    (fed,) = model.calls
    assert fed["x"].tolist() == [[1], [3]]


def test_a_class_is_made_and_batches_are_cut_in_order():
    answers = run_op(Classify, [{"text": "a"}] * 5, predictor={"prob": [[1, 0]]}, batch_size=2)
    assert answers.batches == [[0, 1], [2, 3], [4]]
    assert list(answers) == answers[:] == [{"label": "0"}] * 5


def test_an_error_of_user_code_is_10000_and_logged_with_its_traceback(caplog):
    answers = run_op(Classify, [{}], predictor={"prob": [[1, 0]]})
    with pytest.raises(UserCodeError, match="KeyError: 'text'") as raised:
        list(answers)
    assert raised.value.code == 10000
    assert caplog.records[0].exc_info


def test_an_unavailable_model_is_called_again_as_configured():
    model = FakePredictor([PredictorUnavailableError("away"), {"prob": [[0, 1]]}])
    answers = run_op(Classify, [{"text": "a"}], predictor=model, config={"retry": 2})
    assert answers[0] == {"label": "1"}
    assert len(model.calls) == 2


class Words(Op):
    def preprocess(self, input_dicts):
        return input_dicts["@DAGExecutor"]

    def process(self, feed_batch):
        for word in feed_batch[0]["text"].split():
            yield {"word": word}
        if "bad" in feed_batch[0]["text"]:
            raise ProductError(52, "bad")


def test_the_parts_of_a_stream_are_there():
    answers = run_op(Words, [{"text": "a b"}, {"text": "bad"}])
    assert answers.parts(0) == [{"word": "a"}, {"word": "b"}]
    assert answers[0] == {"word": "b"}
    with pytest.raises(ProductError, match="bad"):
        answers.parts(1)


class CountsContexts(Op):
    async def init_op(self):
        self.calls = 0

    async def process(self, feed_batch, *, context):
        await asyncio.sleep(0)
        return {"id": [item.id for item in context]}

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return {"id": fetch_data["id"][0], "ids": (data_id, log_id)}


def test_async_methods_contexts_and_numbers_of_requests():
    infos = [RequestInfo(id="first"), RequestInfo(id="second")]
    answers = run_op(
        CountsContexts, [{"x": np.zeros(1)}] * 2, batch_size=2, infos=infos, log_ids=[7]
    )
    assert list(answers) == [{"id": "first", "ids": (0, 7)}, {"id": "second", "ids": (1, 0)}]


class Join(Op):
    def preprocess(self, input_dicts):
        return {"sum": input_dicts["a"]["x"] + input_dicts["b"]["x"]}


def test_an_op_that_reads_several_gets_a_dict_for_each():
    join = Join("join", [Op("a", RequestOp()), Op("b", RequestOp())])
    assert run_op(join, [{"a": {"x": 1}, "b": {"x": 2}}])[0] == {"sum": 3}
    with pytest.raises(InputError, match=r"samples\[0\]: 'join' reads a, b: .* missing: b"):
        run_op(join, [{"a": {"x": 1}}])


class Routes(Op):
    def preprocess(self, input_dicts):
        (request,) = input_dicts.values()
        return Goto(request, "large") if request["unsure"] else Answer(request)


def test_the_route_of_an_answer_is_available():
    answers = run_op(Routes, [{"unsure": True}, {"unsure": False}])
    goto = answers.route(0)
    assert isinstance(goto, Goto)
    assert goto.to == ("large",)
    assert isinstance(answers.route(1), Answer)
    assert answers[0] == {"unsure": True}
    assert run_op(Words, [{"text": "a"}]).route(0) is None


def test_invalid_arguments_are_refused_before_the_run():
    with pytest.raises(ConfigError, match="batch_size"):
        run_op(Classify, [], config={"batch_size": 0})
    with pytest.raises(InputError, match=r"samples\[0\]: expected a dict"):
        run_op(Classify, ["text"])
    with pytest.raises(InputError, match="TestClient"):
        run_op(RequestOp(), [])

    class Fails(Op):
        def init_op(self):
            raise ValueError("no weights")

    with pytest.raises(InitError, match="Op 'f' failed to start: ValueError: no weights"):
        run_op(Fails("f"), [])
