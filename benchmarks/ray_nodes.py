"""Nodes of a Ray cluster on this machine, in a process that takes commands.

`python -m benchmarks.ray_nodes COUNT CPUS` prints the address, and then reads commands, one a line:
`add`, or `kill PLACE`, which kills the raylet of a node and everything that it started. It prints a
line for each finished command. At the end of its input it ends the cluster.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

STORE_BYTES = 120 * 2**20
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}


class Nodes:
    """The cluster, for the process that started it."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self._process = process
        self.address = address

    async def add(self) -> None:
        """Have a node join."""
        await self._order("add")

    async def kill(self, place: int) -> None:
        """Kill a node."""
        await self._order(f"kill {place}")

    async def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await _line_with(self._process, "done")


async def _line_with(process: asyncio.subprocess.Process, word: str) -> str:
    """Return the text after a word at the start of a line; skip lines from Ray."""
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(word.encode()):
            return line.decode().removeprefix(word).strip()
    raise EOFError("the cluster has ended")


@asynccontextmanager
async def nodes(count: int, cpus: int) -> AsyncIterator[Nodes]:
    """Run a cluster of a head without CPUs and `count` nodes, which this process has joined."""
    import ray

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.ray_nodes", str(count), str(cpus)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **_QUIET},
    )
    try:
        address = await _line_with(process, "address")
        ray.init(address=address, logging_level="error", log_to_driver=False)
        yield Nodes(process, address)
    finally:
        ray.shutdown()
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def main() -> int:
    from ray.cluster_utils import Cluster

    count, cpus = map(int, sys.argv[1:])
    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    made = [_added(cluster, cpus) for _ in range(count)]
    print("address", cluster.address, flush=True)
    for line in sys.stdin:
        order, *place = line.split()
        if order == "add":
            made.append(_added(cluster, cpus))
        else:
            cluster.remove_node(made.pop(int(place[0])), allow_graceful=False)
        print("done", flush=True)
    cluster.shutdown()
    return 0


def _added(cluster: Any, cpus: int) -> Any:
    return cluster.add_node(num_cpus=cpus, object_store_memory=STORE_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
