"""`python -m benchmarks.ray_faults`: do Ops on Ray survive a storm under load?

A cluster of several nodes on this machine. Actors and whole nodes are killed, nodes join, stores
are full. Two Ops follow each other, with large answers between them. Prints what became of the
requests and a verdict; status 1 if a criterion is not met: every request ends in its time, with its
own answer or an error; 99.9 % have answers; no actor and no object is left behind. It ends with
the stacks of its threads if it takes ten minutes longer than `--seconds`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.ray_nodes import Nodes, nodes
from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.errors import PipelineError
from pipeline.proto.pipeline_service_pb2 import Request

_LARGE = 300_000
_LEAST_SUCCESS = 0.999
_SLACK_S = 0.5
_SETTLING_S = 3.0
_MOST_MORE_S = 600.0


class Makes(Op):
    """Make of a number an array that tells it, large for every second one."""

    def process(self, feed_batch: list[Any], typical_logid: int = 0) -> Any:
        time.sleep(0.01)
        return feed_batch[0]

    def preprocess(self, input_dicts: Any) -> Any:
        (request,) = input_dicts.values()
        return {"number": np.array([[int(request["number"])]])}

    def postprocess(self, input_dicts: Any, fetched: Any) -> Any:
        number = int(fetched["number"][0, 0])
        size = _LARGE if number % 2 else 10
        return {
            "number": number,
            "data": np.full(size, number % 251, np.uint8),
            "made": os.getpid(),
        }


class Checks(Op):
    """Tell the number, if the array fits it."""

    def preprocess(self, input_dicts: Any) -> Any:
        (made,) = input_dicts.values()
        time.sleep(0.01)
        number, data = made["number"], made["data"]
        is_its = bool((data == number % 251).all()) and len(data) == (_LARGE if number % 2 else 10)
        pids = f"{made['made']} {os.getpid()}"
        return {"answer": str(number) if is_its else "mixed", "pids": pids}


@dataclass
class Storm:
    """A schedule of faults."""

    nodes: Nodes
    count: int
    seed: int
    pids: set[int] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)

    async def rage(self, seconds: float, every_s: float) -> None:
        chance = random.Random(self.seed)
        began = time.monotonic()
        ends = began + seconds
        turns = itertools.cycle(["kill", "node", "kill", "full"])
        while time.monotonic() < ends:
            await asyncio.sleep(every_s)
            fault = next(turns)
            print(f"{time.monotonic() - began:5.0f} s: {fault}", flush=True)
            await getattr(self, f"_{fault}")(chance)
            self.done[fault] += 1

    async def _kill(self, chance: random.Random) -> None:
        if self.pids:
            pid = chance.choice(sorted(self.pids))
            self.pids.discard(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _node(self, chance: random.Random) -> None:
        """Kill a node with its raylet, and have another one join a second later."""
        await self.nodes.kill(chance.randrange(self.count))
        await asyncio.sleep(1.0)
        await self.nodes.add()

    async def _full(self, chance: random.Random) -> None:
        """Fill the server's store for a second."""
        import ray

        def fill() -> list[Any]:
            return [ray.put(np.zeros(20 * 2**20, np.uint8)) for _ in range(7)]

        held = await asyncio.to_thread(fill)
        await asyncio.sleep(1.0)
        del held


def server_of(actors: int, deadline_s: float) -> PipelineServer:
    makes = Makes("makes", RequestOp())
    server = PipelineServer("faults")
    server.set_response_op(ResponseOp(Checks("checks", makes)))
    on_ray = {"workers": "ray", "concurrency": actors, "retry": 3, "timeout": 3000}
    placed = {"ray": {"num_cpus": 0.5, "placement": "spread"}}
    ops = {name: {**on_ray, **placed, "batch_size": 2} for name in ("makes", "checks")}
    dag = {"retry": 3}
    server.prepare_server(
        yml_dict={"rpc_port": 0, "timeout": int(deadline_s * 1e3), "dag": dag, "op": ops}
    )
    return server


