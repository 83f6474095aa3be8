"""Run the service, send it the chunks of many microphones at once, and stop it: `make speech`.

Exits with status 1 if an answer differs from the model's own answer without a server.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from microphones import config, server
from segments import FRAME, find_segments, frames_of
from sound import RATE, read_sound

from pipeline import AsyncPipelineClient

HOST, TIMEOUT_S = "127.0.0.1", 60
ROOMS, SECONDS = 20, 2
CLIP = (Path(__file__).resolve().parent / "clip.wav").read_bytes()
Array = np.ndarray


def main() -> int:
    clip = read_sound(CLIP)
    rooms = {f"room {n}": np.roll(clip, -n * RATE // 20)[: SECONDS * RATE] for n in range(ROOMS)}
    with server:
        began = time.perf_counter()
        heard = asyncio.run(hear(f"{HOST}:{server.rpc_port}", rooms))
        took_s = time.perf_counter() - began
    print(f"{ROOMS} microphones for {SECONDS} s, heard in {took_s:.1f} s")
    for name in list(rooms)[:3]:
        print(f"  {name}: {spoken(heard[name])}")
    wrong = [name for name, samples in rooms.items() if heard[name] != alone(samples)]
    if wrong or not any(map(spoken, heard.values())):
        print(f"demo failed: answers differ from the model's: {wrong}", file=sys.stderr)
        return 1
    print("\ndemo passed: all answers are the model's")
    return 0


async def hear(address: str, rooms: Mapping[str, Array]) -> dict[str, list[float]]:
    """Return the scores of the chunks of each room; the rooms are sent concurrently."""
    async with AsyncPipelineClient() as client:
        client.connect([address])
        heard = await asyncio.gather(*(listen(client, samples) for samples in rooms.values()))
    return dict(zip(rooms, heard, strict=True))


async def listen(client: AsyncPipelineClient, samples: Array) -> list[float]:
    """Send the chunks of one microphone in order; return their scores."""
    scores = []
    async with client.sequence() as microphone:
        for chunk in chunks_of(samples):
            feed = {"chunk": chunk[np.newaxis]}
            answer = await microphone.predict(feed, pack_tensor_format=True, timeout=TIMEOUT_S)
            answer.raise_for_error()
            scores.append(float(answer["speech"][0, 0]))
    return scores


def chunks_of(samples: Array) -> Array:
    return frames_of(samples)[:, -FRAME:]


def alone(samples: Array) -> list[float]:
    """Return the scores of the model without a server, one chunk after the other."""
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
    """Return the times of speech."""
    times = [(first * FRAME / RATE, last * FRAME / RATE) for first, last in find_segments(scores)]
    return ", ".join(f"{start:.2f} to {end:.2f} s" for start, end in times)


if __name__ == "__main__":
    sys.exit(main())
