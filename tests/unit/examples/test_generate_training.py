"""How the generate example's model is trained: gradients, export; and a step of the service."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from paths import ROOT

EXAMPLE = ROOT / "examples" / "generate"
OWN = ("words", "writing", "training")


@pytest.fixture(scope="module")
def example():
    """The example's modules, which import their neighbours as scripts do."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        names = ("words", "writing", "training.network", "training.export")
        results = {name.rpartition(".")[2]: importlib.import_module(name) for name in names}
        yield SimpleNamespace(**results)
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in OWN:
            del sys.modules[name]


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def test_the_gradients_match_the_loss(example, rng):
    network = example.network
    parameters = {
        name: value.astype(np.float64) for name, value in network.initial(7, 4, rng).items()
    }
    words, state = rng.integers(0, 7, (6, 3)), rng.standard_normal((3, 4))
    gradients = network.lesson(parameters, words, state).gradients
    assert gradients.keys() == parameters.keys()
    for name, values in parameters.items():
        for place in zip(*(rng.integers(0, size, 4) for size in values.shape), strict=True):
            losses = []
            for move in (1e-5, -1e-5):
                values[place] += move
                losses.append(network.lesson(parameters, words, state, learns=False).loss)
                values[place] -= move
            assert gradients[name][place] == pytest.approx((losses[0] - losses[1]) / 2e-5, abs=1e-6)


def test_the_file_makes_the_same_step(example, rng, tmp_path):
    parameters = example.network.initial(9, 4, rng)
    parameters = {k: v.astype(np.float16).astype(np.float32) for k, v in parameters.items()}
    example.export.export_step(parameters, tmp_path / "step.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx")
    state = rng.standard_normal((5, 4)).astype(np.float32)
    words = rng.integers(0, 9, (2, 5))
    scores, after = session.run(None, {"word": words[0], "state": state})
    done = example.network.lesson(parameters, words, state, learns=False)
    np.testing.assert_allclose(after, done.state, atol=1e-5)
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    loss = -np.log(shares[np.arange(5), words[1]]).mean()
    assert loss == pytest.approx(done.loss, abs=1e-4)


def test_words_are_read_and_written(example, tmp_path):
    words = example.words
    words.Vocabulary.save(["the", "film", "don't", "."], tmp_path / "words.txt")
    vocabulary = words.Vocabulary.load(tmp_path / "words.txt")
    assert vocabulary.encode("The film.<br />Don't") == [2, 3, 5, 4]
    assert vocabulary.encode("a cat") == [words.UNKNOWN] * 2
    assert "".join(map(vocabulary.text_of, [2, 3, 5, words.END])) == " the film."


def test_the_files_of_the_example_fit_together(example):
    vocabulary = example.words.Vocabulary.load(EXAMPLE / "models" / "words.txt")
    session = onnxruntime.InferenceSession(EXAMPLE / "models" / "step.onnx")

    def run(word, state):
        return session.run(["scores", "next_state"], {"word": word, "state": state})

    writing = example.writing
    texts = [writing.begin(run, vocabulary.encode("this movie is"), seed, 3) for seed in (0, 1)]
    assert texts[0]["state"].shape == (writing.WIDTH,)
    temperature = np.ones(2, np.float32)
    for left in (2, 1, 0):
        words, done = writing.step(run, texts, temperature)
        assert example.words.UNKNOWN not in words
        assert all(text["left"] == left for text in texts)
    assert done.all(), "three words were asked for"
