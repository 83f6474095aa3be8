"""Answers with the array of float32 that it is sent; `typed`: a schema makes it one."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import numpy as np

from benchmarks.services.common import serve
from pipeline import Op, RequestOp, Schema, Tensor

_X = Tensor("x", "FP32", (-1,))


class Ask(Schema):
    x: Annotated[np.ndarray, _X]


class Floats(Op):
    """Has what came as an array, and answers with it."""

    output_tensors = (_X,)

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, input_dict),) = input_dicts.items()
        return {"x": np.asarray(input_dict["x"], np.float32)}, False, None, ""


if __name__ == "__main__":
    read_op = RequestOp(schema=Ask if "typed" in sys.argv else None)
    serve("floats", Floats(name="floats_op", input_ops=[read_op]))
