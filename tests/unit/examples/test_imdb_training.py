"""How the IMDB example's models are trained: split, gradients, export."""

from __future__ import annotations

import csv
import importlib
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from paths import ROOT

EXAMPLE = ROOT / "examples" / "imdb_ensemble"
VOCABULARY = 50


@pytest.fixture(scope="module")
def training():
    """The example's training modules, which import their neighbours as scripts do."""
    names = ("reviews", "networks", "fitting", "export")
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        modules = {name: importlib.import_module(f"training.{name}") for name in names}
        yield SimpleNamespace(**modules)
    for name in set(sys.modules) - before:
        if name == "tokenizer" or name.partition(".")[0] == "training":
            del sys.modules[name]


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.fixture(params=["BagOfWords", "Convolution"])
def network(request, training):
    settings = {"dropout": 0.0} if request.param == "Convolution" else {}
    return getattr(training.networks, request.param)(VOCABULARY, width=4, **settings)


def some_words(rng: np.random.Generator, reviews: int) -> np.ndarray:
    words = rng.integers(1, VOCABULARY, (reviews, 256))
    words[:, 40:] = 0
    words[0] = 0  # an empty review
    return words


# --- the reviews -----------------------------------------------------------------------------

ROWS = [
    *((f"film number {i} is good", "1", "imdb") for i in range(60)),
    *((f"film number {i} is bad", "0", "imdb") for i in range(60)),
]


def write_csv(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label", "source"), *rows])
    return path


def texts(reviews) -> list[str]:
    return sorted(review.text for review in reviews)


def test_the_split_is_stratified_and_independent_of_the_order(training, tmp_path):
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    one = training.reviews.load_split(write_csv(tmp_path / "one.csv", ROWS))
    other = training.reviews.load_split(write_csv(tmp_path / "other.csv", shuffled))
    for name, size in (("train", 84), ("validation", 12), ("test", 24)):
        reviews = getattr(one, name)
        assert texts(reviews) == texts(getattr(other, name))
        assert len(reviews) == size
        assert sum(review.label for review in reviews) == size // 2


def test_a_review_counts_once_and_only_if_its_label_is_clear(training, tmp_path):
    rows = [
        *ROWS,
        ("Film number 7 <br /> is GOOD!", "1", "imdb"),
        ("film number 8 is good", "0", "imdb"),
        ("a snippet", "1", "rotten_tomatoes"),
    ]
    split = training.reviews.load_split(write_csv(tmp_path / "reviews.csv", rows))
    result = texts([*split.train, *split.validation, *split.test])
    expected = {text for text, _, _ in ROWS} - {"film number 8 is good"}
    assert result == sorted(expected)


def test_without_the_package_the_error_names_the_command(training):
    with pytest.raises(FileNotFoundError, match="pip install"):
        training.reviews.find_csv("no_package_has_this_name")


# --- the networks ----------------------------------------------------------------------------


def loss(network, parameters, words, labels) -> float:
    answers = network.predict(parameters, words)
    return float(-np.log(answers[np.arange(len(labels)), labels]).mean())


def test_gradients_are_the_slopes_of_the_loss(network, rng):
    # Fresh biases are zero, where the empty review would sit on the kink of the ReLU.
    parameters = {
        name: value + rng.normal(0, 0.1, value.shape) * name.endswith("bias")
        for name, value in network.initial(rng).items()
    }
    words, labels = some_words(rng, 5), np.array([0, 1, 1, 0, 1])
    gradients = network.gradients(parameters, words, labels, rng)
    assert gradients.keys() == parameters.keys()
    step = 1e-5
    for name, value in parameters.items():
        for place in rng.integers(0, value.shape, (30, value.ndim)):
            index = tuple(place)
            if name == "embedding" and index[0] == 0:
                continue  # padding is held at zero whatever its slope
            ends = []
            for sign in (1, -1):
                moved = value.copy()
                moved[index] += sign * step
                ends.append(loss(network, {**parameters, name: moved}, words, labels))
            slope = (ends[0] - ends[1]) / (2 * step)
            assert gradients[name][index] == pytest.approx(slope, rel=1e-3, abs=1e-6), name


def test_padding_stays_the_zero_vector(network, rng):
    parameters = network.initial(rng)
    assert not parameters["embedding"][0].any()
    gradients = network.gradients(parameters, some_words(rng, 4), np.array([0, 1, 1, 0]), rng)
    assert not gradients["embedding"][0].any()


def test_fitting_finds_the_decisive_token(network, training, rng):
    words = some_words(rng, 1000)
    labels = (words == 7).any(axis=1).astype(np.int64)
    examples = training.fitting.Examples(words, labels)
    plan = training.fitting.Plan(epochs=25, rate=0.02, hidden_words=0.0)
    parameters, accuracy = training.fitting.fit(network, examples, examples, plan, rng)
    assert accuracy > 0.95
    predictions = training.fitting.predict(network, parameters, words)
    assert training.fitting.accuracy_of(predictions, labels) == accuracy


def exporter_of(network, export: ModuleType):
    exporters = {
        "BagOfWords": export.export_bag_of_words,
        "Convolution": export.export_convolution,
    }
    return exporters[type(network).__name__]


def test_the_exported_model_answers_as_the_network_does(network, training, rng, tmp_path):
    halves = {name: value.astype(np.float16) for name, value in network.initial(rng).items()}
    parameters = {name: value.astype(np.float32) for name, value in halves.items()}
    path = tmp_path / "model.onnx"
    exporter_of(network, training.export)(parameters, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    words = some_words(rng, 6)
    (answers,) = session.run(["prediction"], {"words": words})
    assert np.allclose(answers, network.predict(parameters, words), atol=1e-5)
