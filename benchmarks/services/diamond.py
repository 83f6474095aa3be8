"""D: two Ops each sum the request's 16 floats, a third adds them; argument `processes` or none."""

from __future__ import annotations

from typing import Any

from benchmarks.services.common import serve
from pipeline import Op, RequestOp


class Sum(Op):
    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, input_dict),) = input_dicts.items()
        return {"sum": sum(map(float, input_dict["x"].split(",")))}, False, None, ""


class Combine(Op):
    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        result = input_dicts["a"]["sum"] + input_dicts["b"]["sum"]
        return {"result": str(result)}, False, None, ""


if __name__ == "__main__":
    read = RequestOp()
    a = Sum(name="a", input_ops=[read])
    b = Sum(name="b", input_ops=[read])
    serve("diamond", Combine(name="combine", input_ops=[a, b]))
