"""Pictures a second: of a bare onnxruntime session, and of our server before the same model."""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ask import V2Question
from benchmarks.gpu.place import Place, need_module

_START_S = 120.0
_READY = re.compile(r"is ready: .*HTTP on port (\d+)")
_CLIENTS = 4  # processes
_WARM_SHARE = 0.3  # of the time that is measured, before it


def pictures(count: int, place: Place) -> np.ndarray:
    """Return pictures of noise: the time that a model takes does not depend on what is in them."""
    side = 32 if place.is_rehearsal else 224
    return np.random.default_rng(1).integers(0, 256, (count, side, side, 3), np.uint8)


def bare_pace(model: Path, batch: int, place: Place) -> float:
    """Return the pictures a second of a session that is fed batch after batch."""
    runtime: Any = need_module("onnxruntime")
    if not place.is_rehearsal and hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()  # CUDA that pip has installed
    session = runtime.InferenceSession(str(model), providers=[place.provider])
    if session.get_providers()[0] != place.provider:
        raise RuntimeError(f"the bare session runs on {session.get_providers()[0]}")
    feed = {"image": pictures(batch, place)}
    began, count = time.monotonic() + place.seconds * _WARM_SHARE, 0
    while time.monotonic() < began:
        session.run(None, feed)
    began = time.monotonic()
    while time.monotonic() < began + place.seconds:
        session.run(None, feed)
        count += batch
    return count / (time.monotonic() - began)


def served_pace(port: int, batch: int, place: Place) -> tuple[float, float]:
    """Return the pictures a second of a server, and the median latency of one in ms.

    Two batches are under way at any time, from client processes.
    """
    clients = min(_CLIENTS, 2 * batch)
    window = max(1, 2 * batch // clients)
    context = multiprocessing.get_context("spawn")
    with context.Pool(clients) as pool:
        jobs = [pool.apply_async(_ask, (port, window, place)) for _ in range(clients)]
        results = [job.get(_START_S + 3 * place.seconds) for job in jobs]
    times_s = sorted(time_s for _, times in results for time_s in times)
    pace = sum(count for count, _ in results) / place.seconds
    return pace, times_s[len(times_s) // 2] * 1000


def _ask(port: int, window: int, place: Place) -> tuple[int, list[float]]:
    """Keep `window` requests under way; return how many were answered in time, and their times."""
    (image,) = pictures(1, place)
    question = V2Question("image", image, lambda jobs: "label" in jobs, model="pictures")
    begins = time.monotonic() + place.seconds * _WARM_SHARE
    arguments = port, question, begins, begins + place.seconds
    with ThreadPoolExecutor(window) as pool:
        jobs = [pool.submit(_ask_in_turn, *arguments) for _ in range(window)]
        times = [time_s for job in jobs for time_s in job.result()]
    return len(times), times


def _ask_in_turn(port: int, question: V2Question, begins: float, ends: float) -> list[float]:
    """Send requests on one connection until `ends`; return the times of answers since `begins`.

    The body is made once, as binary data of v2, which the server uses without a conversion.
    """
    body, headers, times = question.as_body(), question.headers, list[float]()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_S)
    with contextlib.closing(connection):
        while (sent := time.monotonic()) < ends:
            connection.request("POST", "/v2/models/pictures/infer", body, headers)
            answer = connection.getresponse()
            question.check_body(answer.read(), answer.headers)
            if begins <= (now := time.monotonic()) < ends:
                times.append(now - sent)
    return times


@contextlib.contextmanager
def serving(model: Path, batch: int, place: Place) -> Iterator[int]:
    """Serve the model in a process of its own, in runs of one size; yields the port."""
    local = {**place.local(str(model)), "pad_rows": batch}
    op = {
        "concurrency": 2,
        "batch_size": batch,
        "batching": "adaptive",
        "auto_batching_timeout": 5,
        "local_service_conf": local,
    }
    config = {"rpc_port": 0, "http_port": 0, "log": {"to": "stdout"}, "op": {"classify": op}}
    script = Path(__file__).with_name("pictures_server.py")
    with tempfile.TemporaryDirectory() as folder:
        file, said = Path(folder, "config.yml"), Path(folder, "said")
        file.write_text(json.dumps(config))
        with said.open("w") as out:
            command = [sys.executable, str(script), str(file)]
            process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            yield _port(process, said)
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_START_S)
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], said: Path) -> int:
    """Return the port that a server says when it is ready."""
    ends = time.monotonic() + _START_S
    while time.monotonic() < ends and process.poll() is None:
        match = _READY.search(said.read_text())
        if match:
            return int(match[1])
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start: {said.read_text()[-800:]}")
