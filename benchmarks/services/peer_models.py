"""The models that our peers serve, as a function of what a request has."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.services.picture_model import Model, best, decoded, write_model


class Jpegs:
    """JPEGs, decoded one by one and classified together."""

    def __init__(self) -> None:
        with TemporaryDirectory(dir=os.environ.get("SERVING_HOME")) as folder:
            write_model(Path(folder, "pictures.onnx"))
            self._model = Model(Path(folder, "pictures.onnx"))

    def read(self, jpeg: bytes) -> Any:
        """Return one input."""
        return decoded(jpeg)

    def answers(self, inputs: Any) -> list[dict[str, Any]]:
        """Return the answers of some inputs, one below the other."""
        return [best(scores) for scores in self._model.run(inputs)]


class Reviews:
    """Reviews: their words, and what two models say of them."""

    def __init__(self) -> None:
        import onnxruntime

        from benchmarks.services.imdb import EXAMPLE

        sys.path.insert(0, str(EXAMPLE))
        from tokenizer import Tokenizer  # type: ignore[import-not-found]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        folder = EXAMPLE / "models"
        self._tokenizer = Tokenizer.load(folder / "vocab.txt")
        self._sessions = {
            name: onnxruntime.InferenceSession(folder / f"{name}.onnx", options)
            for name in ("bow", "cnn")
        }

    def read(self, words: str) -> Any:
        """Return one input."""
        return self._tokenizer.encode(words)[np.newaxis]

    def answers(self, inputs: Any) -> list[dict[str, Any]]:
        """Return the answers of some inputs, one below the other."""
        scores = {
            name: session.run(None, {"words": inputs})[0][:, 1]
            for name, session in self._sessions.items()
        }
        mean = sum(scores.values()) / len(scores)
        return [
            {"prediction": float(score), **{name: float(scores[name][at]) for name in scores}}
            for at, score in enumerate(mean)
        ]
