"""The sentiment service as a cascade: a cheap model answers, a dear one only where it is unsure.

python web_server.py          then ask it: python demo.py, or see README.md

words -> bow ---------> verdict -> {prediction, and what each model that was asked says}
          \\-> cnn ----/
"""

import sys
from pathlib import Path

import numpy as np

from pipeline import Goto, Op, PipelineServer, ProductError, RequestOp, ResponseOp

HERE = Path(__file__).resolve().parent
ENSEMBLE = HERE.parent / "imdb_ensemble"  # its models and its tokenizer
sys.path.insert(0, str(ENSEMBLE))
from tokenizer import Tokenizer  # noqa: E402  # from there

SURE = 0.8  # of what a model says: measure.py shows what other values cost
NO_WORDS = 51


class ReviewOp(RequestOp):
    """Turns the review under the key `words` into what the models are fed."""

    def init_op(self):
        self.tokenizer = Tokenizer.load(ENSEMBLE / "models" / "vocab.txt")

    def unpack_request_package(self, request):
        data, log_id, _, _ = super().unpack_request_package(request)
        review = data.get("words")
        if not isinstance(review, str):
            raise ProductError(NO_WORDS, 'no review: send its text under the key "words"')
        return {"words": self.tokenizer.encode(review)[np.newaxis]}, log_id, None, ""


class BowOp(Op):
    """Goes to the verdict; and first to `cnn`, with the words, where it is unsure."""

    def postprocess(self, input_dicts, fetch_dict):
        positive = fetch_dict["prediction"][:, 1]
        if max(positive[0], 1 - positive[0]) >= SURE:
            return Goto({"positive": positive}, "verdict")
        return {"positive": positive, **input_dicts["@DAGExecutor"]}


class CnnOp(Op):
    """Runs for those reviews only that `bow` sends it."""

    def preprocess(self, input_dicts):
        return {"words": input_dicts["bow"]["words"]}

    def postprocess(self, input_dicts, fetch_dict):
        return {"positive": fetch_dict["prediction"][:, 1]}


class VerdictOp(Op):
    """Answers with the mean of what has come: of `bow` alone, or of both."""

    def preprocess(self, input_dicts):
        said = {name: answer["positive"] for name, answer in input_dicts.items()}
        return {"prediction": sum(said.values()) / len(said), **said}


bow = BowOp("bow", ReviewOp())
cnn = CnnOp("cnn", bow)
verdict = VerdictOp("verdict", [bow, cnn])

server = PipelineServer("cascade")
server.set_response_op(ResponseOp(verdict))
server.prepare_server(str(HERE / "config.yml"))

if __name__ == "__main__":
    server.run_server()
