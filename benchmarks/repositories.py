"""`python -m benchmarks.repositories`: requests/s of a repository here and in Triton, in turns.

A Python model and an ensemble of three of them, with and without dynamic batching, asked in a
closed loop over HTTP. Told is the median of the ratios of the rounds: a machine that drifts takes
both along. It has to be quiet: where many want the cores, Triton's many threads get more of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.load import http_load
from benchmarks.loading import ready
from benchmarks.model_times import RowQuestion
from benchmarks.process import Service, running
from benchmarks.report import machine, table
from benchmarks.services.triton import installed

SIDES = ("triton", "repository")
GOALS = {"one": 2.0, "ensemble": 3.0}
_WIDTH = 16
_BATCHING = {"": "", "_batched": "dynamic_batching { }"}
_MODEL = """
import sys
sys.path.insert(0, %r)
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(
                "y", pb_utils.get_input_tensor_by_name(request, "x").as_numpy() + 1
            )])
            for request in requests
        ]
"""
_CONFIG = f"""
%s
max_batch_size: 64
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {_WIDTH} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {_WIDTH} ] }} ]
"""
_STEP = """{ model_name: "%s" model_version: -1
  input_map { key: "x" value: "%s" } output_map { key: "y" value: "%s" } }"""
_QUESTION = RowQuestion("x", [float(number) for number in range(_WIDTH)], lambda answer: True)


def main() -> int:
    """Print a table. Returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.repositories")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a stretch")
    parser.add_argument("--rounds", type=int, default=3, help="of a stretch on either side")
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args()
    site, rows, is_missed = installed(), list[list[str]](), False
    with ExitStack() as stack:
        services = []
        for side in SIDES:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="bench-")))
            write_models(folder, str(site) if side == "triton" else ".")
            services.append(service := stack.enter_context(running(side, str(folder))))
            service.first_answer(lambda: ready(service.http_port))
        for kind, goal in GOALS.items():
            for model in (f"{kind}{suffix}" for suffix in _BATCHING):
                _round(services, model, given.clients, 1.0)  # to warm up
                rounds = [
                    _round(services, model, given.clients, given.seconds)
                    for _ in range(given.rounds)
                ]
                ratio, row = row_of(model, rounds, goal)
                rows.append(row)
                is_missed = is_missed or ratio < goal
    print(machine())
    print(table(("model", "Triton", "here", "here : Triton", "goal"), rows))
    return int(is_missed)


def _round(services: Sequence[Service], model: str, clients: int, seconds: float) -> list[float]:
    """Return requests/s of each side, one after the other."""
    figures = []
    for service in services:
        url = f"http://127.0.0.1:{service.http_port}/v2/models/{model}/infer"
        load = http_load(url, _QUESTION, clients, seconds)
        figures.append(load.requests / load.seconds)
    return figures


def row_of(model: str, rounds: Sequence[Sequence[float]], goal: float) -> tuple[float, list[str]]:
    """Return the median of the rounds' ratios, and the row of the table."""
    ratios = sorted(ours / theirs for theirs, ours in rounds)
    ratio = statistics.median(ratios)
    sides = [sorted(side) for side in zip(*rounds, strict=True)]
    spans = [f"{side[0]:,.0f} to {side[-1]:,.0f}" for side in sides]
    text = f"{ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return ratio, [model, *spans, text, f"{goal:g}"]


def write_models(folder: Path, site: str) -> None:
    """Write the models; `site`: where Triton's Python finds numpy."""
    for suffix, batching in _BATCHING.items():
        for name in ("one", "a", "b", "c"):
            version = folder / f"{name}{suffix}" / "1"
            version.mkdir(parents=True)
            version.joinpath("model.py").write_text(_MODEL % site)
            _write_config(version.parent, f'backend: "python"\n{batching}')
        flow = (("a", "x", "p"), ("b", "p", "q"), ("c", "q", "y"))
        steps = ",".join(_STEP % (f"{name}{suffix}", takes, gives) for name, takes, gives in flow)
        ensemble = folder / f"ensemble{suffix}"
        (ensemble / "1").mkdir(parents=True)
        _write_config(ensemble, f'platform: "ensemble"\nensemble_scheduling {{ step [ {steps} ] }}')


def _write_config(folder: Path, kind: str) -> None:
    (folder / "config.pbtxt").write_text(_CONFIG % kind)


if __name__ == "__main__":
    sys.exit(main())
