"""What is measured, against what, and which ratios we mean to reach."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.ask import Question
from benchmarks.process import ROOT
from benchmarks.services.batch import BATCH_SIZE, CALL_S, CONCURRENCY
from benchmarks.services.common import BLIND, GATEWAY, PROCESSES, PROFILED, WATCHED
from benchmarks.services.python_work import expected

MANY = 64  # clients at which throughput is compared
THREADS = 16  # those of an Op that asks a model service

PREDECESSOR_D_PER_S = 400.0  # D and BIG in its process mode, at best, on such a machine
PREDECESSOR_BIG_PER_S = 190.0

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
    """A service and how it is asked. `command`: a module of benchmarks/services, its arguments.

    `root`: the tree that it runs from.
    """

    name: str
    command: tuple[str, ...]
    transport: Transport
    question: Question
    path: str = "/inference"
    root: Path = ROOT


@dataclass(frozen=True, slots=True)
class Target:
    """A figure to reach: `figure` of `case` over that of `base`, or over a number (1: as it is).

    `figure` is an attribute of Measurement. `at_least`, or `at_most`, is the limit. Where `hops`
    are given, what counts is not the ratio but the difference, by so many hops. `ceiling`: the
    bare case that no service outdoes, so that what is beyond it too is not held against ours.
    """

    case: str
    clients: int
    figure: str
    base: str | float
    at_least: float | None = None
    at_most: float | None = None
    hops: int = 0
    ceiling: str | None = None


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
_PYTHON = Question("x", "1", lambda answer: answer == {"x": str(expected(1))})


def bytes_question(content: bytes) -> Question:
    """Asks for the bytes themselves back."""
    return Question("x", content, lambda answer: answer == {"x": content})


def array_question(array: npt.NDArray[Any]) -> Question:
    """Asks for the array itself back."""
    return Question("x", array, lambda answer: _is_array(answer.get("x"), array))


def _is_array(found: Any, array: npt.NDArray[Any]) -> bool:
    return (
        isinstance(found, np.ndarray)
        and found.dtype == array.dtype
        and np.array_equal(found, array)
    )


_RANDOM = np.random.default_rng(seed=1)
_BYTES = bytes_question(_RANDOM.bytes(1_000_000))
_FLOATS = array_question(_RANDOM.random(250_000, dtype=np.float32))

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
    "process": (
        Case("mosec, four processes", ("mosec_four",), _HTTP, _DIAMOND),
        Case("E, threads", ("echo",), _HTTP, _ECHO, "/echo/prediction"),
        Case("Ep, processes", ("echo", PROCESSES), _HTTP, _ECHO, "/echo/prediction"),
        Case("E5, threads", ("chain5",), _HTTP, _ECHO, "/chain5/prediction"),
        Case("E5p, processes", ("chain5", PROCESSES), _HTTP, _ECHO, "/chain5/prediction"),
        Case("D, threads", ("diamond",), _HTTP, _DIAMOND, "/diamond/prediction"),
        Case("Dp, processes", ("diamond", PROCESSES), _HTTP, _DIAMOND, "/diamond/prediction"),
    ),
    "big": (
        Case("bare echo of bytes", ("bare_grpc",), _GRPC, _BYTES),
        Case("BIG bytes, threads", ("big",), _GRPC, _BYTES),
        Case("BIG bytes, processes", ("big", PROCESSES), _GRPC, _BYTES),
        Case("bare echo of floats", ("bare_grpc",), _GRPC, _FLOATS),
        Case("BIG floats, threads", ("big",), _GRPC, _FLOATS),
        Case("BIG floats, processes", ("big", PROCESSES), _GRPC, _FLOATS),
    ),
    "python": (
        Case("P, threads", ("python_work",), _HTTP, _PYTHON, "/python_work/prediction"),
        Case("P, processes", ("python_work", PROCESSES), _HTTP, _PYTHON, "/python_work/prediction"),
    ),
    "watched": tuple(
        Case(f"E, {name}", ("echo", *arguments), _HTTP, _ECHO, "/echo/prediction")
        for name, arguments in (
            ("nothing recorded", (BLIND,)),
            ("statistics", ()),
            ("all on", (WATCHED,)),
            ("all on, and profiles", (PROFILED,)),
        )
    ),
    "gateway": (
        Case("E, embedded door", ("echo",), _HTTP, _ECHO, "/echo/prediction"),
        Case("E, gateway as its child", ("echo", GATEWAY), _HTTP, _ECHO, "/echo/prediction"),
        *(
            Case(name, ("gateway", module, str(count)), _HTTP, _ECHO, "/echo/prediction")
            for count in (1, 4)
            for name, module in (
                (f"gateway before {count} bare grpc.aio echo", "bare_grpc"),
                (f"gateway before {count} E", "echo"),
            )
        ),
    ),
    "remote": tuple(
        Case(f"{name}, {protocol}", ("predictor_loop", protocol, who), Transport.LOOP, _ECHO)
        for protocol in ("brpc", "grpc")
        for name, who in (("bare stub", "stub"), ("predictor", "predictor"))
    ),
}

_B_IDEAL_PER_S = CONCURRENCY * BATCH_SIZE / CALL_S


def _big_targets(kind: str) -> tuple[Target, ...]:
    ours, bare = f"BIG {kind}, processes", f"bare echo of {kind}"
    return (
        Target(ours, MANY, "per_s", bare, at_least=0.6),
        Target(ours, MANY, "per_s", PREDECESSOR_BIG_PER_S, at_least=10.0, ceiling=bare),
    )


def _remote_targets(protocol: str) -> tuple[Target, ...]:
    ours, bare = f"predictor, {protocol}", f"bare stub, {protocol}"
    return (
        *(Target(ours, clients, "per_s", bare, at_least=0.5) for clients in (1, THREADS)),
        Target(ours, 1, "p50_us", bare, at_most=150.0, hops=1),
    )


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
    Target("Dp, processes", MANY, "per_s", "D, threads", at_least=0.5),
    Target("Dp, processes", MANY, "per_s", "mosec, four processes", at_least=2.0),
    Target("Dp, processes", MANY, "per_s", PREDECESSOR_D_PER_S, at_least=10.0),
    Target("Ep, processes", 1, "p50_us", "E, threads", at_most=100.0, hops=1),
    Target("E5p, processes", 1, "p50_us", "Ep, processes", at_most=100.0, hops=4),
    *(target for kind in ("bytes", "floats") for target in _big_targets(kind)),
    Target("P, processes", MANY, "per_s", "P, threads", at_least=1.8),
    Target("E, statistics", MANY, "per_s", "E, nothing recorded", at_least=0.95),
    Target("E, all on", MANY, "per_s", "E, nothing recorded", at_least=0.95),
    Target("E, all on, and profiles", MANY, "per_s", "E, nothing recorded", at_least=0.95),
    Target(
        "E, gateway as its child",
        MANY,
        "per_s",
        "gateway before 1 bare grpc.aio echo",
        at_least=0.9,
    ),
    *(
        Target(
            f"gateway before {count} E",
            MANY,
            "per_s",
            f"gateway before {count} bare grpc.aio echo",
            at_least=0.9,
        )
        for count in (1, 4)
    ),
    *(target for protocol in ("brpc", "grpc") for target in _remote_targets(protocol)),
)
