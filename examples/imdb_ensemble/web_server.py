"""The sentiment service: two models read the same words, and the answer is their mean.

    python web_server.py [config_brpc.yml]     then in another terminal: python rpc_client.py

`encode` turns the words of a review into ids, `bow` and `cnn` run on them in parallel, `combine`
waits for both:

    words -> encode -> bow -+
                  \\-> cnn -+-> combine -> {prediction, bow, cnn}
"""

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
from reading import EncodeOp, ReviewOp

from pipeline import Op, PipelineServer, ResponseOp, Schema, Tensor

HERE = Path(__file__).resolve().parent
MODELS = ("bow", "cnn")


class Scores(Schema):
    """Probability of a positive review: the mean, and the score of each model."""

    prediction: Annotated[np.ndarray, Tensor("prediction", "FP32", (1,))]
    bow: Annotated[np.ndarray, Tensor("bow", "FP32", (1,))]
    cnn: Annotated[np.ndarray, Tensor("cnn", "FP32", (1,))]


class CombineOp(Op):
    """Answers with the mean of the models' scores and with each score: arrays float32 (1,)."""

    input_tensors = tuple(Tensor("prediction", "FP32", (1, 2), source) for source in MODELS)
    output_tensors = tuple(Tensor(name, "FP32", (1,)) for name in ("prediction", *MODELS))

    def preprocess(self, input_dicts, data_id, log_id):
        # A model's `prediction` is float32 (1, 2): the probabilities of negative and of positive.
        scores = {name: answer["prediction"][:, 1] for name, answer in input_dicts.items()}
        mean = sum(scores.values()) / len(scores)
        return {"prediction": mean, **scores}, False, None, ""


encode_op = EncodeOp(name="encode", input_ops=[ReviewOp()])
model_ops = [Op(name=name, input_ops=[encode_op]) for name in MODELS]
combine_op = CombineOp(name="combine", input_ops=model_ops)
response_op = ResponseOp(input_ops=[combine_op], schema=Scores)

server = PipelineServer(name="imdb")
server.set_response_op(response_op)
server.prepare_server(str(HERE / (sys.argv[1] if len(sys.argv) > 1 else "config.yml")))
server.run_server()
