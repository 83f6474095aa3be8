"""Fork safety of gRPC: a process that is forked from one that uses it cannot use it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from pipeline.errors import InitError

_THREADS = {"event_engine", "lifeguard"}  # gRPC's own, as long as it is in use
_END_TIMEOUT_S = 1.0  # for them to end when the last channel was closed


def require_grpc_unused() -> None:
    """Check, before a fork, that the child can use gRPC: this process does not use it.

    Raises:
        InitError: it does.
    """
    deadline = time.monotonic() + _END_TIMEOUT_S
    while _THREADS & _thread_names():
        if time.monotonic() > deadline:
            raise InitError(
                "build_dag_each_worker: gRPC is in use in this process, so that copies of the "
                "server that are forked from it could not use it. Close the channels, "
                "PipelineClients and servers of this process first, or start this server before "
                "them, or set dag.start_method: spawn."
            )
        time.sleep(0.002)


def _thread_names() -> set[str]:
    """Return the system's names of the threads of this process."""
    names = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has just ended
            names.add(path.read_text().strip())
    return names
