"""`python -m benchmarks.streams`: many slow readers of endless streams, and new callers.

One process has an Op of two threads whose generator never ends. `--readers` callers take one part
every `--pause` seconds: the server's memory must not grow. Then some take parts as fast as
possible, and new callers are timed from their request to their first part.

With `--door` the readers are clients of a server in another process; its memory is measured, with
`--edge` also that of its gateway. The timed new callers use the same door.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.stream_readers import OPENS, Readers, endpoint_of, first_parts
from pipeline import Op, PipelineServer, RequestOp, ResponseOp, Tensor
from pipeline.engine.request import RequestState, StreamSink
from pipeline.proto import pipeline_service_pb2

_PART = "x" * 1000
_PROBES = 20


class Reads(RequestOp):
    """Declares the input for v2 clients."""

    input_tensors = (Tensor("a", "BYTES", (1,)),)


class Endless(Op):
    """Yields parts of 1 KB forever."""

    input_tensors = Reads.input_tensors
    output_tensors = (Tensor("text", "BYTES", (1,)), Tensor("number", "BYTES", (1,)))

    def process(self, feed_batch: Any, log_id: Any) -> Any:
        number = 0
        while True:
            yield {"text": _PART, "number": str(number)}
            number += 1


class Reader(StreamSink):
    """Takes a part every `pause_s` seconds; 0: as fast as they arrive."""

    def __init__(self, pause_s: float) -> None:
        self.parts = 0
        self.began = time.perf_counter()
        self.first_s = 0.0
        self.first = asyncio.Event()
        self.request: RequestState
        self._pause_s = pause_s
        self._loop = asyncio.get_running_loop()

    def add(self, answers: Sequence[Any]) -> None:
        if is_first := not self.parts:
            self.first_s = time.perf_counter() - self.began
            self.first.set()
        self.parts += len(answers)
        if not self._pause_s:
            self.request.took_part(len(answers))
        elif is_first:
            self._loop.call_later(self._pause_s, self._take)

    def end(self, answer: Any) -> None:
        raise RuntimeError(f"an endless stream ended: {answer}")

    def _take(self) -> None:
        self.request.took_part()
        self._loop.call_later(self._pause_s, self._take)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--pause", type=float, default=1.0, help="s between two parts of a reader")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--processes", action="store_true", help="in place of threads")
    parser.add_argument("--door", choices=sorted(OPENS), help="where the readers call")
    parser.add_argument("--edge", choices=("embedded", "gateway"), default="embedded")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(options)
    else:
        with _child(options) if options.door else contextlib.nullcontext() as child:
            asyncio.run(_measure_door(options, child) if child else _measure(options))
    return 0


def _server(options: argparse.Namespace) -> PipelineServer:
    server = PipelineServer("streams")
    server.set_response_op(ResponseOp([Endless("endless", Reads(), concurrency=2)]))
    server.prepare_server(
        yml_dict={
            "rpc_port": 0,
            "http_port": 0,
            "edge": options.edge,
            "worker_num": options.readers + 100,
            "queue_size": options.readers,
            "dag": {"is_thread_op": not options.processes},
        }
    )
    return server


def _serve(options: argparse.Namespace) -> None:
    """Serve until stdin ends; the ports go to stdout."""
    with _server(options) as server:
        print(server.rpc_port, server.http_port, flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def _child(options: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """Run the server in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.streams", "--serve", "--edge", options.edge]
    words += ["--readers", str(options.readers), *(["--processes"] if options.processes else [])]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.communicate()


async def _measure_door(options: argparse.Namespace, child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    rpc_port, http_port = map(int, child.stdout.readline().split())
    endpoint = endpoint_of(options.door, rpc_port, http_port)
    async with OPENS[options.door](endpoint, options.readers) as streams:
        readers = Readers(streams, options.pause)
        while readers.parts < 3 * options.readers:
            readers.check()
            await asyncio.sleep(0.1)
        before, parts, started = _rss_mib(child.pid), readers.parts, time.perf_counter()
        most = before
        while time.perf_counter() - started < options.seconds:
            await asyncio.sleep(1.0)
            readers.check()
            most = max(most, _rss_mib(child.pid))
        rate = (readers.parts - parts) / (time.perf_counter() - started)
        print(
            f"{options.door}, {options.edge}: {options.readers} readers that take a part every "
            f"{options.pause:g} s, for {options.seconds:g} s: {rate:.0f} parts/s, RSS {before:.1f} "
            f"MiB before, {most:.1f} at most"
        )
        first = await first_parts(options.door, endpoint, _PROBES)
        print(f"first part of one more: {_figures(first)}")
        await readers.stop()


async def _measure(options: argparse.Namespace) -> None:
    server = _server(options)
    async with server:
        begin = server._running().models.begin
        slow = [_begin(begin, options.pause) for _ in range(options.readers)]
        await asyncio.gather(*(reader.first.wait() for reader in slow))
        await asyncio.sleep(2 * options.pause)
        before, parts, started = _rss_mib(), _parts(slow), time.perf_counter()
        most = before
        while time.perf_counter() - started < options.seconds:
            await asyncio.sleep(1.0)
            most = max(most, _rss_mib())
        rate = (_parts(slow) - parts) / (time.perf_counter() - started)
        print(
            f"{options.readers} readers that take a part every {options.pause:g} s, "
            f"for {options.seconds:g} "
            f"s: {rate:.0f} parts/s, RSS {before:.1f} MiB before, {most:.1f} at most"
        )
        first = await _probe(begin)
        print(f"first part of one more: {_figures(first)}")
        for reader in slow:
            reader.request.cancel()
        for busy in (2, 50):
            quick = [_begin(begin, 0.0) for _ in range(busy)]
            await asyncio.gather(*(reader.first.wait() for reader in quick))
            first = await _probe(begin)
            print(f"beside {busy} that read as fast as they can: {_figures(first)}")
            for reader in quick:
                reader.request.cancel()


async def _probe(begin: Any) -> list[float]:
    """Return how long new callers waited for their first part, one after the other."""
    taken = []
    for _ in range(_PROBES):
        reader = _begin(begin, 1000.0)
        await reader.first.wait()
        reader.request.cancel()
        taken.append(reader.first_s)
    return taken


def _begin(begin: Any, pause_s: float) -> Reader:
    reader = Reader(pause_s)
    raw = pipeline_service_pb2.Request(name="streams", key=["a"], value=["b"])
    reader.request = begin(raw, None, None, reader)
    return reader


def _parts(readers: list[Reader]) -> int:
    return sum(reader.parts for reader in readers)


def _figures(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.1f} ms, {max(seconds) * 1e3:.1f} at most"


def _rss_mib(pid: int | str = "self") -> float:
    """Return the RSS of a process and of all below it, its workers."""
    kib = 0
    below = [str(pid)]
    for pid in below:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        kib += next(int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line)
        for task in Path(f"/proc/{pid}/task").iterdir():
            below += (task / "children").read_text(encoding="utf-8").split()
    return kib / 1024


if __name__ == "__main__":
    sys.exit(main())
