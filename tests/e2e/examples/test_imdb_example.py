"""The IMDB example: its committed models, its tokenizer, and the demo from start to end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT

EXAMPLE = ROOT / "examples" / "imdb_ensemble"
MODELS = EXAMPLE / "models"
MEMBERS = ("bow", "cnn")
MAX_TOTAL_BYTES = 700_000
PORTS = ("18070", "18071", "9292", "9393")  # of the example's configurations


def load(name: str) -> ModuleType:
    """A module of the example, under a name that no other example's module has."""
    spec = importlib.util.spec_from_file_location(f"imdb_example_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tokenizer = load("tokenizer")
samples = load("samples")


@pytest.fixture(scope="module")
def vocabulary():
    return tokenizer.Tokenizer.load(MODELS / "vocab.txt")


@pytest.fixture(scope="module")
def sessions():
    providers = ["CPUExecutionProvider"]
    return {
        name: onnxruntime.InferenceSession(MODELS / f"{name}.onnx", providers=providers)
        for name in MEMBERS
    }


def predict(session, words):
    return session.run(["prediction"], {"words": words})[0]


# --- the committed files ---------------------------------------------------------------------


def test_committed_models_stay_small():
    files = [MODELS / "vocab.txt", *(MODELS / f"{name}.onnx" for name in MEMBERS)]
    assert sum(path.stat().st_size for path in files) < MAX_TOTAL_BYTES


@pytest.mark.parametrize("name", MEMBERS)
def test_models_load_in_old_runtimes(name):
    model = onnx.load(MODELS / f"{name}.onnx")
    assert [opset.version for opset in model.opset_import if opset.domain == ""] == [13]
    assert model.ir_version <= 8


@pytest.mark.parametrize("name", MEMBERS)
def test_models_have_the_signature_that_the_server_feeds(sessions, name):
    (words,), (prediction,) = sessions[name].get_inputs(), sessions[name].get_outputs()
    assert (words.name, words.type, words.shape) == ("words", "tensor(int64)", ["batch", 256])
    assert (prediction.name, prediction.type) == ("prediction", "tensor(float)")
    assert prediction.shape == ["batch", 2]


@pytest.mark.parametrize("name", MEMBERS)
def test_models_know_exactly_the_ids_of_the_vocabulary(sessions, vocabulary, name):
    words = np.full((1, tokenizer.SEQUENCE_LENGTH), vocabulary.size - 1, np.int64)
    assert predict(sessions[name], words).shape == (1, 2)
    with pytest.raises(Exception, match="out of data bounds"):
        predict(sessions[name], words + 1)


@pytest.mark.parametrize("name", MEMBERS)
def test_each_model_understands_the_samples(sessions, vocabulary, name):
    for sample in samples.SAMPLES:
        negative, positive = predict(sessions[name], vocabulary.encode(sample.text)[None])[0]
        assert (positive > negative) == sample.positive, sample.text


def test_the_ensemble_understands_the_samples(sessions, vocabulary):
    words = np.stack([vocabulary.encode(sample.text) for sample in samples.SAMPLES])
    mean = np.mean([predict(session, words) for session in sessions.values()], axis=0)
    expected = [sample.positive for sample in samples.SAMPLES]
    assert (mean[:, 1] > 0.5).tolist() == expected


@pytest.mark.parametrize("name", MEMBERS)
def test_a_batch_gets_the_answers_of_its_reviews_alone(sessions, vocabulary, name):
    texts = ["", *(sample.text for sample in samples.SAMPLES)]
    words = np.stack([vocabulary.encode(text) for text in texts])
    together = predict(sessions[name], words)
    alone = [predict(sessions[name], row[None])[0] for row in words]
    assert np.allclose(together, alone, atol=1e-6)
    assert np.allclose(together.sum(axis=1), 1, atol=1e-6)


# --- the tokenizer ---------------------------------------------------------------------------


def test_words_are_lower_case_without_tags_and_keep_their_apostrophes():
    assert tokenizer.words_of("I DON'T<br /><br>like it -- 10/10!") == (
        ["i", "don't", "like", "it", "10", "10"]
    )


def test_encode_pads_and_marks_unknown_words():
    encoded = tokenizer.Tokenizer(["good", "film"]).encode("Good, GOOD film; zyzzyva")
    assert encoded.dtype == np.int64
    assert encoded.shape == (256,)
    assert encoded[:4].tolist() == [2, 2, 3, tokenizer.UNKNOWN_ID]
    assert set(encoded[4:].tolist()) == {tokenizer.PAD_ID}


def test_both_ends_of_a_long_review_are_encoded():
    encoded = tokenizer.Tokenizer(["first", "last"]).encode(f"first {'word ' * 1000} last")
    assert encoded[0] == 2
    assert encoded[-1] == 3


def test_a_huge_text_is_read_at_its_ends_only():
    text = "first " + "word " * 1_000_000 + "last"
    words = tokenizer.words_of(text)
    assert len(words) <= tokenizer.MAX_CHARS
    assert (words[0], words[-1]) == ("first", "last")


@settings(deadline=None)
@given(st.text(max_size=600))
def test_any_text_can_be_encoded(text):
    encoded = tokenizer.Tokenizer(["a", "b"]).encode(text)
    assert encoded.shape == (256,)
    assert set(encoded.tolist()) <= {0, 1, 2, 3}


@settings(deadline=None)
@given(words=st.lists(st.from_regex(r"[a-z0-9]{1,9}('[a-z]{1,3})?", fullmatch=True), unique=True))
def test_a_saved_vocabulary_loads_the_same(tmp_path_factory, words):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    tokenizer.Tokenizer(words).save(path)
    loaded = tokenizer.Tokenizer.load(path)
    assert loaded.size == len(words) + tokenizer.FIRST_WORD_ID
    text = " ".join(words)
    assert (loaded.encode(text) == tokenizer.Tokenizer(words).encode(text)).all()


# --- the answers -----------------------------------------------------------------------------


def test_scores_are_read_from_the_text_of_arrays():
    values = ["array([0.75], dtype=float32)", "array([1.e-03], dtype=float32)"]
    assert samples.read_scores(["prediction", "bow"], values) == {"prediction": 0.75, "bow": 0.001}


def test_a_report_marks_wrong_predictions(capsys):
    scores = {"prediction": 0.9, "bow": 0.8, "cnn": 1.0}
    assert samples.report(samples.Sample("Good.", True), scores)
    assert not samples.report(samples.Sample("Bad.", False), scores)
    assert "WRONG" in capsys.readouterr().out


# --- the whole -------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        ports = [("127.0.0.1", 0)] * count
        sockets = [stack.enter_context(socket.create_server(port)) for port in ports]
        return [item.getsockname()[1] for item in sockets]


@pytest.fixture
def demo(tmp_path):
    """A copy of the example on ports of its own, and how to run its demo."""
    copy = tmp_path / "imdb"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    for config in (copy / "config.yml", copy / "config_brpc.yml"):
        text = config.read_text(encoding="utf-8")
        for port, free in ports.items():
            text = text.replace(port, free)
        config.write_text(text, encoding="utf-8")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(copy / "demo.py"), *arguments]
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=110
        )

    run.http_port = int(ports["18071"])
    run.folder = copy
    return run


def test_the_demo_passes_from_any_folder(demo):
    done = demo()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("as its author says") == 2 * len(samples.SAMPLES)
    assert done.stdout.splitlines()[-1].startswith("demo passed")


def test_the_demo_passes_with_its_models_in_separate_services(demo):
    done = demo("config_brpc.yml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("starting python -m pipeline.serve") == 2
    assert done.stdout.count("as its author says") == 2 * len(samples.SAMPLES)
    assert done.stdout.count("stopping") == 3


def test_the_demo_names_the_port_in_use(demo):
    with socket.create_server(("127.0.0.1", demo.http_port)):
        done = demo()
    assert done.returncode == 1
    assert f"port {demo.http_port} is in use" in done.stderr


def test_the_demo_shows_why_the_server_did_not_start(demo):
    (demo.folder / "models" / "cnn.onnx").unlink()
    done = demo()
    assert done.returncode == 1
    assert "cnn.onnx" in done.stderr
