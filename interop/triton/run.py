"""Triton's released clients and its load generator against our servers; exits with 1 on failure.

`tritonclient` and `perf_analyzer` come from PyPI into build/interop/triton, where our library is
not. perf_analyzer needs Debian's libb64-0d besides. PERF_ANALYZER names another version of it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from pipeline.proto import inference_v2_pb2

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "interop" / "triton"
EXAMPLE = ROOT / "examples" / "imdb_ensemble"
# The CUDA runtime is only linked, never used.
PACKAGES = ("tritonclient[http,grpc]==2.51.0", "nvidia-cuda-runtime-cu12==12.*")
START_S = 60.0
STOP_S = 30.0

Ports = tuple[int, int]  # HTTP, gRPC

# A number of requests, not windows until they agree: it is asked whether it works, not how fast.
PERF = ("--request-count", "400")
CLOSED = ("--concurrency-range", "4")
OPEN = ("--request-rate-range", "100")
REVIEW = ("--string-data", "a wonderful film")
WORDS = ("--shape", "words:256", "--input-data", "zero")
LOADS: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("numbers", "numbers", "http", CLOSED),
    ("numbers", "numbers", "http", ("-b", "4", *CLOSED)),
    ("numbers", "numbers", "http", OPEN),
    ("numbers", "numbers", "http", ("--input-tensor-format", "json", *CLOSED)),
    ("numbers", "numbers", "grpc", CLOSED),
    ("numbers", "numbers", "grpc", ("--async", *CLOSED)),
    ("numbers", "numbers", "grpc", ("--async", "--streaming", *CLOSED)),
    ("numbers", "numbers", "grpc", OPEN),
    ("numbers", "sum", "http", CLOSED),
    ("imdb", "imdb", "http", (*REVIEW, *CLOSED)),
    ("imdb", "imdb", "http", (*REVIEW, *OPEN)),
    ("imdb", "imdb", "grpc", (*REVIEW, *CLOSED)),
    ("imdb", "imdb", "grpc", (*REVIEW, *OPEN)),
    ("imdb", "bow", "http", (*WORDS, *CLOSED)),
    ("imdb", "cnn", "grpc", (*WORDS, *CLOSED)),
]


def python() -> Path:
    """The interpreter that has Triton's clients; made when it is not there."""
    interpreter = BUILD / "bin" / "python"
    marker = BUILD / "packages.txt"
    if not marker.exists() or marker.read_text() != "\n".join(PACKAGES):
        run([sys.executable, "-m", "venv", "--clear", str(BUILD)])
        run([str(interpreter), "-m", "pip", "install", "--quiet", *PACKAGES])
        marker.write_text("\n".join(PACKAGES))
    return interpreter


def run(command: list[str]) -> None:
    """Raises RuntimeError with what the command said, if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def free_ports() -> Ports:
    with (
        socket.create_server(("127.0.0.1", 0)) as http,
        socket.create_server(("127.0.0.1", 0)) as grpc,
    ):
        return http.getsockname()[1], grpc.getsockname()[1]


@contextmanager
def running(command: list[str], ports: Ports, folder: Path) -> Iterator[Ports]:
    """A server that answers, and that must end well afterwards."""
    environment = {**os.environ, "SERVING_LOG_PATH": str(folder)}
    process = subprocess.Popen([sys.executable, *command], env=environment)
    try:
        wait_until_ready(process, ports[0])
        yield ports
        process.send_signal(signal.SIGTERM)
        if process.wait(STOP_S):
            raise RuntimeError(f"the server ended with {process.returncode}: {' '.join(command)}")
    finally:
        process.kill()
        process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server is not ready: {error}") from None
        time.sleep(0.1)


def example_config(folder: Path, ports: Ports) -> Path:
    """The example's configuration with ports of our own."""
    values = yaml.safe_load((EXAMPLE / "config.yml").read_text(encoding="utf-8"))
    values["http_port"], values["rpc_port"] = ports
    for op in values["op"].values():
        model = op.get("local_service_conf", {})
        if "model_config" in model:
            model["model_config"] = str(EXAMPLE / model["model_config"])
    path = folder / "config.yml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def load_fails(model: str, protocol: str, port: int, options: tuple[str, ...]) -> bool:
    """Run perf_analyzer and print the result; return whether it or a request failed."""
    program = os.environ.get("PERF_ANALYZER") or str(BUILD / "bin" / "perf_analyzer")
    command = [program, "-m", model, "-i", protocol]
    command += ["-u", f"127.0.0.1:{port}", *PERF, *options]
    libraries = ":".join(map(str, BUILD.glob("lib/python*/site-packages/nvidia/*/lib")))
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    output = done.stdout + done.stderr
    name = f"perf_analyzer {protocol}: {model} {' '.join(options)}"
    answered = re.search(r"Request count: ([0-9]+)", output)
    counted = re.search(r"Inference count: ([0-9]+)", output)  # of the server's statistics
    if done.returncode or answered is None or counted is None or "Failed" in output:
        hint = "install Debian's libb64-0d\n" if "libb64" in output else ""
        print(f"FAILED {name}\n{hint}{output}", flush=True)
        return True
    print(f"ok {name}: {answered[1]} requests, {counted[1]} inferences counted by us", flush=True)
    return False


def check_fails(interpreter: Path, script: str, *arguments: str) -> bool:
    command = [str(interpreter), str(HERE / script), *arguments]
    return subprocess.run(command, check=False).returncode != 0


def main() -> int:
    print("tritonclient: setting up", flush=True)
    interpreter = python()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = {name: free_ports() for name in ("numbers", "echo", "parts", "imdb")}
        for name in ("numbers", "echo", "parts"):
            command = [str(HERE / "servers.py"), name, *map(str, ports[name])]
            stack.enter_context(running(command, ports[name], folder / name))
        config = example_config(folder, ports["imdb"])
        command = [str(EXAMPLE / "web_server.py"), str(config)]
        stack.enter_context(running(command, ports["imdb"], folder / "imdb"))
        arguments = [f"{name}={http},{grpc}" for name, (http, grpc) in ports.items()]
        messages = folder / "messages.bin"
        messages.write_bytes(inference_v2_pb2.DESCRIPTOR.serialized_pb)
        failed = check_fails(interpreter, "messages.py", str(messages))
        failed |= check_fails(interpreter, "checks.py", *arguments)
        for server, model, protocol, options in LOADS:
            port = ports[server][protocol == "grpc"]
            failed |= load_fails(model, protocol, port, options)
    print("some checks failed" if failed else "all checks are well")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
