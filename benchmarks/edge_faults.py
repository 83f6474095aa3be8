"""`python -m benchmarks.edge_faults`: a fleet behind the gateway whose servers come, go and fail.

Three servers, and callers over HTTP and gRPC who ask one request after the other all the while.
Exit status 1: more requests failed than may.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc

from benchmarks.ask import Question
from benchmarks.process import Service
from benchmarks.report import machine, table, write
from benchmarks.services.ports import free_ports
from pipeline.proto.pipeline_service_pb2 import Response

_RELIABILITY = Path(__file__).parents[1] / "docs" / "reliability.md"
_BEGIN = "<!-- edge_faults: written by `python -m benchmarks.edge_faults --write` -->"
_QUESTION = Question("x", "1", lambda answer: answer["x"] == "1")
_SERVERS = 3
_HTTP_CALLERS, _GRPC_CALLERS = 6, 6
_CALLERS = _HTTP_CALLERS + _GRPC_CALLERS
_TIMEOUT_S = 60.0
_CALM_S = 1.0  # before and behind each fault
_LISTS = 20
_LIST_S = 1.0  # twice as long as the gateway takes to look at its list
_KILLS = 3
_HEADERS = {"Content-Type": "application/json"}
_MARK = "Pipeline-Idempotent"


@dataclass(slots=True)
class Tally:
    """Results of the requests of one part: times of the successful ones, and failures."""

    times_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Callers:
    """Callers that send requests until they are stopped; `mark`: requests may be repeated."""

    def __init__(self, http_port: int, grpc_port: int, mark: bool = False) -> None:
        self.tally = Tally()
        self._http_port, self._target = http_port, f"127.0.0.1:{grpc_port}"
        self._headers = _HEADERS | ({_MARK: "1"} if mark else {})
        self._metadata = [(_MARK.lower(), "1")] if mark else []
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        functions = [self._ask_http] * _HTTP_CALLERS + [self._ask_grpc] * _GRPC_CALLERS
        self._threads = [threading.Thread(target=function) for function in functions]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        time.sleep(_CALM_S)
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(_CALM_S)
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask_http(self) -> None:
        body = _QUESTION.as_body()
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=_TIMEOUT_S)
        with closing(connection):

            def ask() -> str:
                connection.request("POST", "/echo/prediction", body, self._headers)
                answer = connection.getresponse()
                reply = json.loads(answer.read())
                is_well = answer.status == http.HTTPStatus.OK and not reply["err_no"]
                return "" if is_well else f"HTTP {answer.status}, {reply['err_msg']}"

            self._repeat(ask)

    def _ask_grpc(self) -> None:
        message = _QUESTION.as_message()
        alone = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        with grpc.insecure_channel(self._target, alone) as channel:
            call = channel.unary_unary(Question.METHOD, None, Response.FromString)

            def ask() -> str:
                try:
                    answer = call(message, timeout=_TIMEOUT_S, metadata=self._metadata)
                except grpc.RpcError as error:
                    return f"gRPC {error.code().name}, {error.details()}"
                return f"gRPC OK, {answer.err_msg}" if answer.err_no else ""

            self._repeat(ask)

    def _repeat(self, ask: Callable[[], str]) -> None:
        while not self._is_over.is_set():
            began = time.monotonic()
            failure = ask()
            took_s = time.monotonic() - began
            with self._lock:
                if failure:
                    self.tally.failures.append(failure)
                else:
                    self.tally.times_s.append(took_s)


class Fleet:
    """Servers whose ports stay, and the gateway before them, with a list that may change."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.ports = [free_ports() for _ in range(_SERVERS)]
        self.addresses = [f"127.0.0.1:{rpc}/{web}" for web, rpc in self.ports]
        self.servers = [self.start(number) for number in range(_SERVERS)]
        self.list(range(_SERVERS))
        self.http_port, self.grpc_port = free_ports()
        self._gateway = subprocess.Popen(
            [
                *(sys.executable, "-m", "pipeline.gateway", "--backends-file", folder / "backends"),
                *("--listen", f"127.0.0.1:{self.http_port}"),
                *("--grpc-listen", f"127.0.0.1:{self.grpc_port}"),
            ],
            stderr=subprocess.DEVNULL,
        )
        stack.callback(self._gateway.wait)
        stack.callback(self._gateway.terminate)
        self.wait_until_up(_SERVERS)

    def start(self, number: int) -> Service:
        """Start a server, and wait until it is ready."""
        web, rpc = self.ports[number]
        own = self._folder / f"{number}-{time.monotonic_ns()}"
        own.mkdir()
        ports = {"BENCH_HTTP_PORT": str(web), "BENCH_GRPC_PORT": str(rpc)}
        server = Service(own, "echo", environment=ports)
        self._stack.callback(server.stop)
        server.first_answer(lambda: urllib.request.urlopen(_ready(web), timeout=_TIMEOUT_S).close())
        return server

    def list(self, numbers: Sequence[int]) -> None:
        """Make these servers the gateway's list."""
        new = self._folder / "backends.new"
        new.write_text("".join(f"{self.addresses[number]}\n" for number in numbers))
        new.rename(self._folder / "backends")

    def figure(self, name: str) -> int:
        """Return the sum of a metric of the gateway's."""
        url = f"http://127.0.0.1:{self.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            text = answer.read().decode()
        pattern = rf"^pipeline_gateway_{name}(?:\{{.*\}})? (\S+)$"
        return sum(int(float(number)) for number in re.findall(pattern, text, re.MULTILINE))

    def wait_until_up(self, count: int) -> None:
        """Wait until so many servers get requests."""
        give_up = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < give_up:
            try:
                if self.figure("backend_up") == count:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise TimeoutError(f"{count} servers are not up")

    def kill(self, number: int, how: signal.Signals) -> None:
        """Send a signal to a server, start another one when it has ended, and wait for that."""
        os.kill(self.servers[number].pid, how)
        self.servers[number].end()
        self.servers[number] = self.start(number)
        self.wait_until_up(_SERVERS)


