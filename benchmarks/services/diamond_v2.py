"""D over the v2 protocol: two Ops each sum an array of 16 float32, a third adds the sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.services.common import serve
from pipeline import Op, RequestOp
from pipeline.data import Tensor

NUMBERS = Tensor("x", "FP32", (16,))
ONE = (1,)


class ReadOp(RequestOp):
    input_tensors = (NUMBERS,)


class SumOp(Op):
    input_tensors = (NUMBERS,)
    output_tensors = (Tensor("sum", "FP32", ONE),)

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, input_dict),) = input_dicts.items()
        return {"sum": np.array([input_dict["x"].sum()])}, False, None, ""


class CombineOp(Op):
    input_tensors = (
        Tensor("sum", "FP32", ONE, source="a"),
        Tensor("sum", "FP32", ONE, source="b"),
    )
    output_tensors = (Tensor("result", "FP32", ONE),)

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        return {"result": input_dicts["a"]["sum"] + input_dicts["b"]["sum"]}, False, None, ""


if __name__ == "__main__":
    read = ReadOp()
    a, b = (SumOp(name=name, input_ops=[read]) for name in "ab")
    serve("diamond_v2", CombineOp(name="combine", input_ops=[a, b]))
