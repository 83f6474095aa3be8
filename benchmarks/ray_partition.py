"""`python -m benchmarks.ray_partition`: does an Op on Ray survive a network partition?

Two nodes run on this machine, one of them in its own network namespace behind a pair of virtual
cables; one cable is cut for some seconds. Needs root. Prints the results of the requests; exit
status 1 if an answer is missing, wrong or late.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

from benchmarks.ray_faults import Storm, Tally, callers
from benchmarks.ray_faults import server_of as server_of_two
from benchmarks.ray_nodes import STORE_BYTES

_NAMESPACE = "pipeline-cut"
_HERE, _THERE = "10.213.7.1", "10.213.7.2"
_CABLES = ("pipe-cut-a", "pipe-cut-b")
_PORT = 26379


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespace() -> Iterator[None]:
    """A network namespace, connected with this one."""
    ours, theirs = _CABLES
    _ip("netns", "add", _NAMESPACE)
    try:
        _ip("link", "add", ours, "type", "veth", "peer", "name", theirs)
        _ip("link", "set", theirs, "netns", _NAMESPACE)
        _ip("addr", "add", f"{_HERE}/24", "dev", ours)
        _ip("link", "set", ours, "up")
        inside = ("-n", _NAMESPACE)
        _ip(*inside, "addr", "add", f"{_THERE}/24", "dev", theirs)
        _ip(*inside, "link", "set", theirs, "up")
        _ip(*inside, "link", "set", "lo", "up")
        yield
    finally:
        _ip("netns", "del", _NAMESPACE)


@contextlib.contextmanager
def ray_start(*words: str, before: tuple[str, ...] = ()) -> Iterator[None]:
    """A node, started by Ray's own command."""
    ray = str(Path(sys.executable).with_name("ray"))
    common = (f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats", "--block")
    node = subprocess.Popen(
        [*before, ray, "start", *words, *common],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(node.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()


async def _connected(count: int) -> None:
    """Be part of the cluster, as soon as it has so many nodes."""
    import ray

    for _ in range(60):
        with contextlib.suppress(ConnectionError):
            if not ray.is_initialized():
                ray.init(f"{_HERE}:{_PORT}", _node_ip_address=_HERE, log_to_driver=False)
            if sum(node["Alive"] for node in ray.nodes()) >= count:
                return
        await asyncio.sleep(1.0)
    raise TimeoutError("the nodes are not there")


@contextlib.asynccontextmanager
async def two_nodes() -> AsyncIterator[None]:
    """A head without CPUs, a node beside it, and one in the namespace."""
    import ray

    at = f"--address={_HERE}:{_PORT}"
    head = ("--head", f"--port={_PORT}", f"--node-ip-address={_HERE}", "--num-cpus=2")
    inside = ("ip", "netns", "exec", _NAMESPACE)
    with namespace(), ray_start(*head, "--include-dashboard=false"):
        await asyncio.sleep(5.0)
        with ray_start(at, f"--node-ip-address={_THERE}", "--num-cpus=2", before=inside):
            try:
                await _connected(2)
                yield
            finally:
                ray.shutdown()


async def run(options: argparse.Namespace) -> int:
    async with two_nodes(), server_of_two(2, options.deadline_s) as server:
        storm, until = Storm(SimpleNamespace(), 0, 0), asyncio.Event()  # type: ignore[arg-type]
        asking = asyncio.ensure_future(callers(server, storm, options.callers, until))
        await asyncio.sleep(3.0)
        pools = [op.workers for op in server.executor.executor.nodes.values()]
        print("nodes of the actors:", [sorted(node[:6] for node in pool.nodes) for pool in pools])
        _ip("link", "set", _CABLES[0], "down")
        await asyncio.sleep(options.seconds)
        _ip("link", "set", _CABLES[0], "up")
        await asyncio.sleep(5.0)
        until.set()
        tally: Tally = await asking
        states = [op.workers for op in server.executor.state().ops]
    print(f"{dict(tally.ends)}, slowest {tally.slowest_s:.2f} s; {states}")
    for text, count in tally.texts.most_common(5):
        print(f"  {count}: {text}")
    return int(set(tally.ends) != {"answered"} or tally.slowest_s > options.deadline_s + 0.5)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_partition", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="that the cable is pulled")
    parser.add_argument("--callers", type=int, default=6)
    parser.add_argument("--deadline-s", type=float, default=20.0)
    # Ray reads it when it is imported, in this process and in the nodes.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())
