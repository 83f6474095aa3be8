"""A server that is asked over `/api`: its Op does what the request's `do` says."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from doubles import server_for

from pipeline import Op, PipelineServer, ProductError, RequestOp

NAME = "plain"
OP = "does"
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
PATIENCE_S = 60.0


class Does(Op):
    """Answers with the request, or as its `do` says; a `picture` comes back unchanged."""

    def __init__(self, **config: Any) -> None:
        super().__init__(OP, [RequestOp()], **config)
        self.gate = threading.Event()

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (fields,) = input_dicts.values()
        do = fields.get("do")
        if do == "raise":
            raise ValueError("of the user")
        if do == "product":
            raise ProductError(51, "no face in the picture")
        if do == "wait":
            self.gate.wait(PATIENCE_S)
        answers = {
            "array": {"x": np.arange(6, dtype=np.float32).reshape(2, 3) / 4, "bytes": b"abc"},
            "large": {"x": np.arange(30_000) / 7},
            "nan": {"x": [1.0, float("nan")], "y": np.float32("inf")},
            "object": {"x": [{"a": object()}]},
            "picture": {"picture": PICTURE, "content_type": "image/png"},
            "types": {name: type(value).__name__ for name, value in fields.items()},
        }
        if "picture" in fields:
            fields = {**fields, "content_type": "image/png"}
        return answers.get(do, fields), False, None, ""

    def postprocess(self, input_data: Any, fetch_data: Any, *args: Any) -> Any:
        answer = fetch_data[0] if isinstance(fetch_data, list) else fetch_data
        return answer, None, ""


class Speaks(Does):
    """Answers in parts."""

    def postprocess(self, input_data: Any, fetch_data: Any, *args: Any) -> Any:
        answer, _, _ = super().postprocess(input_data, fetch_data)
        for at in range(answer["n"]):
            if at == answer.get("fails_at"):
                raise ProductError(52, "out of words")
            yield {"at": at}, None, ""


def plain_server(op: Op | None = None, **config: Any) -> PipelineServer:
    """A prepared server on free ports; use it as a context manager."""
    settings = {"errors": {"details": "full"}, **config}  # the same, whichever door it has
    return server_for(op or Does(concurrency=2), name=NAME, **settings)
