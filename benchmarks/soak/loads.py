"""The soaks: services, and stretches of load that check every answer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks import NotMeasuredError
from benchmarks.ask import Question, ask_grpc, ask_http
from benchmarks.catalog import array_question, bytes_question
from benchmarks.load import grpc_load, http_load
from benchmarks.loading import KINDS, period, ready, write_repository
from benchmarks.process import Service, running
from benchmarks.services.common import PROCESSES
from benchmarks.services.soaked import COUNT, PART, SEQUENCES, STREAMS
from pipeline import PipelineClient

_SMALLEST_BYTES, _LARGEST_BYTES = 10, 4 * 2**20
_LOADS = 4  # sizes at a time
_CLIENTS = 8  # of each size
_ALL_CLIENTS = 64
_CALLERS = 8  # that this process has
_STRETCH_S = 4
_LAYERS = 2  # of the model that is loaded over and over
_PER_S = 50.0  # requests to its neighbour


@dataclass(frozen=True)
class Soak:
    """A service and its load.

    Attributes:
        serve: starts the service, which ends with the context.
        stretch: loads it for some seconds; the number of requests. Raises NotMeasuredError for a
            wrong answer. The same random numbers ask for the same things.
        most_mib: resident and shared memory may grow by so much in a third of the time: what the
            allocator may keep.
    """

    title: str
    serve: Callable[[ExitStack], Service]
    stretch: Callable[[Service, random.Random], int]
    most_mib: float = 4.0


def _service(*command: str) -> Callable[[ExitStack], Service]:
    def serve(stack: ExitStack) -> Service:
        return stack.enter_context(running(*command))

    return serve


# An echo in threads ------------------------------------------------------------------------------

_ECHO = Question("x", "1", lambda answer: answer["x"] == "1")


def _echo(service: Service, rng: random.Random) -> int:
    url = f"http://127.0.0.1:{service.http_port}/echo/prediction"
    answer = service.first_answer(lambda: ask_http(url, _ECHO))
    return http_load(url, _ECHO, _ALL_CLIENTS, _STRETCH_S, answer).requests


# Mixed sizes through two processes ---------------------------------------------------------------


def _processes(stack: ExitStack) -> Service:
    """Start the service, and ask for as much at a time as a stretch can.

    What the service keeps of its largest moment then has its size before the soak. Otherwise a
    random stretch that is larger than all before it would look like a leak.
    """
    service = stack.enter_context(running("big", PROCESSES))
    _ask(service, [_question(_LARGEST_BYTES, number % 2 == 0) for number in range(_LOADS)])
    return service


def _mixed(service: Service, rng: random.Random) -> int:
    """Load with a few sizes at a time, each as likely to be tens as millions of bytes."""
    most = _LARGEST_BYTES / _SMALLEST_BYTES
    sizes = [round(_SMALLEST_BYTES * most ** rng.random()) for _ in range(_LOADS)]
    return _ask(service, [_question(size, rng.random() < 0.5) for size in sizes])


def _ask(service: Service, questions: Sequence[Question]) -> int:
    with ThreadPoolExecutor(_LOADS) as pool:
        return sum(pool.map(lambda question: _load(service, question), questions))


def _question(size: int, is_bytes: bool) -> Question:
    """Bytes, or an array of floats."""
    content = random.Random(size).randbytes(size)
    if is_bytes:
        return bytes_question(content)
    return array_question(np.frombuffer(content, np.uint8)[: size // 4].astype(np.float32))


def _load(service: Service, question: Question) -> int:
    port = service.grpc_port
    answer = service.first_answer(lambda: ask_grpc(port, question))
    return grpc_load(port, question, _CLIENTS, _STRETCH_S, len(answer)).requests


# Streams and sequences ---------------------------------------------------------------------------


def _calling(
    name: str, call: Callable[[PipelineClient, random.Random], int]
) -> Callable[[Service, random.Random], int]:
    """Return a stretch of callers, half of them over HTTP and half over gRPC."""

    def stretch(service: Service, rng: random.Random) -> int:
        targets = (f"http://127.0.0.1:{service.http_port}/{name}", f"127.0.0.1:{service.grpc_port}")
        service.first_answer(lambda: ready(service.http_port))
        seeds = [rng.random() for _ in range(_CALLERS)]
        ends = time.monotonic() + _STRETCH_S

        def caller(number: int) -> int:
            own, count = random.Random(seeds[number]), 0
            with PipelineClient() as client:
                client.connect(targets[number % 2])
                while time.monotonic() < ends:
                    count += call(client, own)
            return count

        with ThreadPoolExecutor(_CALLERS) as pool:
            return sum(pool.map(caller, range(_CALLERS)))

    return stretch


def _stream(client: PipelineClient, rng: random.Random) -> int:
    """Read a stream to its end, or leave it; return 1."""
    leaves_at = rng.randrange(COUNT) if rng.random() < 0.3 else COUNT
    number = 0
    parts = client.predict_stream({"x": "1"})
    for number, part in enumerate(parts, 1):
        if part["number"] != number - 1 or part["text"] != PART:
            raise NotMeasuredError(f"part {number} of a stream is {part}")
        if number > leaves_at:
            parts.close()
            return 1
    if number != COUNT:
        raise NotMeasuredError(f"a stream ended after {number} parts")
    return 1


def _sequence(client: PipelineClient, rng: random.Random) -> int:
    """Run a sequence to its end, or leave it; return its steps."""
    steps, total = rng.randint(1, 10), 0
    with client.sequence() as sequence:
        for step in range(steps):
            value = rng.randrange(100)
            total += value
            is_end = step == steps - 1 and rng.random() < 0.7
            answer = sequence.predict({"x": str(value)}, end=is_end)
            if answer.err_no or answer["sum"] != total:
                raise NotMeasuredError(f"step {step} of a sequence is {answer}, not {total}")
    return steps


# A repository with loads -------------------------------------------------------------------------


def _repository(stack: ExitStack) -> Service:
    folder = stack.enter_context(TemporaryDirectory(prefix="bench-"))
    write_repository(Path(folder), _LAYERS)
    return stack.enter_context(running("repository", folder))


def _loading(service: Service, rng: random.Random) -> int:
    """Load and unload a model while another one is asked; both count."""
    service.first_answer(lambda: ready(service.http_port))
    done = period(service, rng.choice(KINDS), _STRETCH_S, _PER_S)
    return len(done.times_ms) + done.loads


SOAKS: Mapping[str, Soak] = {
    # A bare uvicorn echo grows by 0.8 MiB in a million requests.
    "threads": Soak("an echo in threads", _service("echo"), _echo, most_mib=2.0),
    "processes": Soak("mixed sizes through two processes", _processes, _mixed, most_mib=16.0),
    "streams": Soak("streams", _service("soaked", STREAMS), _calling(STREAMS, _stream)),
    "sequences": Soak("sequences", _service("soaked", SEQUENCES), _calling(SEQUENCES, _sequence)),
    # The allocator may keep the memory of a model.
    "repository": Soak("a repository with loads", _repository, _loading, most_mib=32.0),
}
