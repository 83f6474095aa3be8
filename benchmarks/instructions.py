"""Instructions that a request takes in the service's first process, by valgrind's callgrind.

Noise hardly touches them; what is counted is this process with all its threads, not its children.
Under valgrind a second lasts as long as all else does, so that the statistics are folded as often
as in a busy service: once in 2,048 turns at Ops, which a count should have at least.
"""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc

from benchmarks import NotMeasuredError
from benchmarks.ask import ask_grpc, ask_http
from benchmarks.catalog import Case, Transport
from benchmarks.process import Service, running
from benchmarks.services.common import SLOWED

_START_LIMIT_S = 600.0  # under valgrind
_WARM_UP = 300  # requests: what is done once is done, and which Ops are quick is known
_ROUNDS = 2  # a busy machine wakes threads that would not be woken otherwise
_SIDE_BY_SIDE = 2  # counts, as many as there are cores
_TIMES_SLOWER = "50"  # without it no Op would look quick
_VALGRIND = (
    "valgrind",
    "--tool=callgrind",
    "--fair-sched=yes",
    "--callgrind-out-file=%q{SERVING_HOME}/callgrind.%p",
)


def count_all(
    cases: Sequence[Case], requests: int, say: Callable[[str], None]
) -> dict[str, float | str]:
    """Instructions a request by name of case, or why there is no such figure."""
    if shutil.which("valgrind") is None:
        return dict.fromkeys((case.name for case in cases), "apt-get install valgrind")

    def counted(case: Case) -> float | str:
        try:
            result: float | str = count(case, requests)
        except (NotMeasuredError, subprocess.SubprocessError) as error:
            result = str(error).strip().splitlines()[-1]
        say(f"{case.name}: instructions a request: {result}")
        return result

    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        return dict(zip([case.name for case in cases], pool.map(counted, cases), strict=True))


def count(case: Case, requests: int) -> float:
    """Return the instructions that a request takes, the least of some rounds.

    One client asks, for more of them make batches as the machine's load has it.
    """
    with running(
        *case.command,
        root=case.root,
        environment={**case.environment, SLOWED: _TIMES_SLOWER},
        under=_VALGRIND,
    ) as service:
        ask = _grpc_client if case.transport is Transport.GRPC else _http_client
        ask(case, service, _WARM_UP)
        counts = []
        for _ in range(_ROUNDS):
            _control(service, "--zero")
            ask(case, service, requests)
            _control(service, "--dump")
            counts.append(_latest_total(service) / requests)
        return min(counts)


def _http_client(case: Case, service: Service, requests: int) -> None:
    url = f"http://127.0.0.1:{service.http_port}{case.path}"
    service.first_answer(lambda: ask_http(url, case.question), _START_LIMIT_S)
    connection = http.client.HTTPConnection("127.0.0.1", service.http_port, timeout=_START_LIMIT_S)
    body, headers = case.question.as_body(), case.question.headers
    for _ in range(requests):
        connection.request("POST", case.path, body, headers)
        answer = connection.getresponse()
        if answer.read() and answer.status != http.client.OK:
            raise NotMeasuredError(f"{case.name}: {answer.status}")
    connection.close()


def _grpc_client(case: Case, service: Service, requests: int) -> None:
    service.first_answer(lambda: ask_grpc(service.grpc_port, case.question), _START_LIMIT_S)
    message = case.question.as_message()
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
        call: Callable[..., bytes] = channel.unary_unary(case.question.METHOD)
        for _ in range(requests):
            case.question.check_message(call(message, timeout=_START_LIMIT_S))


def _control(service: Service, command: str) -> None:
    subprocess.run(
        ["callgrind_control", command, str(service.pid)],
        check=True, capture_output=True, cwd=service.folder, timeout=60,
    )  # fmt: skip


def _latest_total(service: Service) -> int:
    """Return what the latest dump says; its number is the end of its name."""
    files = service.folder.glob(f"callgrind.{service.pid}.*")
    latest = max(files, key=lambda file: int(file.suffix[1:]), default=None)
    if latest is None:
        raise NotMeasuredError("callgrind has written nothing")
    match = re.search(r"^(?:summary|totals): (\d+)", latest.read_text(), re.MULTILINE)
    if match is None:
        raise NotMeasuredError(f"there is no sum in {latest}")
    return int(match[1])
