"""examples/speech: sound in, a part for each segment of speech, what cannot be heard refused.

The tests with the model run where the package that carries it is installed.
"""

from __future__ import annotations

import base64
import importlib
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import urllib.request
import wave
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT

from pipeline.proto.codec import text_to_numpy
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.pipeline_service_pb2_grpc import PipelineServiceStub

EXAMPLE = ROOT / "examples" / "speech"
CLIP = (EXAMPLE / "clip.wav").read_bytes()
TIMEOUT_S = 60
BAD_SOUND = 51

needs_model = pytest.mark.skipif(
    find_spec("silero_vad") is None,
    reason="no model: pip install --no-deps silero-vad==6.2.3",
)


def load(name: str, folder: Path = EXAMPLE) -> ModuleType:
    """Import a module of the example from its folder."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


sound = load("sound")
segments = load("segments")


def wav(samples: Any, rate: int = 16_000, channels: int = 1, width: int = 2) -> bytes:
    """A WAV file of samples from -32768 to 32767, or of the bytes of others."""
    data = samples if isinstance(samples, bytes) else np.array(samples, "<i2").tobytes()
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((channels, width, rate, 0, "NONE", ""))
        out.writeframes(data)
    return file.getvalue()


SHORT = wav([0, 16384, -32768, 32767])

# --- sound -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [SHORT, base64.b64encode(SHORT).decode(), np.frombuffer(SHORT, np.uint8)],
    ids=["bytes", "base64", "tensor"],
)
def test_samples_are_read(sent):
    samples = sound.read_sound(sent)
    assert samples.dtype == np.float32
    assert samples.tolist() == pytest.approx([0, 0.5, -1, 32767 / 32768])


@pytest.mark.parametrize("sent", [None, "", b"", 7, np.zeros(3, np.float32)])
def test_a_request_without_sound_is_refused_with_advice(sent):
    with pytest.raises(sound.SoundError, match='under the key "audio"'):
        sound.read_sound(sent)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ("no base64!", "not base64"),
        (b"ID3 what is no WAV file", "expected a WAV file"),
        (SHORT[:-1], "cut off"),
        (SHORT[:20], "too early"),
        (wav(bytes(8), rate=8000), "8000 samples a second"),
        (wav(bytes(8), channels=2), r"2 channel\(s\)"),
        (wav(bytes(8), width=1), "8 bits"),
        (SHORT.replace(b"fmt \x10\0\0\0\1\0", b"fmt \x10\0\0\0\3\0"), "expected a WAV file of PCM"),
    ],
)
def test_an_invalid_sound_is_refused_with_the_reason(sent, why):
    with pytest.raises(sound.SoundError, match=why):
        sound.read_sound(sent)


@given(st.integers(0, len(SHORT) - 1), st.binary(max_size=8))
def test_a_broken_file_is_refused_or_read(at, broken):
    try:
        samples = sound.read_sound(SHORT[:at] + broken + SHORT[at + len(broken) :])
    except sound.SoundError:
        return
    assert samples.dtype == np.float32


@pytest.mark.parametrize(("height", "level"), [(1.0, 0.0), (0.5, -6.02), (0.0, -100.0)])
def test_loudness_is_in_decibels(height, level):
    assert sound.level_of(np.full(100, height, np.float32)) == pytest.approx(level, abs=0.01)


# --- segments --------------------------------------------------------------------------------


def segments_of(drawn: str) -> list[tuple[int, int]]:
    """The segments of scores that are drawn: # is speech, ~ is between, . is silence."""
    scores = {"#": 0.9, "~": 0.4, ".": 0.1}
    return list(segments.find_segments(scores[item] for item in drawn))


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        ("", []),
        ("." * 40, []),
        ("~" * 40, []),
        ("." * 10 + "#" * 8 + "." * 8, [(9, 19)]),
        ("." * 10 + "#" * 7 + "." * 9, []),
        ("#" * 10, [(0, 10)]),
        ("." * 5 + "#" * 10 + "." * 3, [(4, 16)]),
        ("#" * 9 + "." * 7 + "#" * 9 + "." * 9, [(0, 26)]),
        ("#" * 9 + "." * 8 + "#" * 9 + "." * 9, [(0, 10), (16, 27)]),
        ("." * 5 + "~~#" + "~" * 7 + "." * 9, [(6, 16)]),
        ("##" + "." * 20 + "#" * 10, [(21, 32)]),
    ],
)
def test_segments_are_long_enough_parts_between_long_enough_pauses(drawn, expected):
    assert segments_of(drawn) == expected


