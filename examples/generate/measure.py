"""Words a second: a plain loop over the model, and clients of the service in another process.

    python examples/generate/measure.py

The loop writes as many texts at once as there are callers, and begins another text when one ends.
`bare.py` is a second baseline: the same loop behind a uvicorn that sends events. The rounds of all
cases alternate; the figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import count
from typing import Any, cast

import grpc
import numpy as np
import onnxruntime
from bare import bare_server
from words import Vocabulary, words_of
from writing import Run, begin, step

from pipeline.proto import pipeline_service_pb2, pipeline_service_pb2_grpc

PROMPT, MOST, SECONDS, ROUNDS = "this movie is", 60, 3.0, 5
BARE_PORT = 18096
CASES = (
    "plain loop",
    "one answer, HTTP",
    "one answer, gRPC",
    "events of a bare uvicorn",
    "events (SSE)",
    "gRPC messages",
)


def main() -> None:
    arguments = _arguments()
    if arguments.port:
        clients = {"events": events, "messages": messages, "answers": answers, "posts": posts}
        print(asyncio.run(clients[arguments.client](arguments.port, arguments.callers)))
        return
    from web_server import HERE, server

    run = runner(str(HERE / "models" / "step.onnx"))
    vocabulary = Vocabulary.load(HERE / "models" / "words.txt")
    print("words a second, and us of processor time of the loop, or the server, for each")
    print(f"| callers | {' | us | '.join(CASES)} | us |")
    with server:
        for callers in (1, 8, 32):
            tries = (
                partial(loop, run, vocabulary, callers),
                partial(clients_rate, server.http_port, callers, "posts"),
                partial(clients_rate, server.rpc_port, callers, "answers"),
                partial(behind_uvicorn, run, vocabulary, callers),
                partial(clients_rate, server.http_port, callers, "events"),
                partial(clients_rate, server.rpc_port, callers, "messages"),
            )
            rounds = [[timed(write) for write in tries] for _ in range(arguments.rounds)]
            cells = []
            for case in range(len(CASES)):
                rates, costs = zip(*(figures[case] for figures in rounds), strict=True)
                cells.append(f"{statistics.median(rates):.0f} | {statistics.median(costs):.0f}")
            print(f"| {callers} | {' | '.join(cells)} |", flush=True)


def runner(path: str) -> Run:
    """Return a function that runs the model, without a predictor around it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)

    def run(word: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores, after = session.run(["scores", "next_state"], {"word": word, "state": state})
        return scores, after

    return run


def timed(write: Callable[[], float]) -> tuple[float, float]:
    """Return the words a second that `write` returns, and the processor time of a word in us."""
    began, used = time.perf_counter(), time.process_time()
    rate = write()
    used = time.process_time() - used
    # Starting the clients takes time without words, so the rate gives the number of words.
    return rate, used * 1e6 / (rate * min(SECONDS, time.perf_counter() - began))


def behind_uvicorn(run: Run, vocabulary: Vocabulary, callers: int) -> float:
    """Return the words a second that clients get as events of a bare server."""
    with bare_server(run, vocabulary, BARE_PORT):
        return clients_rate(BARE_PORT, callers, "events")


def loop(run: Run, vocabulary: Vocabulary, texts: int) -> float:
    """Return the words a second of the model alone."""
    prompt, seeds = vocabulary.encode(PROMPT), count()
    running = [begin(run, prompt, next(seeds), MOST) for _ in range(texts)]
    temperature = np.full(texts, 0.8, np.float32)
    written, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        _, done = step(run, running, temperature)
        written += texts
        for row in np.flatnonzero(done):
            running[row] = begin(run, prompt, next(seeds), MOST)
    return written / (time.perf_counter() - began)


def clients_rate(port: int, callers: int, client: str) -> float:
    """Return the words a second that clients in another process get."""
    command = [sys.executable, __file__, "--port", f"{port}", "--callers", f"{callers}"]
    command += ["--client", client]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


async def answers(port: int, callers: int) -> float:
    """Request single answers over gRPC in a loop; return the words a second."""

    async def ask(stub: Any, request: Any) -> int:
        answer = await stub.inference(request)
        assert not answer.err_no, answer.err_msg
        return min(MOST, len(words_of(answer.value[0])) + 1)

    return await _over_grpc(port, callers, ask)


async def posts(port: int, callers: int) -> float:
    """Request single answers over HTTP in a loop; return the words a second."""
    return await _over_http(port, callers, AnswerCounter)


async def messages(port: int, callers: int) -> float:
    """Request streams over gRPC in a loop; return the words a second."""

    async def ask(stub: Any, request: Any) -> int:
        written = 0
        async for part in stub.inference_stream(request):
            assert not part.err_no, part.err_msg
            written += 1
        return written

    return await _over_grpc(port, callers, ask)


async def _over_grpc(
    port: int, callers: int, ask: Callable[[Any, Any], Coroutine[Any, Any, int]]
) -> float:
    seeds = count()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = pipeline_service_pb2_grpc.PipelineServiceStub(channel)
        began = time.perf_counter()

        async def caller() -> int:
            written = 0
            while time.perf_counter() - began < SECONDS:
                texts = [PROMPT, f"{MOST}", f"{next(seeds)}"]
                request = pipeline_service_pb2.Request(key=["prompt", "most", "seed"], value=texts)
                written += await ask(stub, request)
            return written

        written = sum(await asyncio.gather(*(caller() for _ in range(callers))))
        return written / (time.perf_counter() - began)


async def events(port: int, callers: int) -> float:
    """Request server-sent events in a loop; return the words a second."""
    return await _over_http(port, callers, EventCounter)


async def _over_http(port: int, callers: int, counter: type[Counter]) -> float:
    """Run clients that only count words, so that they use little processor time."""
    seeds, loop = count(), asyncio.get_running_loop()
    began = time.perf_counter()

    async def caller() -> int:
        ended: asyncio.Future[int] = loop.create_future()
        await loop.create_connection(lambda: counter(seeds, began, ended), "127.0.0.1", port)
        return await ended

    written = sum(await asyncio.gather(*(caller() for _ in range(callers))))
    return written / (time.perf_counter() - began)


class Counter(asyncio.Protocol):
    """A connection that sends one request after the other, and counts the words."""

    ACCEPT = ""

    def __init__(self, seeds: Iterator[int], began: float, ended: asyncio.Future[int]) -> None:
        self._seeds, self._began, self._ended = seeds, began, ended
        self._written = 0
        self._came = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _next(self) -> None:
        self._came = b""
        if time.perf_counter() - self._began < SECONDS:
            self._ask()
        else:
            self._transport.close()
            self._ended.set_result(self._written)

    def _ask(self) -> None:
        texts = [PROMPT, f"{MOST}", f"{next(self._seeds)}"]
        body = json.dumps({"key": ["prompt", "most", "seed"], "value": texts})
        self._transport.write(
            "POST /generate/prediction HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Accept: {self.ACCEPT}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )


class EventCounter(Counter):
    """Requests streams."""

    ACCEPT, END = "text/event-stream", b"event: end"

    def data_received(self, data: bytes) -> None:
        self._written += data.count(b'data: {"')  # a short event is never split
        self._came = (self._came + data)[-64:]
        if self._came.endswith(b"0\r\n\r\n"):
            assert self.END in self._came, "the stream ended with an error"
            self._next()


class AnswerCounter(Counter):
    """Requests single answers, and counts their words."""

    ACCEPT = "application/json"

    def data_received(self, data: bytes) -> None:
        self._came += data
        _, _, body = self._came.partition(b"\r\n\r\n")
        if body.endswith(b"}"):  # a short answer arrives in one or two packets
            answer = json.loads(body)
            assert not answer["err_no"], answer["err_msg"]
            self._written += min(MOST, len(words_of(answer["value"][0])) + 1)
            self._next()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure words a second.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of rounds")
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--callers", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--client", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
