"""A server script that acts as it is asked to, and says what it counted."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from raw_http import Connection, request
from served import ServedWithClient
from server_counts import Moved, Seen, looked_at, metrics, moves, total

# front (thread) > batched (thread, 4 at once) > worked (2 processes, 2 at once, 2 attempts)
#   > slow (thread, has a timeout) > tail (process)
#
# A pair "<op>.<stage>": "<verb> <argument>" makes that Op do something in that stage.
SCRIPT = """
import json
import os
import pathlib
import sys
import time

from pipeline import Op, PipelineServer, RequestOp, ResponseOp

folder = pathlib.Path(sys.argv[1])


def first_of(value):
    return value[0] if isinstance(value, list) else value


class Acts(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        data = {}
        for answer in input_dicts.values():
            data.update(answer)
        code = self.act("preprocess", data)
        return data, False, code, "a product's error" if code else ""

    def process(self, feed_batch, typical_logid):
        return feed_batch[0], self.act("process", feed_batch[0]), "it failed"

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        fetch_data = {name: first_of(value) for name, value in fetch_data.items()}
        code = self.act("postprocess", fetch_data)
        fetch_data[self.name] = f"{self.concurrency_idx} {os.getpid()}"
        return fetch_data, code, "a product's error" if code else ""

    def act(self, stage, data):
        said = data.get(f"{self.name}.{stage}", "")
        codes = map(self.do, said if isinstance(said, list) else [said])  # of a batch, or of one
        return next(filter(None, codes), None)

    def do(self, said):
        verb, _, argument = said.partition(" ")
        return getattr(self, "do_" + verb)(argument) if verb else None

    def do_hold(self, name):
        entered = folder / f"{name}.entering"
        entered.write_text(str(os.getpid()))
        entered.rename(folder / f"{name}.entered")
        while not (folder / f"{name}.released").exists():
            time.sleep(0.002)

    def do_once(self, argument):
        name, verb, *rest = argument.split()
        if not (folder / name).exists():
            (folder / name).touch()
            return getattr(self, "do_" + verb)(*rest)

    def do_code(self, code):
        return int(code)

    def do_raise(self, text):
        raise ValueError(text)

    def do_exit(self, status):
        os._exit(int(status))


front = Acts(name="front", input_ops=[RequestOp()])
batched = Acts(name="batched", input_ops=[front], concurrency=1, batch_size=4)
worked = Acts(name="worked", input_ops=[batched], concurrency=2, batch_size=2, retry=2)
slow = Acts(name="slow", input_ops=[worked], concurrency=1, timeout=1000)
tail = Acts(name="tail", input_ops=[slow], timeout=1000)
server = PipelineServer("svc")
server.set_response_op(ResponseOp(input_ops=[tail]))
server.prepare_server(str(folder / "config.yml"))
server.run_server()
"""

OPS = ("front", "batched", "worked", "slow", "tail")
CONFIG: dict[str, Any] = {
    "op": {
        "batched": {"auto_batching_timeout": 5},
        "worked": {"workers": "process"},
        "tail": {"workers": "process"},
    }
}


class CountingServer(ServedWithClient):
    """A server script with a client, and what the server says of itself."""

    def __init__(self, folder: Path, script: str = SCRIPT, **config: Any) -> None:
        super().__init__(folder, script, {**CONFIG, **config})

    def moves(self) -> contextlib.AbstractContextManager[Moved]:
        return moves(self.rpc_port, self.http_port)

    def looked_at(self) -> Seen:
        return looked_at(self.rpc_port, self.http_port)

    def at(self, op: str, state: str) -> int:
        """Requests at an Op in one of the states of `/metrics`."""
        samples = metrics(self.http_port)
        return total(samples, "pipeline_op_requests", model=op, state=state)

    def wait_until_at(self, op: str, count: int) -> None:
        """Until an Op has so many requests that it has not begun, or works on."""
        self.wait_for(lambda: self.at(op, "queued") + self.at(op, "running") == count)

    def wait_until_inside(self, count: int) -> None:
        """Until the server has so many requests left to answer."""
        self.wait_for(lambda: total(metrics(self.http_port), "pipeline_requests") == count)

    def post(self, pairs: dict[str, str], *headers: str) -> Connection:
        """A connection on which a request is on its way."""
        body = json.dumps({"key": list(pairs), "value": list(pairs.values())}).encode()
        connection = Connection(self.http_port)
        connection.send(request(body, *headers))
        return connection