def test_a_segment_is_returned_when_its_pause_is_long_enough():
    scores = iter([0.9] * 10 + [0.1] * 100)
    assert next(segments.find_segments(scores)) == (0, 11)
    assert len(list(scores)) == 100 - segments.SHORTEST, "these were not asked for"


@given(st.text("#~.", max_size=120))
def test_segments_follow_each_other(drawn):
    ends = [0, *itertools.chain(*segments_of(drawn)), len(drawn)]
    assert ends == sorted(ends)


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 2000])
def test_every_sample_is_in_a_frame_and_before_it_in_a_context(count):
    samples = np.arange(1, count + 1, dtype=np.float32)
    frames = segments.frames_of(samples)
    assert frames.shape == (-(-count // 512), 576)
    assert frames[:, 64:].reshape(-1)[:count].tolist() == samples.tolist()
    assert not frames[:, 64:].reshape(-1)[count:].any()
    assert (frames[1:, :64] == frames[:-1, -64:]).all()
    assert not frames[:1, :64].any()


# --- the service -----------------------------------------------------------------------------


def copied(folder: Path) -> Path:
    """The example on ports that are free."""
    copy = folder / "speech"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    config = copy / "config.yml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("18096", "0").replace("18097", "0"), encoding="utf-8")
    return copy


def run_demo(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "demo.py")]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=folder.parent, env=environment, capture_output=True, text=True, timeout=110
    )


