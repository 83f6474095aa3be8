"""Start the service, ask it over gRPC and HTTP, print its answers, stop it: `make demo`.

    python demo.py [config_brpc.yml]

Model services that the configuration names are also started and stopped. Exits with status 1 if an
answer is wrong, or the service does not start or does not end cleanly.
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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

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
    """A failure of the demo, with a text for its user."""


class Ports(NamedTuple):
    """The service's ports, from its config.yml."""

    rpc: int
    http: int


class Server(NamedTuple):
    """A running process of the demo, and the file with its output."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]


def main() -> int:
    # The server is on this machine: neither client may use a proxy.
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = HOST
    try:
        run(sys.argv[1] if len(sys.argv) > 1 else "config.yml")
    except DemoError as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    print("demo passed: every answer right over gRPC and HTTP, server stopped with exit code 0")
    return 0


def run(config: str) -> None:
    """Run the demo from start to end. Raises DemoError."""
    values = yaml.safe_load((HERE / config).read_text(encoding="utf-8"))
    ports = Ports(values["rpc_port"], values["http_port"])
    services = model_services(values)
    for port in (*ports, *services.values()):
        check_free(port, HERE / config)
    with ExitStack() as stack:
        models = [
            stack.enter_context(running_model(model, port)) for model, port in services.items()
        ]
        server = stack.enter_context(running("web_server.py", HERE / "web_server.py", config))
        print(f"starting web_server.py: gRPC on port {ports.rpc}, HTTP on port {ports.http}")
        wait_until_ready(server, f"http://{HOST}:{ports.http}/health/ready")
        with PipelineClient() as client:
            client.connect([f"{HOST}:{ports.rpc}"])
            ask_all("over gRPC", lambda review: rpc_client.ask(client, review))
        url = f"http://{HOST}:{ports.http}/imdb/prediction"
        ask_all(f"over HTTP, POST {url}", lambda review: http_client.ask(url, review))
        for process in (server, *models):
            stop(process)


def model_services(values: dict[str, Any]) -> dict[str, int]:
    """Return the ports of model services, by the Op that uses the service."""
    endpoints = {name: op.get("server_endpoints") for name, op in values["op"].items()}
    return {name: int(urls[0].rpartition(":")[2]) for name, urls in endpoints.items() if urls}


def check_free(port: int, config: Path) -> None:
    """Raise DemoError if a port is in use: another server would answer the demo."""
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise DemoError(
                f"port {port} is in use. Stop the process that uses it, or change it in {config}."
            )


@contextmanager
def running_model(model: str, port: int) -> Iterator[Server]:
    """Run the service of one model; it is ready in the block."""
    print(f"starting python -m pipeline.serve --model models/{model}.onnx --port {port}")
    path = HERE / "models" / f"{model}.onnx"
    command = ("-m", "pipeline.serve", "--model", path, "--port", str(port))
    with running(f"pipeline.serve of {model}", *command) as service:
        wait_until_listening(service, port)
        yield service


@contextmanager
def running(name: str, *arguments: str | Path) -> Iterator[Server]:
    """Run a Python process; end it with the block."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            yield Server(name, process, output)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def wait_until_ready(server: Server, url: str) -> None:
    """Wait until the server is ready. Raises DemoError: it ends, or takes too long."""
    wait_until(server, lambda: is_ready(url))


def wait_until_listening(server: Server, port: int) -> None:
    """Wait until the port accepts connections. Raises DemoError, as `wait_until_ready`."""

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0

    wait_until(server, listens)


def wait_until(server: Server, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        code = server.process.poll()
        if code is not None:
            raise DemoError(f"{server.name} ended with exit code {code}.\n{said(server)}")
        if time.monotonic() > deadline:
            raise DemoError(f"{server.name} is not ready after {START_S:g} s.\n{said(server)}")
        time.sleep(POLL_S)


def is_ready(url: str) -> bool:
    """Return whether the readiness check answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def ask_all(title: str, ask: Callable[[str], dict[str, float]]) -> None:
    """Ask for every sample and print the answers. Raises DemoError: an answer is wrong."""
    print(f"\n{title}:")
    try:
        right = [report(sample, ask(sample.text)) for sample in SAMPLES]
    except (grpc.RpcError, PipelineError, RuntimeError, OSError) as error:
        raise DemoError(f"{title}: {error}") from error
    if not all(right):
        raise DemoError(f"{title}: {right.count(False)} of {len(right)} answers are wrong.")


def stop(server: Server) -> None:
    """Stop the server by SIGTERM. Raises DemoError: it does not end cleanly."""
    print(f"\nstopping {server.name} with SIGTERM")
    server.process.send_signal(signal.SIGTERM)
    try:
        code = server.process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        raise DemoError(f"{server.name} still runs after {STOP_S:g} s.\n{said(server)}") from None
    if code != 0:
        raise DemoError(f"{server.name} ended with exit code {code}.\n{said(server)}")


def said(server: Server) -> str:
    """Return the server's output up to now."""
    server.output.seek(0)
    text = server.output.read().decode(errors="replace").strip()
    return f"It wrote:\n{text}" if text else "It wrote nothing."


if __name__ == "__main__":
    sys.exit(main())
