"""A server whose answers come in parts, as a test bids, and its callers over HTTP."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from doubles import server_for

from pipeline import Op, PipelineServer, RequestOp

PATIENCE_S = 30.0
EVENTS, LINES = "text/event-stream", "application/x-ndjson"


class Stage:
    """The state of the generators of one server.

    Attributes:
        made: parts that all of them yielded.
        closed: generators that were closed before they had ended.
    """

    def __init__(self) -> None:
        self.made = 0
        self.closed = 0
        self.gate = threading.Event()


class Speaks(Op):
    """Yields "0", "1" ... `n` times, each followed by `size` times "x".

    At number `fail` it raises, and before number `hold` it waits until the stage's gate is open.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__("speaks", [RequestOp()], concurrency=4)
        self.stage = stage

    def process(self, feed_batch, log_id):
        asked = feed_batch[0]
        try:
            for number in range(int(asked["n"])):
                if number == int(asked.get("fail", -1)):
                    raise ValueError("no more")
                if number == int(asked.get("hold", -1)):
                    assert self.stage.gate.wait(PATIENCE_S)
                self.stage.made += 1
                yield {"text": f"{number}{'x' * int(asked.get('size', 0))}"}
        except GeneratorExit:
            self.stage.closed += 1
            raise


def speaking(stage: Stage, **config: Any) -> PipelineServer:
    """A server on free ports whose answers come in parts."""
    settings = {"errors": {"details": "full"}, **config}  # the same, whichever door it has
    return server_for(Speaks(stage), **settings)


class StreamedAnswer:
    """One answer, read line by line."""

    def __init__(self, response: HTTPResponse) -> None:
        self.response = response
        self.status = response.status
        self.kind = response.headers["content-type"]

    def lines(self) -> list[str]:
        """All lines that are left."""
        return self.response.read().decode().splitlines()

    def line(self) -> str:
        """The next line that is not empty."""
        while (line := self.response.readline()) == b"\n":
            pass
        return line.decode().rstrip("\n")

    def events(self) -> list[tuple[str, Any]]:
        """(name, data) of the events that are left; "": it has none."""
        found, name = [], ""
        for line in self.lines():
            key, _, value = line.partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                found.append((name, json.loads(value)))
                name = ""
        return found


def texts(parts: list[Any]) -> list[str]:
    """The texts of Responses without an error."""
    for part in parts:
        assert (part["err_no"], part["key"]) == (0, ["text"]), part
    return [part["value"][0] for part in parts]


def body_of(**pairs: Any) -> bytes:
    return json.dumps({"key": list(pairs), "value": [str(v) for v in pairs.values()]}).encode()


@contextlib.contextmanager
def asked(
    port: int | None, accept: str | None = EVENTS, body: bytes | None = None, **pairs: Any
) -> Iterator[StreamedAnswer]:
    """Ask for an answer on a connection of its own, which is closed behind it.

    `headers` in `pairs` are further ones; with `body` that is sent, else the pairs.
    """
    headers = {"Accept": accept} if accept is not None else {}
    headers |= pairs.pop("headers", {})
    connection = HTTPConnection("127.0.0.1", port or 0, timeout=PATIENCE_S)
    try:
        sent = body_of(**pairs) if body is None else body
        connection.request("POST", "/svc/prediction", sent, headers)
        yield StreamedAnswer(connection.getresponse())
    finally:
        connection.close()
