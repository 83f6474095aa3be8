"""Start the service, ask it over gRPC and HTTP, show what it says, stop it: `make demo`.

Exits with 1 where an answer is wrong, the service does not start, or it does not end cleanly.
"""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import grpc
import http_client
import rpc_client
import yaml
from samples import SAMPLES, report

from pipeline import PipelineClient
from pipeline.errors import PipelineError

HERE = Path(__file__).resolve().parent
HOST = "127.0.0.1"
START_S = 60.0
STOP_S = 45.0  # the server gives running requests 30 s
POLL_S = 0.1


class DemoError(Exception):
    """What went wrong, in words for the person who started the demo."""


class Ports(NamedTuple):
    """Where the service listens, as its config.yml says."""

    rpc: int
    http: int


class Server(NamedTuple):
    """The running web_server.py, and the file that takes its output."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]


def main() -> int:
    # Neither client may ask a proxy of this machine's network for a server on this machine.
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = HOST
    try:
        run()
    except DemoError as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    print("demo passed: every answer right over gRPC and HTTP, server stopped with exit code 0")
    return 0


def run() -> None:
    """The demo from start to end; DemoError says what is not as it should be."""
    ports = read_ports(HERE / "config.yml")
    check_free(ports)
    with running_server() as server:
        print(f"starting web_server.py: gRPC on port {ports.rpc}, HTTP on port {ports.http}")
        wait_until_ready(server, f"http://{HOST}:{ports.http}/health/ready")
        with PipelineClient() as client:
            client.connect([f"{HOST}:{ports.rpc}"])
            ask_all("over gRPC", lambda review: rpc_client.ask(client, review))
        url = f"http://{HOST}:{ports.http}/imdb/prediction"
        ask_all(f"over HTTP, POST {url}", lambda review: http_client.ask(url, review))
        stop(server)


def read_ports(config: Path) -> Ports:
    """The ports that the server will take."""
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    return Ports(values["rpc_port"], values["http_port"])


def check_free(ports: Ports) -> None:
    """DemoError if someone listens already: their answers would be taken for our server's."""
    for key, port in (("rpc_port", ports.rpc), ("http_port", ports.http)):
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                raise DemoError(
                    f"port {port} is in use. Stop what listens there, "
                    f"or change {key} in {HERE / 'config.yml'}."
                )


@contextmanager
def running_server() -> Iterator[Server]:
    """web_server.py as its users start it. However the block ends, no process is left."""
    command = [sys.executable, str(HERE / "web_server.py")]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            yield Server(process, output)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def wait_until_ready(server: Server, url: str) -> None:
    """Return when the server says that it is ready; DemoError if it ends or takes too long."""
    deadline = time.monotonic() + START_S
    while not is_ready(url):
        code = server.process.poll()
        if code is not None:
            raise DemoError(f"web_server.py ended with exit code {code}.\n{said(server)}")
        if time.monotonic() > deadline:
            raise DemoError(f"web_server.py is not ready after {START_S:g} s.\n{said(server)}")
        time.sleep(POLL_S)


def is_ready(url: str) -> bool:
    """Whether the readiness check answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def ask_all(way: str, ask: Callable[[str], dict[str, float]]) -> None:
    """Ask for every sample and show the answers; DemoError if one is wrong."""
    print(f"\n{way}:")
    try:
        right = [report(sample, ask(sample.text)) for sample in SAMPLES]
    except (grpc.RpcError, PipelineError, RuntimeError, OSError) as error:
        raise DemoError(f"{way}: {error}") from error
    if not all(right):
        raise DemoError(f"{way}: {right.count(False)} of {len(right)} answers are wrong.")


def stop(server: Server) -> None:
    """Ask the server to end, as a service manager would; DemoError if it does not end well."""
    print("\nstopping the server with SIGTERM")
    server.process.send_signal(signal.SIGTERM)
    try:
        code = server.process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        raise DemoError(f"web_server.py still runs after {STOP_S:g} s.\n{said(server)}") from None
    if code != 0:
        raise DemoError(f"web_server.py ended with exit code {code}.\n{said(server)}")


def said(server: Server) -> str:
    """What the server wrote so far."""
    server.output.seek(0)
    text = server.output.read().decode(errors="replace").strip()
    return f"It wrote:\n{text}" if text else "It wrote nothing."


if __name__ == "__main__":
    sys.exit(main())
