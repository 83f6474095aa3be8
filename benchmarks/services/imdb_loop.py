"""The ceiling for I: the same onnxruntime calls in a plain loop, a thread for each core.

Arguments: seconds, clients.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.catalog import REVIEW
from benchmarks.services.imdb import EXAMPLE
from benchmarks.services.loops import run_loops

sys.path.insert(0, str(EXAMPLE))

from tokenizer import Tokenizer  # type: ignore[import-not-found]


class Ensemble:
    """Tokenise, run both models, take the mean."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._tokenizer = Tokenizer.load(EXAMPLE / "models" / "vocab.txt")
        self._sessions = [
            onnxruntime.InferenceSession(EXAMPLE / "models" / f"{name}.onnx", options)
            for name in ("bow", "cnn")
        ]

    def predict(self, text: str) -> Any:
        words = self._tokenizer.encode(text)[np.newaxis]
        answers = [session.run(None, {"words": words})[0] for session in self._sessions]
        return np.mean(answers, axis=0)


if __name__ == "__main__":
    seconds, clients = float(sys.argv[1]), int(sys.argv[2])
    predict = functools.partial(Ensemble().predict, REVIEW)
    run_loops(predict, seconds, min(clients, os.cpu_count() or 1))