@dataclass
class Tally:
    """Results of the requests."""

    ends: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0


async def callers(server: PipelineServer, storm: Storm, count: int, until: asyncio.Event) -> Tally:
    """Ask in closed loops until it is time."""
    tally, numbers = Tally(), iter(range(10**9))

    async def caller() -> None:
        while not until.is_set():
            number = next(numbers)
            began = time.monotonic()
            end = await _ask(server, number, storm, tally)
            tally.ends[end] += 1
            await asyncio.sleep(0)
            tally.slowest_s = max(tally.slowest_s, time.monotonic() - began)

    await asyncio.gather(*(caller() for _ in range(count)))
    return tally


async def _ask(server: PipelineServer, number: int, storm: Storm, tally: Tally) -> str:
    request = Request(name="faults", key=["number"], value=[str(number)])
    try:
        response = await server.executor.handle(request, None)
    except PipelineError as error:
        tally.texts[str(error)[:160]] += 1
        return "error"
    if response.err_no:
        tally.texts[f"{response.err_no} {response.err_msg[:300]}"] += 1
        return "error"
    pairs = dict(zip(response.key, response.value, strict=True))
    storm.pids |= {int(pid) for pid in pairs["pids"].split()}
    return "answered" if pairs["answer"] == str(number) else "WRONG"


def actors_alive() -> int:
    from ray._private.state import actors

    return sum(actor["State"] == "ALIVE" for actor in actors().values())


def objects_held(server: PipelineServer) -> int:
    """Objects that the server still needs."""
    gc.collect()
    ops = server.executor.executor.nodes.values()
    return sum({id(m): m.count for m in (op.workers.memory_domain for op in ops)}.values())


@contextlib.asynccontextmanager
async def raging(options: argparse.Namespace) -> AsyncIterator[tuple[PipelineServer, Storm, Tally]]:
    async with nodes(options.nodes, 2) as made:
        async with server_of(options.actors, options.deadline_s) as server:
            storm, until = Storm(made, options.nodes, options.seed), asyncio.Event()
            asking = asyncio.ensure_future(callers(server, storm, options.callers, until))
            try:
                await storm.rage(options.seconds, options.every_s)
                await asyncio.sleep(_SETTLING_S)
            finally:
                until.set()
            tally = await asking
            await asyncio.sleep(_SETTLING_S)
            yield server, storm, tally
        await asyncio.sleep(1.0)
        print(f"actors left: {actors_alive()}")
        assert actors_alive() == 0


async def run(options: argparse.Namespace) -> int:
    async with raging(options) as (server, storm, tally):
        held, up = objects_held(server), actors_alive()
        states = [op.workers for op in server.executor.state().ops]
    asked = sum(tally.ends.values())
    share = tally.ends["answered"] / asked
    print(f"storm: {dict(storm.done)}; {asked} requests: {dict(tally.ends)}, {share:.4%} answered")
    print(f"slowest {tally.slowest_s:.2f} s; {up} actors up, {held} objects held; {states}")
    for text, count in tally.texts.most_common(8):
        print(f"  {count}: {text}")
    wrong = {
        "answers": share < _LEAST_SUCCESS,
        "mixed": bool(tally.ends["WRONG"]),
        "late": tally.slowest_s > options.deadline_s + _SLACK_S,
        "objects": held > 0,
        "actors": up != 2 * options.actors,
    }
    faults = [name for name, is_wrong in wrong.items() if is_wrong]
    print(f"not as it should be: {', '.join(faults)}" if faults else "all as it should be")
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every-s", type=float, default=3.0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--actors", type=int, default=3, help="of each Op")
    parser.add_argument("--callers", type=int, default=12)
    parser.add_argument("--deadline-s", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # Ray's calls have no timeouts, and asyncio waits for threads that are in one.
    faulthandler.dump_traceback_later(options.seconds + _MOST_MORE_S, exit=True)
    return asyncio.run(run(options))


if __name__ == "__main__":
    raise SystemExit(main())
