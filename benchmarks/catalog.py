"""What is measured, against what, and which ratios we mean to reach."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.ask import Question
from benchmarks.services.batch import BATCH_SIZE, CALL_S, CONCURRENCY

MANY = 64  # clients at which throughput is compared

NUMBERS = [number + 0.5 for number in range(16)]
_TEXT = ",".join(map(str, NUMBERS))
REVIEW = (
    "I did not expect much of a film about a lighthouse keeper. But the story grows on you, the "
    "two leads are superb, and the last scene is one of the best I have seen in years."
)


class Transport(enum.Enum):
    """How a case is driven."""

    HTTP = "HTTP"
    GRPC = "gRPC"
    LOOP = "none"


@dataclass(frozen=True, slots=True)
class Case:
    """A service and how it is asked. `command`: a module of benchmarks/services, its arguments."""

    name: str
    command: tuple[str, ...]
    transport: Transport
    question: Question
    path: str = "/inference"


@dataclass(frozen=True, slots=True)
class Target:
    """A figure to reach: `figure` of `case` over that of `base`, or over a number (1: as it is).

    `figure` is an attribute of Measurement. `at_least`, or `at_most`, is the limit.
    """

    case: str
    clients: int
    figure: str
    base: str | float
    at_least: float | None = None
    at_most: float | None = None


def _echoes(answer: Mapping[str, str]) -> bool:
    return answer == {"x": _TEXT}


def _is_twice_the_sum(answer: Mapping[str, str]) -> bool:
    return math.isclose(float(answer["result"]), 2 * sum(NUMBERS))


def _is_positive(answer: Mapping[str, str]) -> bool:
    """The mean of the models' scores, the text of an array of one, takes the review's side."""
    (score,) = re.findall(r"\d\.\d*", answer["prediction"])
    return 0.5 < float(score) <= 1.0


_ECHO = Question("x", _TEXT, _echoes)
_DIAMOND = Question("x", _TEXT, _is_twice_the_sum)
_IMDB = Question("words", REVIEW, _is_positive, repeats_exactly=False)

_HTTP, _GRPC = Transport.HTTP, Transport.GRPC

GROUPS: dict[str, tuple[Case, ...]] = {
    "http": (
        Case("bare uvicorn echo", ("bare_uvicorn",), _HTTP, _ECHO),
        Case("mosec echo", ("mosec_echo",), _HTTP, _ECHO),
        Case("mosec four stages", ("mosec_four",), _HTTP, _DIAMOND),
        Case("E echo, HTTP", ("echo",), _HTTP, _ECHO, "/echo/prediction"),
        Case("E5 chain, HTTP", ("chain5",), _HTTP, _ECHO, "/chain5/prediction"),
        Case("D diamond, HTTP", ("diamond",), _HTTP, _DIAMOND, "/diamond/prediction"),
    ),
    "grpc": (
        Case("bare grpc.aio echo", ("bare_grpc",), _GRPC, _ECHO),
        Case("E echo, gRPC", ("echo",), _GRPC, _ECHO),
        Case("E5 chain, gRPC", ("chain5",), _GRPC, _ECHO),
        Case("D diamond, gRPC", ("diamond",), _GRPC, _DIAMOND),
    ),
    "batch": (
        Case("plain loop of sleeps", ("sleep_loop",), Transport.LOOP, _ECHO),
        Case("B batches, full", ("batch", "full"), _HTTP, _ECHO, "/batch/prediction"),
        Case("B batches, adaptive", ("batch", "adaptive"), _HTTP, _ECHO, "/batch/prediction"),
    ),
    "imdb": (
        Case("plain onnxruntime loop", ("imdb_loop",), Transport.LOOP, _IMDB),
        Case("I IMDB ensemble, HTTP", ("imdb",), _HTTP, _IMDB, "/imdb/prediction"),
    ),
}

_B_IDEAL_PER_S = CONCURRENCY * BATCH_SIZE / CALL_S

TARGETS = (
    Target("E echo, gRPC", MANY, "per_s", "bare grpc.aio echo", at_least=0.75),
    Target("E echo, HTTP", MANY, "per_s", "bare uvicorn echo", at_least=0.55),
    Target("E echo, HTTP", MANY, "per_s", "mosec echo", at_least=1.2),
    Target("E5 chain, HTTP", MANY, "per_s", "E echo, HTTP", at_least=0.6),
    Target("E5 chain, gRPC", MANY, "per_s", "E echo, gRPC", at_least=0.6),
    Target("D diamond, HTTP", MANY, "per_s", "bare uvicorn echo", at_least=0.4),
    Target("D diamond, HTTP", MANY, "per_s", "mosec four stages", at_least=3.0),
    Target("B batches, full", MANY, "per_s", _B_IDEAL_PER_S, at_least=0.95),
    Target("B batches, adaptive", MANY, "per_s", _B_IDEAL_PER_S, at_least=0.95),
    Target("B batches, adaptive", 1, "p50_ms", 1.0, at_most=5.5),
    Target("I IMDB ensemble, HTTP", MANY, "per_s", "plain onnxruntime loop", at_least=0.85),
    Target("E echo, HTTP", 1, "p50_ms", "bare uvicorn echo", at_most=3.0),
    Target("E echo, gRPC", 1, "p50_ms", "bare grpc.aio echo", at_most=3.0),
)
