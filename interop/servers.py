"""Builds and runs a brpc server that none of us wrote: brpc-java, by Maven."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "interop"


class Server:
    """A running server; it ends when its standard input does, so with this process."""

    def __init__(self, command: Sequence[str], port: int = 0) -> None:
        self.port = port or free_port()
        self._process = subprocess.Popen(
            [*command, str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == "ready":
                return
        raise RuntimeError(f"the server ended with {self._process.wait()}: {' '.join(command)}")

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def build_java() -> list[str]:
    """The command that runs the server; the port is its last argument."""
    run(["mvn", "--quiet", "--batch-mode", "package"], HERE / "brpc_java")
    built = BUILD / "brpc_java"
    return ["java", "-cp", f"{built}/*:{built}/lib/*", "interop.Server"]


def run(command: list[str], folder: Path) -> None:
    """Raises RuntimeError with what the command said, if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
