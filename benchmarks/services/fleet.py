"""A fleet of two replicas of faulted.py on a Ray cluster of this machine, and its edge."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.services.ports import HTTP_PORT

_COMMAND = (sys.executable, "-m", "pipeline", "cluster")

if __name__ == "__main__":
    folder = Path(os.environ["SERVING_LOG_PATH"])
    shutil.copy(Path(__file__).with_name("faulted.py"), folder)
    os.chdir(folder)
    cluster = subprocess.Popen(
        [*_COMMAND, "local", "--nodes", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    edge = None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        assert cluster.stdout is not None
        lines = (line.decode() for line in cluster.stdout)
        address = next(found[1] for line in lines if (found := re.search(r"is at (\S+);", line)))
        (folder / "address").write_text(address)
        to = ("--address", address)
        subprocess.run([*_COMMAND, "up", "faulted.py", "--replicas", "2", *to], check=True)
        edge = subprocess.Popen([*_COMMAND, "edge", "--listen", f"127.0.0.1:{HTTP_PORT}", *to])
        edge.wait()
    finally:
        for process in (edge, cluster):
            if process is not None:
                process.send_signal(signal.SIGINT)
                process.wait(30)
