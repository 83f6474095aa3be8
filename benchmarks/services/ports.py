"""The ports on which a service under test listens, as benchmarks/process.py hands them over."""

from __future__ import annotations

import os
import socket

HTTP_PORT = int(os.environ.get("BENCH_HTTP_PORT", "18080"))
GRPC_PORT = int(os.environ.get("BENCH_GRPC_PORT", "19090"))


def free_ports() -> tuple[int, int]:
    """Two ports of this machine that nobody has."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
