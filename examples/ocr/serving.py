"""Runs web_server.py for the programs that use it: demo, accuracy, benchmark."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import yaml

HERE = Path(__file__).resolve().parent
CONFIG = HERE / "config.yml"
HOST = "127.0.0.1"
START_S = 120.0
STOP_S = 45.0  # the server gives running requests 30 s
POLL_S = 0.1


class ServiceError(Exception):
    """The service does not start or does not end cleanly, with a text for the user."""


class Service(NamedTuple):
    """A running service: its gRPC endpoint, the URL of its HTTP method, its process."""

    endpoint: str
    url: str
    pid: int


@contextmanager
def running(config: Path = CONFIG, mode: str | None = None) -> Iterator[Service]:
    """Start the service, wait until it is ready, stop it at the end of the block.

    No process is left, however the block ends.

    Raises:
        ServiceError: a port is in use, the service does not start, or it ends with an error.
    """
    # The server is on this machine: no client may use a proxy.
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = HOST
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    for key in ("rpc_port", "http_port"):
        _check_free(key, values[key], config)
    command = [sys.executable, str(HERE / "web_server.py"), "--config", str(config)]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command + (["--mode", mode] if mode else []), stdout=output, stderr=output
        )
        try:
            _wait_until_ready(process, output, values["http_port"])
            yield Service(
                f"{HOST}:{values['rpc_port']}",
                f"http://{HOST}:{values['http_port']}/ocr/prediction",
                process.pid,
            )
            _stop(process, output)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def _check_free(key: str, port: int, config: Path) -> None:
    """Raise ServiceError if a port is in use: another server would answer instead of this one."""
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise ServiceError(
                f"port {port} is in use. Stop the process there, or change {key} in {config}."
            )


def _wait_until_ready(process: subprocess.Popen[bytes], output: IO[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while not _is_ready(f"http://{HOST}:{port}/health/ready"):
        if process.poll() is not None:
            raise ServiceError(f"web_server.py has ended.{_said(process, output)}")
        if time.monotonic() > deadline:
            raise ServiceError(f"not ready after {START_S:g} s.{_said(process, output)}")
        time.sleep(POLL_S)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    """Stop the server by SIGTERM."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        raise ServiceError(f"still running after {STOP_S:g} s.{_said(process, output)}") from None
    if process.returncode != 0:
        raise ServiceError(f"web_server.py failed at its end.{_said(process, output)}")


def _said(process: subprocess.Popen[bytes], output: IO[bytes]) -> str:
    """Return the server's exit code and its output up to now."""
    output.seek(0)
    text = output.read().decode(errors="replace").strip()
    return f" Exit code: {process.returncode}. It wrote:\n{text or '(nothing)'}"
