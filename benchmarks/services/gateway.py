"""The gateway before backends of its own; arguments: their module here, how many, their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.services.ports import HTTP_PORT, free_ports


def main(module: str, count: str, *arguments: str) -> int:
    """Run until SIGTERM, which the backends get as well."""
    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(_backend(module, *arguments)) for _ in range(int(count))]
        command = [sys.executable, "-m", "pipeline.gateway", f"--listen=127.0.0.1:{HTTP_PORT}"]
        gateway = subprocess.Popen([*command, *(f"--backend={address}" for address in addresses)])
        signal.signal(signal.SIGTERM, lambda *_: gateway.terminate())
        return gateway.wait()


@contextlib.contextmanager
def _backend(module: str, *arguments: str) -> Iterator[str]:
    """Run a service on free ports; yield its address for the gateway."""
    rpc_port, http_port = free_ports()
    ports = {"BENCH_GRPC_PORT": str(rpc_port), "BENCH_HTTP_PORT": str(http_port)}
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.services.{module}", *arguments], env=os.environ | ports
    )
    try:
        yield f"127.0.0.1:{rpc_port}"
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
