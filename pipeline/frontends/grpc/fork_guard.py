"""Whether gRPC is in use in this process: then one that is forked from it cannot use it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from pipeline.errors import InitError

_THREADS = {"event_engine", "lifeguard"}  # gRPC's own, as long as it is in use
_REST_S = 1.0  # for them to end when the last channel was closed


def check_that_grpc_rests() -> None:
    """For who is about to fork a process that uses gRPC: in use here, it is useless there.

    Raises:
        InitError: it is in use.
    """
    deadline = time.monotonic() + _REST_S
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
    """What the system calls the threads of this process."""
    names = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has just ended
            names.add(path.read_text().strip())
    return names
