"""Nodes of a Ray cluster on this machine, in a process that takes commands.

`python -m benchmarks.ray_nodes COUNT CPUS` prints the address, and then reads commands, one a line:
`add`, or `kill PLACE`, which kills the raylet of a node and everything that it started. It prints a
line for each finished command. At the end of its input it ends the cluster.

Ray gives a node 30 s to start, which a busy machine may not have: a node is tried several times.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryFile
from typing import IO, Any

STORE_BYTES = 120 * 2**20
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
_TRIES = 4  # of a node's start
_MOST_S = 300.0  # of a command
_END_S = 60.0


class Nodes:
    """The cluster, for the process that started it."""

    def __init__(self, process: asyncio.subprocess.Process, log: IO[bytes]) -> None:
        self._process = process
        self._log = log

    async def add(self) -> None:
        """Have a node join."""
        await self._order("add")

    async def kill(self, place: int) -> None:
        """Kill a node."""
        await self._order(f"kill {place}")

    async def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self.answer("done", line)

    async def answer(self, word: str, command: str) -> str:
        """Return the text after a word at the start of the next line.

        Raises RuntimeError with what Ray has written if there is no such line in time.
        """
        assert self._process.stdout is not None
        fault = f"did not {command} in {_MOST_S:g} s"
        with contextlib.suppress(TimeoutError):
            line = (await asyncio.wait_for(self._process.stdout.readline(), _MOST_S)).decode()
            if line.startswith(word):
                return line.removeprefix(word).strip()
            got = f"answered {line.strip()!r}" if line else "ended"
            fault = f"{got} instead of the line {word!r} for the command {command!r}"
        self._log.seek(0)
        written = self._log.read().decode(errors="replace")[-3000:]
        raise RuntimeError(f"the cluster {fault}:\n{written}")

    async def end(self) -> None:
        """End the cluster, at last by force."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


@asynccontextmanager
async def nodes(count: int, cpus: int) -> AsyncIterator[Nodes]:
    """Run a cluster of a head without CPUs and `count` nodes, which this process has joined."""
    import ray

    with TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.ray_nodes", str(count), str(cpus)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**os.environ, **_QUIET},
            start_new_session=True,
        )
        made = Nodes(process, log)
        try:
            address = await made.answer("address", "start")
            ray.init(address=address, logging_level="error", log_to_driver=False)
            yield made
        finally:
            ray.shutdown()
            await made.end()


def main() -> int:
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray prints too, and nobody reads that
    count, cpus = map(int, sys.argv[1:])
    cluster: Any = Cluster()
    _added(cluster, num_cpus=0, include_dashboard=False)
    made = [_added(cluster, num_cpus=cpus) for _ in range(count)]
    print("address", cluster.address, file=answers)
    for line in sys.stdin:
        order, *place = line.split()
        if order == "add":
            made.append(_added(cluster, num_cpus=cpus))
        else:
            cluster.remove_node(made.pop(int(place[0])), allow_graceful=False)
        print("done", file=answers)
    cluster.shutdown()
    return 0


def _added(cluster: Any, **settings: Any) -> Any:
    """Return a node that has started."""
    for _ in range(_TRIES - 1):
        try:
            return cluster.add_node(object_store_memory=STORE_BYTES, **settings)
        except Exception as error:  # Ray has no narrower type for a late node
            print(f"a node did not start: {error}", file=sys.stderr)
    return cluster.add_node(object_store_memory=STORE_BYTES, **settings)


if __name__ == "__main__":
    raise SystemExit(main())
