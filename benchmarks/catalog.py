"""The measured cases, their baselines, and the ratios to reach."""

from __future__ import annotations

import base64
import ctypes.util
import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.ask import (
    FormQuestion,
    PictureQuestion,
    PlainQuestion,
    Question,
    V2JsonQuestion,
    V2Question,
)
from benchmarks.process import ROOT
from benchmarks.services.common import (
    BLIND,
    GATEWAY,
    PROCESSES,
    PROFILED,
    WATCHED,
)
from benchmarks.services.picture_model import picture
from benchmarks.services.python_work import expected

MANY = 64  # clients when throughput is compared
THREADS = 16  # of an Op that asks a model service
CROWD = 4096  # open connections

PREDECESSOR_D_PER_S = 400.0  # its best figure for D and BIG in process mode, on a similar machine
PREDECESSOR_BIG_PER_S = 190.0

NUMBERS = [number + 0.5 for number in range(16)]
_TEXT = ",".join(map(str, NUMBERS))
REVIEW = (
    "I did not expect much of a film about a lighthouse keeper. But the story grows on you, the "
    "two leads are superb, and the last scene is one of the best I have seen in years."
)


class Transport(enum.Enum):
    """The protocol that drives a case."""

    HTTP = "HTTP"
    GRPC = "gRPC"
    LOOP = "none"


@dataclass(frozen=True, slots=True)
class Case:
    """A service and its request.

    Args:
        command: a module of benchmarks/services and its arguments.
        root: the tree that the service runs from.
        environment: additional variables.
        clients: numbers of clients; empty: those of the plan.
        is_counted: instructions are counted too.
    """

    name: str
    command: tuple[str, ...]
    transport: Transport
    question: Question
    path: str = "/inference"
    root: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict)
    clients: tuple[int, ...] = ()
    is_counted: bool = False


INSTRUCTIONS = "instructions"


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio to reach: `figure` of `case` over that of `base`, or over a number.

    Args:
        figure: an attribute of Measurement, or INSTRUCTIONS.
        base: a case, or a number (1: the absolute figure).
        at_least: lower limit of the ratio.
        at_most: upper limit of the ratio.
        hops: if positive, the difference divided by this counts instead of the ratio.
        ceiling: a bare case; a target that it misses is not held against the service.
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
_LABEL = FormQuestion("image", picture(), lambda answer: answer["label"] == 1)
_SCORES = PlainQuestion(
    "words", REVIEW, lambda answer: np.sum(answer["prediction"]) > 0.5, repeats_exactly=False
)
_PYTHON = Question("x", "1", lambda answer: answer == {"x": str(expected(1))})


def bytes_question(content: bytes) -> Question:
    """Asks for the bytes themselves back."""
    return Question("x", content, lambda answer: answer == {"x": content})


def array_question(array: npt.NDArray[Any]) -> Question:
    """Asks for the array itself back."""
    return Question("x", array, lambda answer: _is_array(answer.get("x"), array))


def _is_array(value: Any, array: npt.NDArray[Any]) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.dtype == array.dtype
        and np.array_equal(value, array)
    )


_ROW = np.array(NUMBERS, np.float32)
_PLAIN_ECHO = PlainQuestion("x", list(NUMBERS), lambda answer: answer == {"x": list(NUMBERS)})
_V2_ECHO = V2Question("x", _ROW, lambda answer: _is_array(answer.get("x"), _ROW), model="echo")
_V2_DIAMOND = V2Question(
    "x", _ROW, lambda answer: answer["result"].tolist() == [2 * sum(NUMBERS)], model="diamond_v2"
)

_RANDOM = np.random.default_rng(seed=1)
_BYTES = bytes_question(_RANDOM.bytes(1_000_000))
_FLOATS = array_question(_RANDOM.random(250_000, dtype=np.float32))

_MANY_NUMBERS = [float(str(number)) for number in _RANDOM.random(250_000, dtype=np.float32)]
_LIST = PlainQuestion("x", _MANY_NUMBERS, lambda answer: answer == {"x": _MANY_NUMBERS})
_V2_LIST = V2JsonQuestion("x", _MANY_NUMBERS, lambda answer: answer == {"x": _MANY_NUMBERS})
_FILE = _RANDOM.bytes(1_000_000)
_PICTURE = PictureQuestion("image", _FILE, lambda answer: answer == {"image": _FILE})
_FILE_AS_TEXT = base64.b64encode(_FILE).decode()
_BASE64 = PlainQuestion("image", _FILE_AS_TEXT, lambda answer: answer == {"image": _FILE_AS_TEXT})
_HTTP, _GRPC, _LOOP = Transport.HTTP, Transport.GRPC, Transport.LOOP


