"""A brpc server on plain sockets that does what a test tells it, and nothing else."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from pipeline.proto.brpc.frames import (
    BrpcFrame,
    FrameReader,
    compress,
    pack,
    response_meta,
)

WAIT_S = 30.0


class Peer:
    """One connection, as the server sees it."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the client may have gone: then nobody misses it
            self.socket.sendall(data)

    def answer(self, frame: BrpcFrame, body: bytes | None = None, compression: int = 0) -> None:
        self.send(answer_to(frame, body, compression))

    def fail(self, frame: BrpcFrame, code: int, text: str = "as told") -> None:
        self.send(pack(response_meta(frame.meta.correlation_id, code, text), b""))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def answer_to(frame: BrpcFrame, body: bytes | None = None, compression: int = 0) -> bytes:
    """The frame that answers `frame`; no body: what was asked comes back."""
    meta = response_meta(frame.meta.correlation_id)
    meta.compress_type = compression
    return pack(meta, compress(compression, frame.body if body is None else body))


Behaviour = Callable[[Peer, BrpcFrame], None]


def echo(peer: Peer, frame: BrpcFrame) -> None:
    peer.answer(frame)


class FakeServer:
    """Calls `behaviour` with each request, on a thread of the connection.

    Args:
        behaviour: what to do; may be changed at any time.
        port: 0 for any.
        reads: False: connections are accepted, and nothing is ever read from them.
    """

    def __init__(self, behaviour: Behaviour = echo, port: int = 0, reads: bool = True) -> None:
        self.behaviour = behaviour
        self.requests: list[BrpcFrame] = []
        self.peers: list[Peer] = []
        self._reads = reads
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.address = ("127.0.0.1", self.port)
        self.endpoint = f"127.0.0.1:{self.port}"
        self._start(self._accept)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[:1]:
            thread.join(WAIT_S)
        self._listener.close()
        for peer in self.peers:
            peer.close()
        for thread in self._threads[1:]:
            thread.join(WAIT_S)
        for peer in self.peers:
            peer.socket.close()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="played brpc")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            peer = Peer(connected)
            self.peers.append(peer)
            if self._reads:
                self._start(self._serve, peer)

    def _serve(self, peer: Peer) -> None:
        reader = FrameReader()
        with contextlib.suppress(OSError):
            while data := peer.socket.recv(2**20):
                for frame in reader.feed(data):
                    self.requests.append(frame)
                    self.behaviour(peer, frame)


class Collecting:
    """A behaviour that keeps the requests until the test deals with them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.waiting: list[tuple[Peer, BrpcFrame]] = []

    def __call__(self, peer: Peer, frame: BrpcFrame) -> None:
        with self._changed:
            self.waiting.append((peer, frame))
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[tuple[Peer, BrpcFrame]]:
        """The requests so far, as soon as there are `count`."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.waiting) >= count, WAIT_S)
            return list(self.waiting)
