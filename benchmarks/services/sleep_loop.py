"""The ceiling for B: its workers' sleeps in a plain loop. Arguments: seconds, clients."""

from __future__ import annotations

import functools
import sys
import time

from benchmarks.services.batch import BATCH_SIZE, CALL_S, CONCURRENCY
from benchmarks.services.loops import run_loops

if __name__ == "__main__":
    seconds, clients = float(sys.argv[1]), int(sys.argv[2])
    batch = min(BATCH_SIZE, clients)
    run_loops(functools.partial(time.sleep, CALL_S), seconds, min(CONCURRENCY, clients), batch)
