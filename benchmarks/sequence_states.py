"""`python -m benchmarks.sequence_states`: what the size of a sequence's state costs a step.

Steps of an Op whose `process` returns the state that it was fed, in a worker process of a server
and in the batches alone, without one. Each figure is the median of some rounds, us a step.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.report import machine, table
from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.data import RequestInfo
from pipeline.engine.request import RequestTarget
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.stages import BatchRun
from pipeline.proto.pipeline_service_pb2 import Request

KIB = 1024
SIZES = (KIB, 64 * KIB, 1024 * KIB, 16 * 1024 * KIB)
_WARM_UP = 20
_X = np.zeros((1, 1), np.float32)


class KeepOp(Op):
    """Goes on with what it is fed."""

    def process(self, feed_batch: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        feed = feed_batch[0]
        return {"y": feed["x"], "next": feed["state"]}


class Watch:
    """Told of calls, and does nothing."""

    def call_begins(self) -> None:
        """Take note of nothing."""

    def call_ends(self) -> None:
        """Take note of nothing."""


def keys_of(size: int, batch: int, checkpoint: bool = False) -> dict[str, Any]:
    """Return what config.yml says of an Op with a state of so many bytes."""
    state = {"input_name": "state", "output_name": "next", "data_type": "FP32", "dims": [size // 4]}
    sequence = {"strategy": "direct", "state": [state], "checkpoint": checkpoint}
    return {"batch_size": batch, "sequence": sequence, "workers": "process"}


def in_batches(size: int, steps: int, orders: Sequence[Sequence[int]]) -> float:
    """Return the us a step in batches of these slots, in turns."""
    op = KeepOp("keep", RequestOp())
    config = load_config(yml_dict={"rpc_port": 0, "op": {"keep": keys_of(size, 4)}})
    op.pipeline_config = resolve_op("keep", {}, config)
    bound = BoundOp(op, 0)

    def run(order: Sequence[int], start: bool) -> None:
        items = [_item(slot, start) for slot in order]
        batch = BatchRun(items, places=list(order))
        batch.run(bound, Watch(), time.monotonic_ns)
        assert all(isinstance(outcome, dict) for outcome in batch.outcomes), batch.outcomes

    for order in orders:
        run(order, True)
    began = time.perf_counter()
    for step in range(steps):
        run(orders[step % len(orders)], False)
    return 1e6 * (time.perf_counter() - began) / steps / len(orders[0])


def _item(slot: int, start: bool) -> SimpleNamespace:
    info = RequestInfo(sequence_id=slot + 1, sequence_start=start)
    return SimpleNamespace(
        inputs={"@DAGExecutor": {"x": _X}},
        data_id=slot,
        log_id=0,
        deadline=None,
        info=info,
        trace="",
        is_feed=False,
        is_over=False,
        is_cancelled=bool,
    )


async def in_a_process(size: int, steps: int, checkpoint: bool) -> float:
    """Return the us a step of one sequence at a worker process of a server."""
    server = PipelineServer("states")
    server.set_response_op(ResponseOp(input_ops=[KeepOp("keep", RequestOp())]))
    op = {"keep": keys_of(size, 1, checkpoint)}
    log = {"to": "stdout", "level": "ERROR"}
    server.prepare_server(yml_dict={"rpc_port": 0, "log": log, "op": op})
    began = 0.0
    async with server:
        for step in range(-_WARM_UP, steps):
            if not step:
                began = time.perf_counter()
            info = RequestInfo(sequence_id=1, sequence_start=step == -_WARM_UP)
            target = RequestTarget(payload={"x": _X}, wants_response=False, info=info)
            answer = await server.executor.handle(Request(), None, target)
            assert answer.error is None, answer.error
        return 1e6 * (time.perf_counter() - began) / steps


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sequence_states", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    strategies: dict[str, Callable[[int], float]] = {
        "batch of one": lambda size: in_batches(size, options.steps, [[0]]),
        "the same four together": lambda size: in_batches(size, options.steps, [[0, 1, 2, 3]]),
        "four, others each time": lambda size: in_batches(
            size, min(options.steps, 40), [[0, 1, 2, 3], [4, 1, 6, 3]]
        ),
        "worker process": lambda size: asyncio.run(in_a_process(size, options.steps, False)),
        "worker process, checkpoint": lambda size: asyncio.run(
            in_a_process(size, min(options.steps, 60), True)
        ),
    }
    rates: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds):
        for name, strategy in strategies.items():
            for size in SIZES:
                rates.setdefault((name, size), []).append(strategy(size))
    sys.stdout.write(machine() + "\n\n")
    header = ["us a step, state of", *(f"{size // KIB} KiB" for size in SIZES)]
    rows = [
        [name, *(f"{statistics.median(rates[name, size]):,.0f}" for size in SIZES)]
        for name in strategies
    ]
    sys.stdout.write(table(header, rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