def echo_case(name: str, *arguments: str, **more: Any) -> Case:
    return Case(name, ("echo", *arguments), _HTTP, _ECHO, "/echo/prediction", **more)


def chain5_case(name: str, *arguments: str, **more: Any) -> Case:
    return Case(name, ("chain5", *arguments), _HTTP, _ECHO, "/chain5/prediction", **more)


def _diamond(name: str, *arguments: str, **more: Any) -> Case:
    return Case(name, ("diamond", *arguments), _HTTP, _DIAMOND, "/diamond/prediction", **more)


def _many(name: str, *arguments: str, **more: Any) -> Case:
    return Case(name, ("many", *arguments), _HTTP, _ECHO, "/many/prediction", **more)


def _imdb(name: str, **more: Any) -> Case:
    return Case(name, ("imdb",), _HTTP, _IMDB, "/imdb/prediction", **more)


def _v2(name: str, transport: Transport, question: V2Question, *command: str) -> Case:
    path = f"/v2/models/{question.model}/infer"
    is_ours = command[0] != "triton"
    return Case(name, command, transport, question, path, is_counted=is_ours)


def _answered(name: str, kind: type[Question], path: str) -> Case:
    return Case(name, ("array", "16"), _HTTP, kind("x", "1", bool), path, is_counted=True)


def _large(name: str, question: Question, path: str, *command: str) -> Case:
    return Case(name, command, _HTTP, question, path, clients=(1,))


def v2_echo_case(name: str) -> Case:
    return _v2(name, _HTTP, _V2_ECHO, "echo")


_COUNTED: dict[str, Any] = {"is_counted": True}
_CROWD: dict[str, Any] = {"clients": (CROWD,)}
_ALLOCATORS: dict[str, dict[str, str]] = {"malloc": {}}
if _JEMALLOC := ctypes.util.find_library("jemalloc"):
    _ALLOCATORS["jemalloc"] = {"LD_PRELOAD": _JEMALLOC}

