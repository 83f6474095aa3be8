"""The sentiment service as a cascade: a cheap model answers, an expensive one only if it is unsure.

python web_server.py          then in another terminal: python demo.py, or see README.md

words -> encode -> bow ---------> verdict -> {prediction, and the scores of the models that ran}
                     \\-> cnn ----/
"""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from pipeline import Goto, Op, PipelineServer, ResponseOp, Schema, Tensor

HERE = Path(__file__).resolve().parent
ENSEMBLE = HERE.parent / "imdb_ensemble"  # has the models and the tokenizer
sys.path.insert(0, str(ENSEMBLE))
from reading import EncodeOp, ReviewOp  # noqa: E402

SURE = 0.8  # probability from which the cheap model's answer counts; measure.py compares values


class Scores(Schema):
    """Probability of a positive review: the answer, and the score of each model that ran."""

    prediction: Annotated[np.ndarray, Tensor("prediction", "FP32", (1,))]
    bow: Annotated[np.ndarray, Tensor("bow", "FP32", (1,))]
    cnn: Annotated[np.ndarray, Tensor("cnn", "FP32", (1,))] | msgspec.UnsetType = msgspec.UNSET


class BowOp(Op):
    """Sends a request to the verdict, or if it is unsure first to `cnn`, with the words."""

    def postprocess(self, input_dicts, fetch_dict):
        positive = fetch_dict["prediction"][:, 1]
        if max(positive[0], 1 - positive[0]) >= SURE:
            return Goto({"positive": positive}, "verdict")
        return {"positive": positive, **input_dicts["encode"]}


class CnnOp(Op):
    """Runs only for the reviews that `bow` sends to it."""

    def preprocess(self, input_dicts):
        return {"words": input_dicts["bow"]["words"]}

    def postprocess(self, input_dicts, fetch_dict):
        return {"positive": fetch_dict["prediction"][:, 1]}


class VerdictOp(Op):
    """Answers with the mean of the scores, of `bow` alone or of both models."""

    def preprocess(self, input_dicts):
        scores = {name: answer["positive"] for name, answer in input_dicts.items()}
        return {"prediction": sum(scores.values()) / len(scores), **scores}


bow = BowOp("bow", EncodeOp("encode", ReviewOp()))
cnn = CnnOp("cnn", bow)
verdict = VerdictOp("verdict", [bow, cnn])

server = PipelineServer("cascade")
server.set_response_op(ResponseOp(verdict, schema=Scores))
server.prepare_server(str(HERE / "config.yml"))

if __name__ == "__main__":
    server.run_server()
