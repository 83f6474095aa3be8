"""`python -m benchmarks pictures`: what a request with 150 KB to 16 MiB costs, here and in Triton.

Python models that look at nothing, asked by 16 clients over v2 HTTP (binary) and v2 gRPC (raw), the
pipeline's own wire, and `/api` with a picture as its body; the services of a row in turns. Then the
99th percentile of small requests beside large ones, the memory that requests in flight take, and
the CPU time of the event loop's thread by the size of a request.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.ask import PictureQuestion, Question, V2Question
from benchmarks.catalog import Case, Target, Transport, bytes_question
from benchmarks.load import Load, http_load
from benchmarks.loading import ready
from benchmarks.measure import Plan, measure
from benchmarks.process import Service, running
from benchmarks.report import markdown, table
from benchmarks.services.common import GATEWAY, PROCESSES
from benchmarks.services.triton import installed

_MIB = 2**20
_LARGEST, _FEW = "16 MiB", 4
_SIZES = {"150 KB": (1, 3, 224, 224), "1 MiB": (1, 1, 1, _MIB), _LARGEST: (1, 1, 1, 16 * _MIB)}
_SAME = (0.97, 1.03)  # requests/s at least, CPU time at most, of what is compared with
_TRITON, _EMBEDDED = "Triton", "embedded"
_GOALS = {("150 KB", _TRITON): (1.2, 1.0), ("own wire", "before"): (2.5, 1.0)}
_GOALS |= {("/api", "before"): (2.0, 1.0), ("gateway, looks", _EMBEDDED): (1.5, 1.0)}
_GOALS |= {("MiB", _TRITON): (1.0, 1.0)}
_WAITING_S = 0.2  # in `waits`: all requests are there before the second is answered
_SAMPLE_S = 0.05
_SMALL = (1, 1, 1, 16)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MODEL = """
import sys, time
sys.path.insert(0, {site!r})
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep({seconds})
        return [pb_utils.InferenceResponse([pb_utils.Tensor(
            "y", {answer}(pb_utils.get_input_tensor_by_name(request, "x").as_numpy())
        )]) for request in requests]
