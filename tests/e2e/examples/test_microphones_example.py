"""examples/speech: many microphones at once, chunk by chunk what the model alone says of each.

They need the package that carries the model.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
from doubles import wait_until
from paths import ROOT

from pipeline.proto import inference_v2_pb2 as pb

EXAMPLE = ROOT / "examples" / "speech"
OWN = ("installed", "microphones", "microphones_demo", "segments", "sound")
UNARY = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
NO_START = "must specify the START flag on the first request"

pytestmark = pytest.mark.skipif(
    find_spec("silero_vad") is None, reason="no model: pip install --no-deps silero-vad==6.2.3"
)


def copied(folder: Path) -> Path:
    """The example on ports that are free; a busy machine may take its time between two chunks."""
    copy = folder / "speech"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    config = copy / "microphones.yml"
    text = config.read_text(encoding="utf-8")
    for before, after in (("18098", "0"), ("18099", "0"), ("idle_ms: 5000", "idle_ms: 60000")):
        assert before in text
        text = text.replace(before, after)
    config.write_text(text, encoding="utf-8")
    return copy


def test_the_demo_passes(tmp_path):
    done = subprocess.run(
        [sys.executable, str(copied(tmp_path) / "microphones_demo.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("demo passed")


@pytest.fixture(scope="module")
def demo(module_logs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of the demo, with the server running."""
    folder = str(copied(tmp_path_factory.mktemp("copy")))
    others = {name: sys.modules.pop(name) for name in OWN if name in sys.modules}
    sys.path.insert(0, folder)
    try:
        loaded = import_module("microphones_demo")
        with loaded.server:
            yield loaded
    finally:
        sys.path.remove(folder)
        for name in OWN:
            sys.modules.pop(name, None)
        sys.modules.update(others)


def step_of(name: str, chunk: Any, start: bool = False, end: bool = False) -> Any:
    """The request of v2 with one chunk of a microphone."""
    request = pb.ModelInferRequest(model_name="listen", id=name)
    request.parameters["sequence_id"].string_param = name
    request.parameters["sequence_start"].bool_param = start
    request.parameters["sequence_end"].bool_param = end
    request.inputs.add(name="chunk", datatype="FP32", shape=[1, 512])
    request.raw_input_contents.append(chunk.astype(np.float32).tobytes())
    return request


def score_of(answer: Any) -> float:
    (score,) = np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()
    return float(score)


class Ears:
    """Callers of the service, by v2."""

    def __init__(self, demo: ModuleType, channel: grpc.Channel) -> None:
        (self.node,) = demo.server.executor.executor.nodes.values()
        self._unary: Any = channel.unary_unary(
            UNARY, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        self._stream: Any = channel.stream_stream(
            STREAM, pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )

    def hear(self, name: str, chunk: Any, start: bool = False, end: bool = False) -> Any:
        """The score of a chunk, or the text of the error."""
        try:
            return score_of(self._unary(step_of(name, chunk, start, end), timeout=60))
        except grpc.RpcError as error:
            return error.details()

    def hear_all(self, sounds: dict[str, Any], on_answer: Any = lambda count: None) -> Any:
        """The scores of all chunks, which are sent without waiting for an answer."""
        steps = itertools.product(range(len(next(iter(sounds.values())))), sounds.items())
        last = len(next(iter(sounds.values()))) - 1
        requests = [step_of(name, all[at], at == 0, at == last) for at, (name, all) in steps]
        heard: dict[str, list[float]] = {name: [] for name in sounds}
        for count, answer in enumerate(self._stream(iter(requests), timeout=60)):
            assert answer.error_message == ""
            heard[answer.infer_response.id].append(score_of(answer.infer_response))
            on_answer(count)
        return heard

    @property
    def sequences(self) -> Any:
        return self.node.state().sequences


@pytest.fixture
def ears(grpc_is_up: None, demo: ModuleType) -> Iterator[Ears]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{demo.server.rpc_port}"
    with grpc.insecure_channel(address, options=options) as channel:
        yield Ears(demo, channel)


def samples_of(demo: ModuleType, shift: int, chunks: int = 12) -> tuple[Any, list[Any]]:
    """The clip from some place on, and its chunks."""
    samples = np.roll(demo.read_sound(demo.CLIP), -shift)[: 512 * chunks]
    return samples, list(samples.reshape(-1, 512))


def test_interleaved_microphones_are_transcribed_as_if_alone(demo, ears):
    sounds = {f"turn {n}": samples_of(demo, 3000 * n) for n in range(4)}
    order = np.random.default_rng(7).permutation([name for name in sounds for _ in range(12)])
    step, heard = dict.fromkeys(sounds, 0), {name: [] for name in sounds}
    for name in order.tolist():
        place = step[name]
        chunk = sounds[name][1][place]
        heard[name].append(ears.hear(name, chunk, place == 0, place == 11))
        step[name] += 1
    assert heard == {name: demo.alone(samples) for name, (samples, _) in sounds.items()}
    assert ears.sequences.live == 0


def test_a_silent_speaker_has_left_and_starts_again(demo, ears, monkeypatch):
    samples, chunks = samples_of(demo, 5000)
    first = [ears.hear("silent", chunk, place == 0) for place, chunk in enumerate(chunks[:3])]
    with monkeypatch.context() as patched:
        patched.setattr(ears.node.scheduler.book, "_max_idle_s", 0.001)
        wait_until(lambda: ears.hear("another", chunks[0], True, True) and ears.sequences.reaped)
    assert ears.sequences.reaped == 1
    assert NO_START in ears.hear("silent", chunks[3])
    again = [
        ears.hear("silent", chunk, place == 0, place == 11) for place, chunk in enumerate(chunks)
    ]
    assert again == demo.alone(samples), "nothing was left of what it had said before"
    assert first == again[:3]


def test_microphones_that_send_ahead_are_transcribed_in_order(demo, ears):
    sounds = {f"ahead {n}": samples_of(demo, 1500 * n, 20) for n in range(20)}
    heard = ears.hear_all({name: chunks for name, (_, chunks) in sounds.items()})
    assert heard == {name: demo.alone(samples) for name, (samples, _) in sounds.items()}


def test_a_killed_worker_does_not_change_the_transcripts(demo, ears):
    def kill_one(count):
        if count == 100:
            victim = ears.node.workers.pool.up[0].child.pid
            os.kill(victim, signal.SIGKILL)

    sounds = {f"killed {n}": samples_of(demo, 1700 * n, 20) for n in range(20)}
    restarts = ears.node.state().workers.restarts
    heard = ears.hear_all({name: chunks for name, (_, chunks) in sounds.items()}, kill_one)
    assert heard == {name: demo.alone(samples) for name, (samples, _) in sounds.items()}
    wait_until(lambda: ears.node.state().workers.restarts == restarts + 1)
