"""Closed-loop load: wrk for HTTP, h2load for gRPC. Every client waits for its answer."""

from __future__ import annotations

import json
import re
import resource
import shutil
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import NotMeasuredError

_SCRIPT = Path(__file__).with_name("post.lua")
_DEBIAN_PACKAGES = {"wrk": "wrk", "h2load": "nghttp2-client"}
_GRPC_PREFIX_BYTES = 5
INFERENCE = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients saw. `client_cpu_s` is the load generator's own CPU time."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    client_cpu_s: float


def missing_tools() -> list[str]:
    """Debian packages to install before anything can be measured."""
    return [package for tool, package in _DEBIAN_PACKAGES.items() if shutil.which(tool) is None]


def http_load(
    url: str, body: bytes, clients: int, seconds: float, right_start: bytes | None = None
) -> Load:
    """Load from `clients` connections with wrk.

    Every answer has to begin with `right_start`, where it is given. That costs the load generator
    time: check so while warming up, measure without; answers that are not 200 count always.
    """
    with TemporaryDirectory() as folder:
        files = [_file(folder, "body", body)]
        if right_start is not None:
            files.append(_file(folder, "right", right_start))
        command = ["wrk", "-t1", f"-c{clients}", f"-d{_whole(seconds)}", "-s", str(_SCRIPT), url]
        output, client_cpu_s = _run([*command, "--", *files], seconds)
    found = json.loads(output.splitlines()[-1])
    if found["wrong"] or not found["requests"]:
        raise NotMeasuredError(f"{url}: {found['wrong']} of {found['requests']} answers were wrong")
    return Load(
        requests=found["requests"],
        seconds=found["seconds"],
        p50_ms=found["p50_ms"],
        p99_ms=found["p99_ms"],
        client_cpu_s=client_cpu_s,
    )


def grpc_load(port: int, message: bytes, clients: int, seconds: float, answer_bytes: int) -> Load:
    """Load from `clients` HTTP/2 connections, a call at a time on each, with h2load.

    h2load knows nothing of gRPC, where an error too has HTTP status 200, so the answers are
    checked by their size: each has to bring a message of `answer_bytes`.
    """
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        frame = b"\0" + len(message).to_bytes(4, "big") + message
        command = ["h2load", "-t1", f"-c{clients}", "-m1", f"-D{_whole(seconds)}"]
        command += ["-d", _file(folder, "frame", frame), f"--log-file={log}"]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        output, client_cpu_s = _run([*command, f"http://127.0.0.1:{port}{INFERENCE}"], seconds)
        times_ms = sorted(int(line.split()[2]) / 1e3 for line in log.read_text().splitlines())
    requests = int(_find(r"(\d+) succeeded", output))
    data_bytes = int(_find(r"\((\d+)\) data", output))
    whole_answers, unfinished = divmod(data_bytes, answer_bytes + _GRPC_PREFIX_BYTES)
    if not requests or unfinished or not requests <= whole_answers <= requests + clients:
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
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + 60, check=False
    )
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