"""
_NOTHING, _ALL = "(lambda x: numpy.zeros((len(x), 1, 1, 1), numpy.uint8))", ""
_MODELS = {"looks": (_NOTHING, 0.0), "echo": (_ALL, 0.0), "waits": (_NOTHING, _WAITING_S)}
_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_UINT8 dims: [ -1, -1, -1 ] } ]
output [ { name: "y" data_type: TYPE_UINT8 dims: [ -1, -1, -1 ] } ]
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks pictures", description=__doc__)
    rows_help = "rows whose name has one of these; beside; memory; loop"
    parser.add_argument("rows", nargs="*", metavar="WORDS", help=rows_help)
    parser.add_argument("--before", type=Path, metavar="TREE", help="a checkout to compare with")
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="of a round")
    parser.add_argument("--clients", type=int, default=16)
    given = parser.parse_args(arguments)
    plan = Plan((given.clients,), given.seconds, given.rounds)
    with TemporaryDirectory(prefix="bench-") as folder:
        sides = {"here": ("repository", write_models(Path(folder, "here"), "."))}
        if not given.no_triton:
            sides[_TRITON] = ("triton", write_models(Path(folder, "triton"), str(installed())))
        table_rows = [*rows(sides)]
        if given.before is not None:
            table_rows = [with_before(group, given.before.resolve()) for group in table_rows]
        wanted = [group for group in table_rows if _is_wanted(group[0].name, given.rows)]
        print(markdown(measure(wanted, plan, _say), plan, targets(wanted, given.clients)))
        for name, side in sides.items():
            if _is_wanted("beside", given.rows):
                print(_beside(name, side, plan))
            if _is_wanted("memory", given.rows):
                print(_memory(name, side, partial(_question, "waits"), given.clients))
        if _is_wanted("memory", given.rows):
            for workers in ("threads", PROCESSES):
                print(_memory(f"/api, {workers}", ("waits", workers), _waits, given.clients))
        if _is_wanted("loop", given.rows):
            print(_loop(sides["here"], plan))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _is_wanted(name: str, words: Sequence[str]) -> bool:
    return not words or any(word in name for word in words)


def write_models(folder: Path, site: str) -> str:
    """Write the models, each without and with batching; `site`: where Triton finds numpy."""
    for name, (answer, seconds) in _MODELS.items():
        for suffix, batching in (("", ""), ("_batched", "dynamic_batching { }")):
            version = folder / f"{name}{suffix}" / "1"
            version.mkdir(parents=True)
            code = _MODEL.format(site=site, answer=answer, seconds=seconds)
            version.joinpath("model.py").write_text(code)
            version.parent.joinpath("config.pbtxt").write_text(_CONFIG + batching)
    return str(folder)


def rows(sides: Mapping[str, tuple[str, ...]]) -> Iterator[list[Case]]:
    """Yield the services of each row: here first, then what it is compared with.

    Few ask what takes so long that the first answers of many come behind the round.
    """
    for group in _groups(sides):
        yield [replace(case, clients=(_FEW,) * (_LARGEST in case.name)) for case in group]


def _groups(sides: Mapping[str, tuple[str, ...]]) -> Iterator[list[Case]]:
    here, both = sides["here"], (Transport.HTTP, Transport.GRPC)
    for size, shape in _SIZES.items():
        for model in ("looks", "looks_batched", "echo"):
            for by in both:
                name, asked = f"{model}, v2 {by.value}, {size}", _question(model, shape)
                others = {side: command for side, command in sides.items() if side != "here"}
                if by is Transport.GRPC:
                    others[_EMBEDDED] = (*here, "--edge=embedded")
                yield [
                    Case(name, here, by, *asked),
                    *(Case(f"{name}, {side}", each, by, *asked) for side, each in others.items()),
                ]
        looks = Transport.HTTP, *_question("looks", shape)
        name, gateway = f"gateway, looks, v2 HTTP, {size}", (*here, "--edge=gateway")
        yield [Case(name, gateway, *looks), Case(f"{name}, {_EMBEDDED}", here, *looks)]
        content = np.random.default_rng(seed=1).bytes(int(np.prod(shape)))
        question = bytes_question(content)
        yield [Case(f"own wire, gateway, {size}", ("big", GATEWAY), Transport.GRPC, question)]
    picture = PictureQuestion("image", content[:100_000], lambda answer: True)
    command = ("pictures", PROCESSES)
    yield [Case("/api, 100 KB, process", command, Transport.HTTP, picture, "/api/pictures")]


def _question(model: str, shape: tuple[int, ...]) -> tuple[V2Question, str]:
    question = V2Question("x", np.zeros(shape, np.uint8), lambda answer: "y" in answer, model=model)
    return question, f"/v2/models/{model}/infer"


def with_before(group: Sequence[Case], tree: Path) -> list[Case]:
    """Add the service of the other tree, unless that tree may not know its flags."""
    ours = group[0]
    is_known = "--edge=gateway" not in ours.command
    before = [replace(ours, name=f"{ours.name}, before", root=tree)] if is_known else []
    return [*group, *before]


def targets(groups: Sequence[Sequence[Case]], clients: int) -> list[Target]:
    """Return what is compared: the first service of each row with each of the others."""
    targets_ = []
    for ours, *others in groups:
        for base in (other.name for other in others):
            fits = (goal for (part, side), goal in _GOALS.items() if part in base and side in base)
            per_s, cpu = next(fits, _SAME)
            (count,) = ours.clients or (clients,)
            targets_ += [
                Target(ours.name, count, "per_s", base, at_least=per_s),
                Target(ours.name, count, "server_ms", base, at_most=cpu),
            ]
    return targets_


def _waits(shape: tuple[int, ...]) -> tuple[PictureQuestion, str]:
    return PictureQuestion("image", bytes(math.prod(shape)), bool), "/api/waits"


def _post(service: Service, model: str, shape: tuple[int, ...], clients: int, seconds: int) -> Load:
    return _load(service, *_question(model, shape), clients, seconds)


def _load(service: Service, question: Question, path: str, clients: int, seconds: int) -> Load:
    return http_load(f"http://127.0.0.1:{service.http_port}{path}", question, clients, seconds)


def _beside(name: str, command: Sequence[str], plan: Plan) -> str:
    """Tell the p99 of a small request to another model, alone and beside large ones, in turns."""
    (clients,), seconds = plan.clients, int(plan.seconds)
    alone, with_load = list[float](), list[float]()
    with running(*command) as service, ThreadPoolExecutor() as pool:
        service.first_answer(lambda: ready(service.http_port))
        for number in range(plan.repeats + 1):
            small = _post(service, "echo", _SMALL, 1, seconds)
            large = pool.submit(_post, service, "looks", _SIZES["1 MiB"], clients, seconds + 2)
            time.sleep(1.0)
            crowded = _post(service, "echo", _SMALL, 1, seconds)
            large.result()
            if number:  # the first is to warm up
                alone.append(small.p99_ms)
                with_load.append(crowded.p99_ms)
    ratio = statistics.median(map(float.__truediv__, with_load, alone))
    medians = [f"{statistics.median(side):.2f}" for side in (alone, with_load)]
    return table(
        ("small requests, p99 ms", "alone", f"beside {clients} of 1 MiB", "ratio", "goal"),
        [(name, *medians, f"{ratio:.2f}", "<= 3, < 50 ms")],
    )


def _memory(
    name: str,
    command: Sequence[str],
    asked: Callable[[tuple[int, ...]], tuple[Question, str]],
    clients: int,
) -> str:
    """Tell by how much memory grew while so many requests, of each size, were there at once."""
    rows = []
    for size, shape in _SIZES.items():
        with running(*command) as service, ThreadPoolExecutor() as pool:
            service.first_answer(lambda: ready(service.http_port))
            _load(service, *asked(_SMALL), clients, 1)
            before = peak = _bytes_of(service)
            load = pool.submit(_load, service, *asked(shape), clients, 3)
            while not load.done():
                peak = max(peak, _bytes_of(service))
                time.sleep(_SAMPLE_S)
            load.result()
        grown, sent = (peak - before) / _MIB, clients * math.prod(shape) / _MIB
        figures = f"{sent:.0f}", f"{grown:.0f}", f"{grown / sent:.2f}"
        rows.append((f"{name}, {size}", *figures, "<= 2.2"))
    return table(("memory, MiB", "requests in flight", "at most", "ratio", "goal"), rows)


def _loop(command: Sequence[str], plan: Plan) -> str:
    """Tell the CPU time of the loop's thread for a request of each size, one at a time."""
    rows = []
    with running(*command) as service:
        service.first_answer(lambda: ready(service.http_port))
        for size, shape in {"1 KiB": (1, 1, 1, 1024), **_SIZES}.items():
            _post(service, "looks", shape, 1, 3)  # to warm up
            before = _ticks_of_loop(service.pid)
            load = _post(service, "looks", shape, 1, int(plan.seconds))
            spent = zip(_ticks_of_loop(service.pid), before, strict=True)
            user, system = (
                1e6 * (now - then) / _TICKS_PER_S / load.requests for now, then in spent
            )
            rows.append((size, f"{load.requests}", f"{user:.0f}", f"{system:.0f}"))
    return table(("loop's thread", "requests", "user us", "system us (copies of the kernel)"), rows)


def _ticks_of_loop(pid: int) -> tuple[int, int]:
    """Return the user's and the system's ticks of a process's first thread."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]), int(fields[12])


def _bytes_of(service: Service) -> int:
    held = service.holdings()
    return held.private_bytes + held.shared_bytes
