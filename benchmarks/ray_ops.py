"""`python -m benchmarks.ray_ops`: Ops on Ray: throughput by nodes, a batch beside a bare call.

All nodes are on this machine, so the Op sleeps: what is measured is ours, and Ray's, and not how
many cores there are. Rounds alternate, and what counts are ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks.ray_nodes import nodes
from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.proto.pipeline_service_pb2 import Request

_REQUEST = Request(name="ray_ops", key=["x"], value=["1"])
_DATA = b"x" * 150  # about what a batch of it has on its way
_SLEEP_S = 0.02
_PER_ACTOR = 3  # requests that are under way for each actor
_CALLS = 300


class Sleeps(Op):
    """Work of 20 ms that needs no core."""

    def process(self, feed_batch: list[Any], typical_logid: int = 0) -> Any:
        time.sleep(_SLEEP_S)
        return feed_batch[0]


class Idles(Op):
    """Nothing to do, so that only the way there and back is measured."""

    def process(self, feed_batch: list[Any], typical_logid: int = 0) -> Any:
        return feed_batch[0]


class Bare:
    """The same without us."""

    def sleeps(self, data: bytes) -> bytes:
        time.sleep(_SLEEP_S)
        return data

    def idles(self, data: bytes) -> bytes:
        return data


def server_of(op: Op, actors: int) -> PipelineServer:
    """A server whose Op is worked on by so many actors."""
    server = PipelineServer("ray_ops")
    server.set_response_op(ResponseOp(op))
    keys = {"workers": "ray", "concurrency": actors, "ray": {"placement": "spread"}}
    server.prepare_server(yml_dict={"rpc_port": 0, "op": {op.name: keys}})
    return server


async def closed_loop(ask: Any, clients: int, seconds: float) -> float:
    """Return answers per second to callers that send the next request after each answer."""
    ends = time.perf_counter() + seconds
    count = 0

    async def client() -> None:
        nonlocal count
        while time.perf_counter() < ends:
            await ask()
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return count / (time.perf_counter() - began)


async def ours(server: PipelineServer, clients: int, seconds: float) -> float:
    """Ask a server's engine in closed loops; return answers per second."""

    async def ask() -> None:
        response = await server.executor.handle(_REQUEST, None)
        assert not response.err_no, response.err_msg

    return await closed_loop(ask, clients, seconds)


async def by_nodes(counts: Sequence[int], seconds: float) -> dict[int, float]:
    """Answers per second of the Op that sleeps, with an actor on each of so many nodes."""
    rates = {}
    for count in counts:
        async with nodes(count, 1), server_of(Sleeps("sleeps", RequestOp()), count) as server:
            await ours(server, count, 1.0)
            rates[count] = await ours(server, count * _PER_ACTOR, seconds)
        share = rates[count] * _SLEEP_S / count
        print(f"{count} nodes: {rates[count]:6.1f} batches/s, {share:.3f} of what they can")
    return rates


async def lone_calls(rounds: int) -> list[float]:
    """Ratios of a batch of an empty Op to a call of a bare actor, one at a time, in turns."""
    import ray

    ratios = []
    async with nodes(2, 1):
        actor = ray.remote(num_cpus=1)(Bare).remote()
        async with server_of(Idles("idles", RequestOp()), 1) as server:

            async def ask_ours() -> None:
                response = await server.executor.handle(_REQUEST, None)
                assert not response.err_no, response.err_msg

            async def ask_bare() -> None:
                await actor.idles.remote(_DATA)

            for place in range(rounds + 1):
                bare, here = [await _usual_s(ask) for ask in (ask_bare, ask_ours)]
                if place:  # the first one warms up
                    ratios.append(here / bare)
                    print(f"bare call {1e3 * bare:.2f} ms, a batch {1e3 * here:.2f} ms", end="")
                    print(f": {ratios[-1]:.2f}")
    return ratios


async def _usual_s(ask: Callable[[], Awaitable[None]]) -> float:
    """Median time of one, asked one after the other."""
    times = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        await ask()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_ops", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.rounds:
        ratios = asyncio.run(lone_calls(options.rounds))
        print(f"a batch beside a bare call: {statistics.median(ratios):.2f}")
    rates = asyncio.run(by_nodes(options.nodes, options.seconds))
    most = max(rates, default=1)
    if 1 in rates:
        print(f"{most} nodes beside one: {rates[most] / rates[1] / most:.3f} of linear")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