def _ready(port: int) -> str:
    return f"http://127.0.0.1:{port}/health/ready"


def _nothing(fleet: Fleet) -> None:
    time.sleep(3 * _CALM_S)


def _change_lists(fleet: Fleet) -> None:
    for turn in range(_LISTS):
        fleet.list([turn % _SERVERS, (turn + 1) % _SERVERS])
        time.sleep(_LIST_S)
    fleet.list(range(_SERVERS))
    fleet.wait_until_up(_SERVERS)


def _restart_all(fleet: Fleet) -> None:
    for number in range(_SERVERS):
        fleet.kill(number, signal.SIGTERM)


def _kill_some(fleet: Fleet) -> None:
    for number in range(_KILLS):
        fleet.kill(number % _SERVERS, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Part:
    """A fault of the fleet, and how many requests may fail because of it."""

    name: str
    befalls: Callable[[Fleet], None]
    mark: bool
    most_failures: int


PARTS = (
    Part("nothing", _nothing, False, 0),
    Part(f"the list changes {_LISTS} times", _change_lists, False, 0),
    Part(f"SIGTERM to all {_SERVERS} servers in turn, each restarted", _restart_all, False, 0),
    Part(f"kill -9, {_KILLS} times", _kill_some, False, _KILLS * _CALLERS),
    Part(f"kill -9, {_KILLS} times; requests marked idempotent", _kill_some, True, 0),
)


def _play(fleet: Fleet, part: Part) -> tuple[list[str], bool]:
    """Return a row of the table, and whether no more requests failed than may."""
    retries = fleet.figure("retries_total")
    with Callers(fleet.http_port, fleet.grpc_port, part.mark) as callers:
        part.befalls(fleet)
    tally = callers.tally
    for failure in tally.failures:
        sys.stderr.write(f"{part.name}: {failure}\n")
    p99_ms = statistics.quantiles(tally.times_s, n=100)[-1] * 1000
    row = [
        part.name,
        f"{len(tally.times_s) + len(tally.failures):,}",
        f"{len(tally.failures)}",
        f"{part.most_failures}",
        f"{fleet.figure('retries_total') - retries}",
        f"{p99_ms:.0f}",
    ]
    return row, len(tally.failures) <= part.most_failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.edge_faults")
    parser.add_argument("--write", action="store_true", help="into docs/reliability.md")
    options = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        fleet = Fleet(Path(name), stack)
        played = [_play(fleet, part) for part in PARTS]
    head = ["what befalls it", "requests", "failed", "may fail", "sent to another", "p99 ms"]
    report = (
        f"{machine()}. {_SERVERS} servers, {_HTTP_CALLERS} callers over HTTP and {_GRPC_CALLERS} "
        "over gRPC, each with one request at a time.\n\n"
        f"{table(head, [row for row, _ in played])}\n"
    )
    sys.stdout.write(report)
    if options.write:
        write(report, _RELIABILITY, _BEGIN)
    return 0 if all(is_met for _, is_met in played) else 1


if __name__ == "__main__":
    sys.exit(main())
