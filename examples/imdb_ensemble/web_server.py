"""The sentiment service: two models read the same words, and their mean is the answer.

    python web_server.py [config_brpc.yml]     then ask it with rpc_client.py or http_client.py

The words of a review become ids once, `bow` and `cnn` run side by side on them, `combine` waits
for both:

    words -> bow -+
         \\-> cnn -+-> combine -> {prediction, bow, cnn}
"""

import sys
from pathlib import Path

import numpy as np
from tokenizer import Tokenizer

from pipeline import Op, PipelineServer, RequestOp, ResponseOp, Tensor

HERE = Path(__file__).resolve().parent
MODELS = ("bow", "cnn")
NO_WORDS = 51  # a code of this product: 51-99 are free for them


class ImdbRequestOp(RequestOp):
    """Turns the review under the key `words` into what both models are fed."""

    input_tensors = (Tensor("words", "BYTES", (1,)),)  # for callers of the v2 protocol

    def init_op(self):
        self.tokenizer = Tokenizer.load(HERE / "models" / "vocab.txt")

    def unpack_request_package(self, request):
        data, log_id, _, _ = super().unpack_request_package(request)
        review = data.get("words")
        if not isinstance(review, str):
            text = (
                'no review: send its text under the key "words": {"words":"..."} to /api/imdb, '
                'or {"key":["words"],"value":["..."]}'
            )
            return {}, log_id, NO_WORDS, text
        return {"words": self.tokenizer.encode(review)[np.newaxis]}, log_id, None, ""


class CombineOp(Op):
    """Answers with the mean of the models' scores, and with each: arrays float32 (1,)."""

    input_tensors = tuple(Tensor("prediction", "FP32", (1, 2), source) for source in MODELS)
    output_tensors = tuple(Tensor(name, "FP32", (1,)) for name in ("prediction", *MODELS))

    def preprocess(self, input_dicts, data_id, log_id):
        # `prediction` of a model is float32 (1, 2): how likely negative, how likely positive.
        scores = {name: answer["prediction"][:, 1] for name, answer in input_dicts.items()}
        mean = sum(scores.values()) / len(scores)
        return {"prediction": mean, **scores}, False, None, ""


read_op = ImdbRequestOp()
model_ops = [Op(name=name, input_ops=[read_op]) for name in MODELS]
combine_op = CombineOp(name="combine", input_ops=model_ops)
response_op = ResponseOp(input_ops=[combine_op])

server = PipelineServer(name="imdb")
server.set_response_op(response_op)
server.prepare_server(str(HERE / (sys.argv[1] if len(sys.argv) > 1 else "config.yml")))
server.run_server()
