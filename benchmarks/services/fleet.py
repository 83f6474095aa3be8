"""A fleet of two replicas of faulted.py on a Ray cluster of this machine, and its edge."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import IO

from benchmarks.services.ports import HTTP_PORT

_COMMAND = (sys.executable, "-m", "pipeline", "cluster")


def _address(lines: IO[str]) -> str:
    """Return the address that a cluster prints; all its lines are copied to the output."""
    for line in lines:
        print(line, end="", flush=True)
        if found := re.search(r"is at (\S+);", line):
            Thread(target=_copy, args=(lines,), daemon=True).start()
            return found[1]
    sys.exit("the cluster ended before it had an address; its output is above")


def _copy(lines: IO[str]) -> None:
    for line in lines:
        print(line, end="", flush=True)


if __name__ == "__main__":
    folder = Path(os.environ["SERVING_LOG_PATH"])
    shutil.copy(Path(__file__).with_name("faulted.py"), folder)
    os.chdir(folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    local = [*_COMMAND, "local", "--nodes", "2"]
    cluster = subprocess.Popen(
        local, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    processes: list[subprocess.Popen[str]] = [cluster]
    try:
        assert cluster.stdout is not None
        address = _address(cluster.stdout)
        (folder / "address").write_text(address)
        to = ("--address", address)
        subprocess.run([*_COMMAND, "up", "faulted.py", "--replicas", "2", *to], check=True)
        edge = [*_COMMAND, "edge", "--listen", f"127.0.0.1:{HTTP_PORT}", *to]
        processes.append(subprocess.Popen(edge, encoding="utf-8"))
        processes[-1].wait()
    finally:
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            process.wait(30)
