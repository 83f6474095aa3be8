"""The ceiling for B: its workers' sleeps in a plain loop.

Arguments: seconds, clients; `beside`: while B and its clients keep the machine as busy as they do.
"""

from __future__ import annotations

import functools
import sys
import threading
import time

from benchmarks.ask import Question, ask_http
from benchmarks.load import http_load
from benchmarks.process import running
from benchmarks.services.batch import BATCH_SIZE, CALL_S, CONCURRENCY
from benchmarks.services.loops import run_loops

_QUESTION = Question("x", "1", lambda answer: answer == {"x": "1"})
_STARTED_S = 1.5  # the load comes before the loop, and goes after it


def sleep(seconds: float, clients: int) -> None:
    batch = min(BATCH_SIZE, clients)
    run_loops(functools.partial(time.sleep, CALL_S), seconds, min(CONCURRENCY, clients), batch)


def sleep_beside(seconds: float, clients: int) -> None:
    with running("batch", "full") as service:
        url = f"http://127.0.0.1:{service.http_port}/batch/prediction"
        service.first_answer(lambda: ask_http(url, _QUESTION))
        load = threading.Thread(
            target=http_load, args=(url, _QUESTION, clients, seconds + 2 * _STARTED_S)
        )
        load.start()
        time.sleep(_STARTED_S)
        sleep(seconds, clients)
        load.join()


if __name__ == "__main__":
    way = sleep_beside if "beside" in sys.argv else sleep
    way(float(sys.argv[1]), int(sys.argv[2]))
