"""Photograph the page of a server at work: docs/page.png, or where --out says."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from browser import Browser  # noqa: E402  # a helper of the tests

from pipeline import Op, PipelineServer, RequestOp, ResponseOp  # noqa: E402  # after the path

CALLERS = 40
WATCHED_S = 25.0  # until the small lines say something
BODY = b'{"key": ["text"], "value": ["a fine film"]}'
CONFIG: dict[str, Any] = {
    "rpc_port": 0,
    "http_port": 0,
    "worker_num": 64,
    "op": {
        "tokens": {"concurrency": 2},
        "bow": {"concurrency": 2, "batch_size": 4, "auto_batching_timeout": 2},
        "cnn": {"concurrency": 2, "batch_size": 4, "auto_batching_timeout": 2},
        "lstm": {"concurrency": 3, "batch_size": 8, "auto_batching_timeout": 4},
        "combine": {"concurrency": 1},
    },
}
WORK_MS = {"tokens": 0.6, "bow": 1.2, "cnn": 3.0, "lstm": 7.0, "combine": 0.3}


class FakeOp(Op):
    """Sleeps where a model would work."""

    def process(self, feed_batch: Any, typical_logid: Any = 0) -> Any:
        time.sleep(max(0.0, random.gauss(1.0, 0.2)) * WORK_MS[self.name] / 1000)
        if self.name == "combine" and random.random() < 0.001:
            raise ValueError("2 scores for 3 weights")
        return feed_batch[0]


class CombineOp(FakeOp):
    """Reads three others."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        return {"score": "0.8"}, False, None, ""


def demo_server() -> PipelineServer:
    """A server like that of the IMDB example, with one Op that holds the others up."""
    tokens = FakeOp("tokens", [RequestOp()])
    models = [FakeOp(name, [tokens]) for name in ("bow", "cnn", "lstm")]
    server = PipelineServer("sentiment")
    server.set_response_op(ResponseOp([CombineOp("combine", models)]))
    server.prepare_server(yml_dict=CONFIG)
    return server


@contextlib.contextmanager
def load(port: int) -> Iterator[None]:
    """CALLERS ask, each as soon as it has its answer and has thought a little."""
    is_over = threading.Event()

    def call() -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        while not is_over.wait(random.uniform(0, 0.12)):
            connection.request("POST", "/sentiment/prediction", BODY)
            connection.getresponse().read()
        connection.close()

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    try:
        yield
    finally:
        is_over.set()
        for caller in callers:
            caller.join()


def photograph(url: str, out: Path, is_dark: bool) -> None:
    """Watch the page for some seconds, open the slowest request, take the picture."""
    with Browser(1280, 800, is_dark) as browser:
        browser.open(url)
        browser.wait_for("document.querySelector('#slowest details') !== null")
        time.sleep(WATCHED_S)
        browser.run("document.querySelector('#slowest summary').click()")
        browser.wait_for("document.querySelector('#slowest .track') !== null")
        browser.run("window.scrollTo(0, 0)")
        browser.screenshot(out, is_whole=True)


def main() -> None:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "page.png")
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
    with demo_server() as server:
        assert server.http_port is not None
        with load(server.http_port):
            photograph(f"http://127.0.0.1:{server.http_port}/", arguments.out, arguments.dark)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # for its logs
        main()
