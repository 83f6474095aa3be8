"""Closed-loop load: wrk for HTTP, h2load for gRPC. Every client waits for its answer."""

from __future__ import annotations

import json
import re
import resource
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import NotMeasuredError
from benchmarks.ask import Question

_SCRIPT = Path(__file__).with_name("post.lua")
_DEBIAN_PACKAGES = {"wrk": "wrk", "h2load": "nghttp2-client"}
_GRPC_PREFIX_BYTES = 5
_HTTP2_FRAME_BYTES = 2**14  # data that h2load takes at once, unless told otherwise
_WINDOWS = ("-w24", "-W28")  # of flow control, in bits: what clients of gRPC come to by themselves
_CHECKED_CALLS = 4  # of each client
_ANSWER_LIMIT_S = 10  # wrk gives an answer up after 2 s, which slow Ops and 64 clients may need


@dataclass(frozen=True, slots=True)
class Load:
    """The measurements of the clients. `client_cpu_s` is the load generator's own CPU time."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    client_cpu_s: float


def missing_tools() -> list[str]:
    """Debian packages to install before anything can be measured."""
    return [package for tool, package in _DEBIAN_PACKAGES.items() if shutil.which(tool) is None]


def http_load(
    url: str, question: Question, clients: int, seconds: float, right_start: bytes | None = None
) -> Load:
    """Load from `clients` connections with wrk.

    Every answer has to begin with `right_start`, where it is given. That costs the load generator
    time: check so while warming up, measure without; answers that are not 200 count always.
    """
    with TemporaryDirectory() as folder:
        files = [_file(folder, "body", question.as_body())]
        if right_start is not None:
            files.append(_file(folder, "right", right_start))
        command = ["wrk", "-t1", f"-c{clients}", f"-d{_whole(seconds)}", "-s", str(_SCRIPT)]
        command += [f"-H{name}: {value}" for name, value in question.headers.items()]
        command += ["--timeout", str(_ANSWER_LIMIT_S), url, "--"]
        output, client_cpu_s = _run([*command, *files], seconds)
    report = json.loads(output.splitlines()[-1])
    if report["wrong"] or not report["requests"]:
        raise NotMeasuredError(
            f"{url}: {report['wrong']} of {report['requests']} answers were wrong"
        )
    return Load(
        requests=report["requests"],
        seconds=report["seconds"],
        p50_ms=report["p50_ms"],
        p99_ms=report["p99_ms"],
        client_cpu_s=client_cpu_s,
    )


def grpc_load(
    port: int, question: Question, clients: int, seconds: float, answer_bytes: int
) -> Load:
    """Load from `clients` HTTP/2 connections, a call at a time on each, with h2load.

    h2load knows nothing of gRPC, where an error too has HTTP status 200, so the answers are
    checked by their size: each has to bring a message of `answer_bytes`. What the last call of
    each client had brought when the time was over is unknown: see `grpc_check`.
    """
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        options = [f"-c{clients}", f"-D{_whole(seconds)}", f"--log-file={log}"]
        output, client_cpu_s = _h2load(port, question, options, seconds)
        times_ms = sorted(int(line.split()[2]) / 1e3 for line in log.read_text().splitlines())
    requests, data_bytes = _succeeded(output), _data_bytes(output)
    if not may_be_whole(requests, data_bytes, clients, answer_bytes + _GRPC_PREFIX_BYTES):
        raise NotMeasuredError(
            f"gRPC port {port}: some of {requests} answers were wrong:\n{output}"
        )
    return Load(
        requests=requests,
        seconds=float(_find(r"finished in ([\d.]+)s", output)),
        p50_ms=statistics.median(times_ms),
        p99_ms=times_ms[int(0.99 * (len(times_ms) - 1))],
        client_cpu_s=client_cpu_s,
    )


def grpc_check(port: int, question: Question, clients: int, answer_bytes: int) -> None:
    """See that a few calls by each of `clients` are all answered, by so many bytes to the byte."""
    calls = clients * _CHECKED_CALLS
    output, _ = _h2load(port, question, [f"-c{clients}", f"-n{calls}"], _ANSWER_LIMIT_S)
    right = calls * (answer_bytes + _GRPC_PREFIX_BYTES)
    if _succeeded(output) != calls or _data_bytes(output) != right:
        raise NotMeasuredError(
            f"gRPC port {port}: {calls} answers are {right} bytes of data, not\n{output}"
        )


def may_be_whole(requests: int, data_bytes: int, clients: int, size: int) -> bool:
    """Return whether `requests` whole answers may have arrived, and a part for each client.

    An answer that fits one frame arrives whole or not at all.
    """
    beyond = data_bytes - requests * size
    is_cut = size <= _HTTP2_FRAME_BYTES and beyond % size
    return requests > 0 and 0 <= beyond <= clients * size and not is_cut


def _h2load(
    port: int, question: Question, options: Sequence[str], seconds: float
) -> tuple[str, float]:
    """`(standard output, CPU seconds)` of h2load, which asks the question."""
    message = question.as_message()
    frame = b"\0" + len(message).to_bytes(4, "big") + message
    with TemporaryDirectory() as folder:
        command = ["h2load", "-t1", "-m1", *_WINDOWS, *options, "-d", _file(folder, "frame", frame)]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        return _run([*command, f"http://127.0.0.1:{port}{question.METHOD}"], seconds)


def _succeeded(output: str) -> int:
    return int(_find(r"(\d+) succeeded", output))


def _data_bytes(output: str) -> int:
    return int(_find(r"\((\d+)\) data", output))


def _file(folder: str, name: str, content: bytes) -> str:
    path = Path(folder, name)
    path.write_bytes(content)
    return str(path)


def _whole(seconds: float) -> int:
    """Neither tool takes fractions of a second."""
    return max(1, round(seconds))


def _run(command: list[str], seconds: float) -> tuple[str, float]:
    """`(standard output, CPU seconds)` of a load generator."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + 60, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotMeasuredError(f"{command[0]} did not end: {error.stdout!r}") from error
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise NotMeasuredError(f"{command[0]} failed: {done.stderr or done.stdout}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, cpu_s


def _find(pattern: str, output: str) -> str:
    match = re.search(pattern, output)
    if match is None:
        raise NotMeasuredError(f"h2load printed no {pattern!r}:\n{output}")
    return match.group(1)
