"""A server of typed pipelines, for the documents and the page that describe it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import field

import pipeline
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

LINES = [[[1.0, 1.0], [7.0, 1.0], [7.0, 4.0], [1.0, 4.0]]]


class Ask(pipeline.Schema):
    """Words, said again and again."""

    words: Annotated[str, msgspec.Meta(examples=["well"])]
    times: Annotated[int, msgspec.Meta(ge=1, le=9)] = 2
    loud: bool = False
    picture: bytes = b""
    marks: list[int] = field(default_factory=list)


class Reply(pipeline.Schema):
    said: str
    lines: list[list[tuple[float, float]]] = field(default_factory=list)


class Repeats(Op):
    def preprocess(self, input_dicts: Any) -> Any:
        return input_dicts["@DAGExecutor"]

    def postprocess(self, input_dicts: Any, fetch_dict: Any) -> Any:
        words = fetch_dict["words"].upper() if fetch_dict["loud"] else fetch_dict["words"]
        said = words * fetch_dict["times"] + "!" * sum(fetch_dict["marks"])
        return {"said": said, "lines": LINES if fetch_dict["picture"] else []}


class Streams(Repeats):
    def postprocess(self, input_dicts: Any, fetch_dict: Any) -> Any:
        for _ in range(fetch_dict["times"]):
            yield {"said": fetch_dict["words"]}


@contextlib.contextmanager
def typed_server(streams: bool = False, **config: Any) -> Iterator[PipelineServer]:
    """A server of one pipeline, "says", with its HTTP port."""
    server = PipelineServer("says")
    last = (Streams if streams else Repeats)("repeats", RequestOp(schema=Ask))
    server.set_response_op(ResponseOp(last, schema=Reply))
    ports = {"rpc_port": 0, "http_port": 0, "host": "127.0.0.1"}
    server.prepare_server(yml_dict={**ports, **config})
    with server:
        yield server
