"""Run the service for microphones, have many of them heard at once, and stop it: `make speech`.

Exits with 1 where what is said of a chunk is not what the model alone says of it.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
from microphones import config, server
from segments import FRAME, find_segments, frames_of
from sound import RATE, read_sound

from pipeline.proto import inference_v2_pb2 as pb

HOST, TIMEOUT_S = "127.0.0.1", 60
ROOMS, SECONDS = 30, 2
CLIP = (Path(__file__).resolve().parent / "clip.wav").read_bytes()
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
Array = np.ndarray


def main() -> int:
    clip = read_sound(CLIP)
    rooms = {f"room {n}": np.roll(clip, -n * RATE // 20)[: SECONDS * RATE] for n in range(ROOMS)}
    with server:
        began = time.perf_counter()
        heard = hear(f"{HOST}:{server.rpc_port}", rooms)
        took_s = time.perf_counter() - began
    print(f"{ROOMS} microphones for {SECONDS} s, heard in {took_s:.1f} s")
    for name in list(rooms)[:3]:
        print(f"  {name}: {spoken(heard[name])}")
    wrong = [name for name, samples in rooms.items() if heard[name] != alone(samples)]
    if wrong or not any(map(spoken, heard.values())):
        print(f"demo failed: not what the model alone says: {wrong}", file=sys.stderr)
        return 1
    print("\ndemo passed: chunk by chunk what the model alone says")
    return 0


def hear(address: str, rooms: Mapping[str, Array]) -> dict[str, list[float]]:
    """How likely each chunk of each room is speech: all at once, and nobody waits for answers."""
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(
            STREAM, pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )
        heard: dict[str, list[float]] = {name: [] for name in rooms}
        for answer in call(chunks_of(rooms), timeout=TIMEOUT_S):
            if answer.error_message:
                sys.exit(f"demo failed: {answer.error_message}")
            name = answer.infer_response.id
            heard[name].append(scores_of(answer.infer_response)[0])
    return heard


def chunks_of(rooms: Mapping[str, Array]) -> Iterator[Any]:
    """The requests: the first chunk of each room, the second one of each, and so on."""
    frames = {name: frames_of(samples)[:, -FRAME:] for name, samples in rooms.items()}
    last = len(next(iter(frames.values()))) - 1
    for step in range(last + 1):
        for name, chunks in frames.items():
            yield step_of(name, chunks[step], start=step == 0, end=step == last)


def step_of(name: str, chunk: Array, start: bool = False, end: bool = False) -> Any:
    """The request with one chunk of a microphone."""
    request = pb.ModelInferRequest(model_name="listen", id=name)
    request.parameters["sequence_id"].string_param = name
    request.parameters["sequence_start"].bool_param = start
    request.parameters["sequence_end"].bool_param = end
    request.inputs.add(name="chunk", datatype="FP32", shape=[1, FRAME])
    request.raw_input_contents.append(chunk.astype(np.float32).tobytes())
    return request


def scores_of(answer: Any) -> list[float]:
    scores: list[float] = np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()
    return scores


def alone(samples: Array) -> list[float]:
    """What the model says of the same, one chunk after the other, without a server."""
    session = model()
    state, scores = np.zeros((2, 1, 128), np.float32), []
    for frame in frames_of(samples):
        feed = {"input": frame[np.newaxis], "state": state, "sr": np.array(RATE)}
        score, state = session.run(["output", "stateN"], feed)
        scores.append(float(score[0, 0]))
    return scores


@functools.cache
def model() -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = config["op"]["listen"]["local_service_conf"]["model_config"]
    return onnxruntime.InferenceSession(path, options)


def spoken(scores: list[float]) -> str:
    """From when to when somebody speaks."""
    times = [(first * FRAME / RATE, last * FRAME / RATE) for first, last in find_segments(scores)]
    return ", ".join("{:.2f} to {:.2f} s".format(*each) for each in times)


if __name__ == "__main__":
    sys.exit(main())
