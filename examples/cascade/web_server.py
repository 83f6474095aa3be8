"""The sentiment service as a cascade: a cheap model answers, a dear one only where it is unsure.

python web_server.py          then ask it: python demo.py, or see README.md

words -> encode -> bow ---------> verdict -> {prediction, and what each model that was asked says}
                     \\-> cnn ----/
"""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from pipeline import Goto, Op, PipelineServer, ResponseOp, Schema, Tensor

HERE = Path(__file__).resolve().parent
ENSEMBLE = HERE.parent / "imdb_ensemble"  # its models and its tokenizer
sys.path.insert(0, str(ENSEMBLE))
from reading import EncodeOp, ReviewOp  # noqa: E402  # from there

SURE = 0.8  # of what a model says: measure.py shows what other values cost


class Scores(Schema):
    """How likely the review is positive: in all, and as each model says that was asked."""

    prediction: Annotated[np.ndarray, Tensor("prediction", "FP32", (1,))]
    bow: Annotated[np.ndarray, Tensor("bow", "FP32", (1,))]
    cnn: Annotated[np.ndarray, Tensor("cnn", "FP32", (1,))] | msgspec.UnsetType = msgspec.UNSET


class BowOp(Op):
    """Goes to the verdict; and first to `cnn`, with the words, where it is unsure."""

    def postprocess(self, input_dicts, fetch_dict):
        positive = fetch_dict["prediction"][:, 1]
        if max(positive[0], 1 - positive[0]) >= SURE:
            return Goto({"positive": positive}, "verdict")
        return {"positive": positive, **input_dicts["encode"]}


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


bow = BowOp("bow", EncodeOp("encode", ReviewOp()))
cnn = CnnOp("cnn", bow)
verdict = VerdictOp("verdict", [bow, cnn])

server = PipelineServer("cascade")
server.set_response_op(ResponseOp(verdict, schema=Scores))
server.prepare_server(str(HERE / "config.yml"))

if __name__ == "__main__":
    server.run_server()