@needs_model
def test_the_demo_passes(tmp_path):
    done = run_demo(copied(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("demo passed")
    assert done.stdout.count(" dB (after") == 4 * 3


@needs_model
def test_the_demo_fails_without_speech(tmp_path):
    folder = copied(tmp_path)
    (folder / "clip.wav").write_bytes(wav(bytes(32_000)))
    assert run_demo(folder).returncode == 1


def test_the_demo_names_the_missing_package(tmp_path):
    folder = copied(tmp_path)
    config = folder / "config.yml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("silero_vad/", "no_such_package/"), encoding="utf-8")
    done = run_demo(folder)
    assert done.returncode == 1
    assert done.stderr == "no model: pip install --no-deps no-such-package==6.2.3\n"


@pytest.fixture(scope="module")
def service(module_logs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of the service, whose server runs."""
    loaded = load("web_server", copied(tmp_path_factory.mktemp("copy")))
    try:
        with loaded.server:
            yield loaded
    finally:
        del sys.modules["web_server"]  # other examples also have one


@pytest.fixture
def stub(grpc_is_up: None, service: ModuleType) -> Iterator[PipelineServiceStub]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{service.server.rpc_port}"
    with grpc.insecure_channel(address, options=options) as channel:
        yield PipelineServiceStub(channel)


def asking(file: bytes) -> Request:
    return Request(key=["audio"], value=[base64.b64encode(file).decode()])


def rows_of(answer: Response) -> list[tuple[float, ...]]:
    assert answer.err_no == 0, answer.err_msg
    return list(zip(*(text_to_numpy(text).tolist() for text in answer.value), strict=True))


def events_of(service: ModuleType, request: Request) -> list[str]:
    """The server-sent events that a request is answered with."""
    body = json.dumps({"key": list(request.key), "value": list(request.value)}).encode()
    url = f"http://127.0.0.1:{service.server.http_port}/speech/prediction"
    asked = urllib.request.Request(url, body, {"Accept": "text/event-stream"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(asked, timeout=TIMEOUT_S) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        return answer.read().decode().split("\n\n")


@needs_model
def test_each_sentence_of_the_clip_is_a_part_and_the_single_answer_has_all(stub):
    parts = [rows_of(part) for part in stub.inference_stream(asking(CLIP), timeout=TIMEOUT_S)]
    assert [len(rows) for rows in parts] == [1, 1, 1]
    rows = [row for (row,) in parts]
    assert rows_of(stub.inference(asking(CLIP), timeout=TIMEOUT_S)) == rows
    starts, ends, levels = zip(*rows, strict=True)
    assert starts == pytest.approx((0.3, 2.3, 4.3), abs=0.1)
    assert ends == pytest.approx((1.35, 3.55, 5.7), abs=0.1)
    assert levels == pytest.approx((-15, -14, -15), abs=1)


@needs_model
def test_the_next_op_runs_once_for_each_part(service, stub, monkeypatch):
    heard, level_of = [], service.level_of
    monkeypatch.setattr(service, "level_of", lambda samples: heard.append(1) or level_of(samples))
    for number, _ in enumerate(stub.inference_stream(asking(CLIP), timeout=TIMEOUT_S), 1):
        assert len(heard) >= number
    assert len(heard) == 3


@needs_model
def test_a_file_as_a_tensor_of_bytes_is_answered_with_tensors(stub):
    request = Request()
    request.tensors.add(name="audio", elem_type=13, shape=[1], byte_data=CLIP)
    names = {tensor.name for tensor in stub.inference(request, timeout=TIMEOUT_S).tensors}
    assert names == {"start_s", "end_s", "loudness_db"}


@needs_model
def test_each_part_is_an_event(service):
    *parts, end, rest = events_of(service, asking(CLIP))
    answers = [Response(**json.loads(part.removeprefix("data: "))) for part in parts]
    assert [len(rows_of(answer)) for answer in answers] == [1, 1, 1]
    assert (end, rest) == ("event: end\ndata: {}", "")


@needs_model
@pytest.mark.parametrize("seconds", [0, 3])
def test_silence_gives_no_part(service, stub, seconds):
    silence = asking(wav(bytes(32_000 * seconds)))
    assert list(stub.inference_stream(silence, timeout=TIMEOUT_S)) == []
    assert rows_of(stub.inference(silence, timeout=TIMEOUT_S)) == []
    assert events_of(service, silence) == ["event: end\ndata: {}", ""]


@needs_model
def test_a_broken_file_is_a_clear_error_in_each_form(service, stub):
    broken = asking(CLIP[:-1000])
    (in_parts,) = stub.inference_stream(broken, timeout=TIMEOUT_S)
    at_once = stub.inference(broken, timeout=TIMEOUT_S)
    for answer in (in_parts, at_once):
        assert answer.err_no == BAD_SOUND
        assert "cut off" in answer.err_msg
    kind, data = events_of(service, broken)[0].split("\n")
    assert kind == "event: error"
    assert json.loads(data.removeprefix("data: "))["err_no"] == BAD_SOUND


@needs_model
def test_a_cancelled_request_is_not_processed_further(service, monkeypatch):
    answers = iter([False, False, True])
    context = SimpleNamespace(is_cancelled=lambda: next(answers))
    monkeypatch.setattr(service.vad, "client", Deaf())
    scores = list(service.vad.scores(np.zeros(512 * 100, np.float32), context))
    assert scores == [0.25, 0.25]


class Deaf:
    """A model that gives every frame the same score, and checks that it gets its state back."""

    state: Any = 0

    def predict(self, feed: dict[str, Any], fetch: list[str]) -> dict[str, Any]:
        assert np.asarray(feed["state"]).max() == self.state
        self.state += 1
        return {"output": np.array([[0.25]]), "stateN": np.full((2, 1, 128), self.state)}
