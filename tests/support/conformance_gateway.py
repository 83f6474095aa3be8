"""Gateways that tests run in front of servers."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from conformance_server import LIMIT
from doubles import wait_until
from raw_http import Answer, Connection, request

from pipeline import PipelineServer

_PATIENCE_S = 30.0
PATIENT = ("--slack", "30s")  # it waits for a busy server's own word that a deadline has passed


class Gateway:
    """A gateway that runs.

    Attributes:
        port: where it listens.
        process: it.
    """

    def __init__(self, binary: Path, backends: tuple[str, ...], flags: tuple[str, ...]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed by `close`
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]
            wanted = ["--listen-fd", str(listener.fileno()), "--max-message-bytes", str(LIMIT)]
            wanted += [word for backend in backends for word in ("--backend", backend)]
            self.process = subprocess.Popen(
                [binary, *wanted, *flags],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=self._said,
            )

    @property
    def said(self) -> str:
        """What it wrote to stderr."""
        self._said.seek(0)
        return self._said.read().decode()

    def get(self, path: str) -> Answer:
        with Connection(self.port) as connection:
            connection.send(request(method="GET", path=path))
            return connection.answer()

    def status_of(self, path: str) -> int:
        """The status of a GET."""
        return self.get(path).status

    def wait_until_ready(self, backends: int = 1) -> None:
        """Wait until so many backends serve."""
        wait_until(lambda: self._has_ended() or self._up() >= backends)
        assert not self._has_ended(), self.said
        assert self.status_of("/health/ready") == 200

    def _up(self) -> int:
        metrics = self.get("/metrics").body.decode()
        return len(re.findall(r"^pipeline_gateway_backend_up\{.*\} 1$", metrics, re.MULTILINE))

    def _has_ended(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        """End it; it must not have ended by itself, and has to do so now."""
        assert not self._has_ended(), self.said
        self.process.terminate()
        try:
            assert self.process.wait(_PATIENCE_S) == 0, self.said
        finally:
            self.process.kill()
            self.process.wait()
            self._said.close()


@contextlib.contextmanager
def gateway_before(binary: Path, *backends: str, flags: tuple[str, ...] = ()) -> Iterator[Gateway]:
    """A gateway in front of `backends`, which need not be up."""
    with contextlib.closing(Gateway(binary, backends, flags)) as gateway:
        yield gateway


def both_ports(server: PipelineServer) -> str:
    """A running server as a backend of which the gateway knows the HTTP port too."""
    return f"127.0.0.1:{server.rpc_port}/{server.http_port}"


def only_grpc(server: PipelineServer) -> str:
    """A running server as a backend that has no HTTP port as far as the gateway knows."""
    return f"127.0.0.1:{server.rpc_port}"
