"""gRPC servers of the tests' own: what they answer, and when, is up to the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

Answer = Callable[[bytes, Any], bytes]
"""(request, context) -> response, both serialised; errors by `context.abort`."""


class Peer:
    """A server whose methods take and give serialised messages.

    Args:
        service: its full name on the wire.
        methods: by name.
        port: 0 for a free one.
    """

    def __init__(self, service: str, methods: dict[str, Answer], port: int = 0) -> None:
        self._pool = futures.ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in methods.items()
        }
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, handlers)]
        )
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.endpoint = f"127.0.0.1:{self.port}"
        self._server.start()

    def cut_off(self) -> None:
        """End at once, with the calls under way; a blocked answer may keep its thread."""
        self._server.stop(None).wait()

    def stop(self) -> None:
        """End, when all answers have been given."""
        self.cut_off()
        self._pool.shutdown()


@contextmanager
def peer(service: str, methods: dict[str, Answer], port: int = 0) -> Iterator[Peer]:
    server = Peer(service, methods, port)
    try:
        yield server
    finally:
        server.stop()


class Gate:
    """An answer that is held back: `arrived` is set by the question, `opened` by the test."""

    def __init__(self, answer: Answer) -> None:
        self.arrived = threading.Event()
        self.opened = threading.Event()
        self._answer = answer

    def __call__(self, request: bytes, context: Any) -> bytes:
        self.arrived.set()
        self.opened.wait()
        return self._answer(request, context)