GROUPS: dict[str, tuple[Case, ...]] = {
    "http": (
        Case("bare uvicorn echo", ("bare_uvicorn",), _HTTP, _ECHO, is_counted=True),
        Case("mosec echo", ("mosec_echo",), _HTTP, _ECHO),
        Case("mosec four stages", ("mosec_four",), _HTTP, _DIAMOND),
        echo_case("E echo, HTTP", **_COUNTED),
        chain5_case("E5 chain, HTTP", **_COUNTED),
        _diamond("D diamond, HTTP", **_COUNTED),
        _many("chain of 50, HTTP", "chain", "50", **_COUNTED),
        _many("50 side by side, HTTP", "wide", "50", **_COUNTED),
    ),
    "grpc": (
        Case("bare grpc.aio echo", ("bare_grpc",), _GRPC, _ECHO, is_counted=True),
        Case("E echo, gRPC", ("echo",), _GRPC, _ECHO, is_counted=True),
        Case("E5 chain, gRPC", ("chain5",), _GRPC, _ECHO),
        Case("D diamond, gRPC", ("diamond",), _GRPC, _DIAMOND),
        Case("E echo, gRPC, gateway as its child", ("echo", GATEWAY), _GRPC, _ECHO),
    ),
    "batch": (
        Case("bare sleeps", ("sleep_loop",), _LOOP, _ECHO),
        Case("bare sleeps beside B", ("sleep_loop", "beside"), _LOOP, _ECHO, clients=(MANY,)),
        Case("B batches, full", ("batch", "full"), _HTTP, _ECHO, "/batch/prediction"),
        Case("B batches, adaptive", ("batch", "adaptive"), _HTTP, _ECHO, "/batch/prediction"),
    ),
    "imdb": (
        Case("plain onnxruntime loop", ("imdb_loop",), _LOOP, _IMDB),
        _imdb("I IMDB ensemble, HTTP"),
    ),
    "peers": tuple(
        case
        for name, model, question in (("JPEGs", "jpeg", _LABEL), ("IMDB", "imdb", _SCORES))
        for case in (
            Case(f"{name}, FastAPI", ("peer", "fastapi", model), _HTTP, question, "/predict"),
            Case(f"{name}, LitServe", ("peer", "litserve", model), _HTTP, question, "/predict"),
            Case(name, (model,), _HTTP, question, f"/api/{model}"),
            Case(f"{name}, processes", (model, PROCESSES), _HTTP, question, f"/api/{model}"),
        )
    ),
    "process": (
        Case("mosec, four processes", ("mosec_four",), _HTTP, _DIAMOND),
        echo_case("E, threads"),
        echo_case("Ep, processes", PROCESSES),
        chain5_case("E5, threads"),
        chain5_case("E5p, processes", PROCESSES),
        _diamond("D, threads"),
        _diamond("Dp, processes", PROCESSES),
    ),
    "v2": (
        _v2("Triton echo, v2 HTTP", _HTTP, _V2_ECHO, "triton"),
        _v2("E echo, v2 HTTP", _HTTP, _V2_ECHO, "echo"),
        _v2("Triton ensemble, v2 HTTP", _HTTP, _V2_DIAMOND, "triton"),
        _v2("D diamond, v2 HTTP", _HTTP, _V2_DIAMOND, "diamond_v2"),
        _v2("Dp diamond, v2 HTTP", _HTTP, _V2_DIAMOND, "diamond_v2", PROCESSES),
        _v2("Triton echo, v2 gRPC", _GRPC, _V2_ECHO, "triton"),
        _v2("E echo, v2 gRPC", _GRPC, _V2_ECHO, "echo"),
        _v2("E echo, v2 gRPC, gateway", _GRPC, _V2_ECHO, "echo", GATEWAY),
    ),
    "gateway": (
        echo_case("E, embedded door"),
        echo_case("E, gateway as its child", GATEWAY),
    ),
    "watched": (
        echo_case("E, nothing recorded", BLIND, clients=(MANY,), **_COUNTED),
        echo_case("E, statistics", clients=(MANY,), **_COUNTED),
        echo_case("E, all on", WATCHED, clients=(MANY,), **_COUNTED),
        echo_case("E, all on, and profiles", PROFILED, clients=(MANY,), **_COUNTED),
    ),
    "crowd": (
        Case("bare uvicorn, a crowd", ("bare_uvicorn",), _HTTP, _ECHO, **_CROWD),
        echo_case("E, a crowd", **_CROWD),
        echo_case("E, a crowd, gateway as its child", GATEWAY, **_CROWD),
    ),
    "remote": tuple(
        Case(
            f"{name}, {protocol}",
            ("predictor_loop", protocol, caller),
            _LOOP,
            _ECHO,
            clients=(1, THREADS),
        )
        for protocol in ("brpc", "grpc")
        for name, caller in (("bare stub", "stub"), ("predictor", "predictor"))
    ),
    "big": (
        Case("bare echo of bytes", ("bare_grpc",), _GRPC, _BYTES),
        Case("BIG bytes, threads", ("big",), _GRPC, _BYTES),
        Case("BIG bytes, processes", ("big", PROCESSES), _GRPC, _BYTES),
        Case("bare echo of floats", ("bare_grpc",), _GRPC, _FLOATS),
        Case("BIG floats, threads", ("big",), _GRPC, _FLOATS),
        Case("BIG floats, processes", ("big", PROCESSES), _GRPC, _FLOATS),
    ),
    "plain": (
        echo_case("E, own form", **_COUNTED),
        Case("E, plain JSON", ("echo",), _HTTP, _PLAIN_ECHO, "/api/echo", is_counted=True),
        _answered("16 floats of an Op, own form", Question, "/array/prediction"),
        _answered("16 floats of an Op, plain JSON", PlainQuestion, "/api/array"),
        _large("floats, v2 JSON", _V2_LIST, "/v2/models/floats/infer", "floats"),
        _large("floats, plain JSON", _LIST, "/api/floats", "floats"),
        _large("floats, plain JSON by a schema", _LIST, "/api/floats", "floats", "typed"),
        _large("picture, plain JSON in base64", _BASE64, "/api/pictures", "pictures"),
        _large("picture, as bytes", _PICTURE, "/api/pictures", "pictures"),
    ),
    "python": (
        Case("P, threads", ("python_work",), _HTTP, _PYTHON, "/python_work/prediction"),
        Case("P, processes", ("python_work", PROCESSES), _HTTP, _PYTHON, "/python_work/prediction"),
    ),
    "fleet": tuple(
        Case(name, ("gateway", module, str(count)), _HTTP, _ECHO, "/echo/prediction")
        for count in (1, 4)
        for name, module in (
            (f"gateway before {count} bare grpc.aio echo", "bare_grpc"),
            (f"gateway before {count} E", "echo"),
        )
    ),
    "malloc": tuple(
        make(f"{name}, {allocator}", *arguments, clients=(MANY,), environment=variables)
        for make, name, arguments in (
            (echo_case, "E", ()),
            (_diamond, "D", ()),
            (_diamond, "Dp", (PROCESSES,)),
            (_imdb, "I", ()),
        )
        for allocator, variables in _ALLOCATORS.items()
    ),
}

SETS = {
    "goals": (
        "http",
        "grpc",
        "batch",
        "imdb",
        "peers",
        "process",
        "v2",
        "gateway",
        "watched",
        "crowd",
    ),
    "rest": ("remote", "big", "plain", "python", "fleet", "malloc"),
}
"""Groups that are measured and written together, each a part of docs/measurements.md."""


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


