"""New versions of a server, under load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.faults.fault import Fault, wait_until
from benchmarks.process import Service

_MOST_S = 180.0
_RELOADS = 3


def _reload(service: Service) -> None:
    """Change the script, and wait for the next server, several times."""
    for number in range(_RELOADS):
        with (service.folder / "faulted.py").open("a") as script:
            script.write(f"# {number}\n")
        done = partial(_has_reloaded, service, number + 1)
        wait_until(done, _MOST_S, "no new server takes over")


def _has_reloaded(service: Service, times: int) -> bool:
    return service.output().count("the new server has taken over") >= times


def _update(service: Service) -> None:
    """Update the fleet, replica by replica."""
    address = (service.folder / "address").read_text()
    subprocess.run(
        [
            *(sys.executable, "-m", "pipeline", "cluster", "update", "faulted.py"),
            *("--address", address, "--set", "op.sums.concurrency=3"),
        ],
        cwd=service.folder, check=True, timeout=_MOST_S, stdout=subprocess.DEVNULL,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip


def _embedded(stack: ExitStack) -> Mapping[str, Any]:
    return {"edge": "embedded"}


FAULTS = (
    Fault("serve --reload, 3 times", strike=_reload, keys=_embedded, module="reloaded"),
    Fault(
        "cluster update of two replicas", False, _update, _embedded,
        module="fleet", start_s=_MOST_S, needs=("ray",),
    ),
)  # fmt: skip
