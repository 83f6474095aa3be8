"""Measures the cases of a group in turns, so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks import NotMeasuredError
from benchmarks.ask import ask_grpc, ask_http
from benchmarks.catalog import Case, Transport
from benchmarks.load import Load, grpc_check, grpc_load, http_load
from benchmarks.process import Service, running

_WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One stretch of load on one case."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    server_cpu_s: float
    rss_bytes: int
    client_cpu_s: float = 0.0

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def p50_us(self) -> float:
        return self.p50_ms * 1e3

    @property
    def server_ms(self) -> float:
        """Server CPU time for a request; the same figure in s is that for 1000 requests."""
        return self.server_cpu_s / self.requests * 1e3

    @property
    def client_ms(self) -> float:
        """CPU time of the load generator for a request."""
        return self.client_cpu_s / self.requests * 1e3

    @property
    def rss_mib(self) -> float:
        return self.rss_bytes / 2**20


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers of clients to measure with, length of a measurement, how often each is taken."""

    clients: tuple[int, ...]
    seconds: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Results:
    """Measurements by name of case and number of clients, a round each; why a case has none.

    `ready_s`: from a service's start until its first answer. `instructions`: of a request, or why
    they were not counted.
    """

    rounds: dict[tuple[str, int], list[Measurement]] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)
    ready_s: dict[str, float] = field(default_factory=dict)
    instructions: dict[str, float | str] = field(default_factory=dict)


_Drive = Callable[[int, float], Measurement]
"""Puts so many clients on a case for so many seconds."""


def measure(groups: Sequence[Sequence[Case]], plan: Plan, say: Callable[[str], None]) -> Results:
    """Measure all cases with all numbers of clients, `plan.repeats` times, a group in turns."""
    return Runner(plan, say).run(groups)


class Runner:
    """Measures group by group; a case that fails is left out."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._results = Results()

    def run(self, groups: Sequence[Sequence[Case]]) -> Results:
        for cases in groups:
            with contextlib.ExitStack() as stack:
                self._measure_group(self._start(cases, stack))
        return self._results

    def _start(
        self, cases: Sequence[Case], stack: contextlib.ExitStack
    ) -> list[tuple[Case, _Drive]]:
        drives = []
        for case in cases:
            with self._going_on_without(case.name):
                clients = max(self._clients(case))
                drive, ready_s = stack.enter_context(_ready(case, clients))
                drives.append((case, drive))
                self._results.ready_s[case.name] = ready_s
        return drives

    def _measure_group(self, drives: list[tuple[Case, _Drive]]) -> None:
        for clients in sorted({count for case, _ in drives for count in self._clients(case)}):
            for number in range(1, self._plan.repeats + 1):
                for case, drive in drives:
                    if clients in self._clients(case):
                        self._measure(case.name, drive, clients, number)

    def _clients(self, case: Case) -> tuple[int, ...]:
        return case.clients or self._plan.clients

    def _measure(self, name: str, drive: _Drive, clients: int, number: int) -> None:
        if name in self._results.not_measured:
            return
        with self._going_on_without(name):
            measurement = drive(clients, self._plan.seconds)
            self._results.rounds.setdefault((name, clients), []).append(measurement)
            self._say(
                f"{name}, {clients} clients, round {number}: {measurement.per_s:.0f} requests/s"
            )

    @contextlib.contextmanager
    def _going_on_without(self, name: str) -> Iterator[None]:
        try:
            yield
        except NotMeasuredError as error:
            self._say(f"{name}: not measured: {error}")
            self._results.not_measured[name] = str(error).strip().splitlines()[-1]
            for key in [key for key in self._results.rounds if key[0] == name]:
                del self._results.rounds[key]


@contextlib.contextmanager
def _ready(case: Case, most_clients: int) -> Iterator[tuple[_Drive, float]]:
    """Start a case, see that it answers right, and warm it up with every answer checked; yield
    how to drive it, and the seconds that it took to answer."""
    if case.transport is Transport.LOOP:
        yield functools.partial(_drive_loop, case), math.nan
        return
    with running(*case.command, root=case.root, environment=case.environment) as service:
        answer = service.first_answer(lambda: _ask(case, service))
        _load(case, service, answer, most_clients, _WARM_UP_S, check=True)
        yield functools.partial(_drive_service, case, service, answer), service.ready_s


def _drive_service(
    case: Case, service: Service, answer: bytes, clients: int, seconds: float
) -> Measurement:
    before = service.usage()
    load = _load(case, service, answer, clients, seconds)
    after = service.usage()
    return Measurement(
        requests=load.requests,
        seconds=load.seconds,
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        server_cpu_s=after.cpu_s - before.cpu_s,
        rss_bytes=after.rss_bytes,
        client_cpu_s=load.client_cpu_s,
    )


def _drive_loop(case: Case, clients: int, seconds: float) -> Measurement:
    """A plain loop is its own client; it decides how many threads so many clients deserve."""
    module, *arguments = case.command
    command = [sys.executable, "-m", f"benchmarks.services.{module}"]
    command += [str(seconds), str(clients), *arguments]
    done = subprocess.run(command, cwd=case.root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasuredError(done.stderr)
    return Measurement(**json.loads(done.stdout))


def _ask(case: Case, service: Service) -> bytes:
    if case.transport is Transport.GRPC:
        return ask_grpc(service.grpc_port, case.question)
    return ask_http(_url(case, service), case.question)


def _load(
    case: Case, service: Service, answer: bytes, clients: int, seconds: float, check: bool = False
) -> Load:
    if case.transport is Transport.GRPC:
        if check:
            grpc_check(service.grpc_port, case.question, clients, len(answer))
        return grpc_load(service.grpc_port, case.question, clients, seconds, len(answer))
    right_start = None
    if check:
        right_start = answer if case.question.repeats_exactly else answer.partition(b"0.")[0]
    return http_load(_url(case, service), case.question, clients, seconds, right_start)


def _url(case: Case, service: Service) -> str:
    return f"http://127.0.0.1:{service.http_port}{case.path}"