def _at_least(case: str, base: str | float, ratio: float, **more: Any) -> Target:
    """Requests/s with many clients."""
    return Target(case, MANY, "per_s", base, at_least=ratio, **more)


def _p50_at_most(case: str, base: str | float, ratio: float) -> Target:
    """Of a lone caller."""
    return Target(case, 1, "p50_ms", base, at_most=ratio)


def _instructions_at_most(case: str, base: str, ratio: float) -> Target:
    return Target(case, 1, INSTRUCTIONS, base, at_most=ratio)


def _cpu_at_most(case: str, base: str, ratio: float) -> Target:
    return Target(case, MANY, "server_ms", base, at_most=ratio)


TARGETS = (
    _at_least("E echo, HTTP", "bare uvicorn echo", 1.1),
    _instructions_at_most("E echo, HTTP", "bare uvicorn echo", 1.0),
    _p50_at_most("E echo, HTTP", "bare uvicorn echo", 2.0),
    _at_least("E echo, HTTP", "mosec echo", 3.5),
    _at_least("E5 chain, HTTP", "E echo, HTTP", 0.8),
    _at_least("D diamond, HTTP", "bare uvicorn echo", 0.75),
    _at_least("D diamond, HTTP", "mosec four stages", 5.0),
    _cpu_at_most("chain of 50, HTTP", "E echo, HTTP", 6.0),
    _cpu_at_most("50 side by side, HTTP", "E echo, HTTP", 6.0),
    _at_least("E echo, gRPC", "bare grpc.aio echo", 0.75),
    _p50_at_most("E echo, gRPC", "bare grpc.aio echo", 3.0),
    _at_least("E5 chain, gRPC", "E echo, gRPC", 0.6),
    _at_least("E echo, gRPC, gateway as its child", "bare grpc.aio echo", 2.5),
    _at_least("E echo, gRPC, gateway as its child", "E echo, gRPC", 2.0),
    _p50_at_most("E echo, gRPC, gateway as its child", "E echo, gRPC", 1.3),
    _at_least("B batches, full", "bare sleeps beside B", 0.98),
    _at_least("B batches, adaptive", "bare sleeps beside B", 0.98),
    _p50_at_most("B batches, adaptive", 1.0, 5.4),
    _at_least("I IMDB ensemble, HTTP", "plain onnxruntime loop", 0.85),
    *(
        _at_least(name, f"{name}, {peer}", ratio)
        for name in ("JPEGs", "IMDB")
        for peer, ratio in (("FastAPI", 2.0), ("LitServe", 4.0))
    ),
    _at_least("Dp, processes", "mosec, four processes", 3.0),
    _at_least("Dp, processes", PREDECESSOR_D_PER_S, 10.0),
    Target("Ep, processes", 1, "p50_us", "E, threads", at_most=100.0, hops=1),
    Target("E5p, processes", 1, "p50_us", "Ep, processes", at_most=100.0, hops=4),
    _at_least("E echo, v2 HTTP", "Triton echo, v2 HTTP", 2.0),
    _at_least("D diamond, v2 HTTP", "Triton ensemble, v2 HTTP", 3.0),
    _at_least("Dp diamond, v2 HTTP", "Triton ensemble, v2 HTTP", 2.0),
    _at_least("E echo, v2 gRPC", "Triton echo, v2 gRPC", 1.5),
    _at_least("E echo, v2 gRPC, gateway", "Triton echo, v2 gRPC", 1.5),
    _at_least("E, gateway as its child", "E, embedded door", 2.0),
    _p50_at_most("E, gateway as its child", "E, embedded door", 1.3),
    _instructions_at_most("E, all on", "E, nothing recorded", 1.15),
    Target("E, a crowd", CROWD, "p99_ms", "bare uvicorn, a crowd", at_most=2.0),
    *(target for protocol in ("brpc", "grpc") for target in _remote_targets(protocol)),
    *(target for kind in ("bytes", "floats") for target in _big_targets(kind)),
    _instructions_at_most("E, plain JSON", "E, own form", 1.0),
    _instructions_at_most("16 floats of an Op, plain JSON", "16 floats of an Op, own form", 1.0),
    Target("floats, plain JSON", 1, "per_s", "floats, v2 JSON", at_least=1.0),
    Target("floats, plain JSON by a schema", 1, "per_s", "floats, v2 JSON", at_least=1.0),
    Target("picture, as bytes", 1, "per_s", "picture, plain JSON in base64", at_least=1.0),
    _at_least("P, processes", "P, threads", 1.8),
    _at_least("gateway before 1 E", "gateway before 1 bare grpc.aio echo", 0.9),
    _at_least("gateway before 4 E", "gateway before 4 bare grpc.aio echo", 0.9),
)
