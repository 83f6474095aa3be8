"""A graph of many identity Ops. Arguments: `chain` (one after the other) or `wide` (side by side,
and one that takes the first's answer), how many; what else `common` knows."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.services.common import Echo, serve
from pipeline import Op, RequestOp


class First(Op):
    """Answers with what the first of its inputs says."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        return input_dicts["echo0"], False, None, ""


def chain(count: int) -> Op:
    last: Op = RequestOp()
    for number in range(count):
        last = Echo(name=f"echo{number}", input_ops=[last])
    return last


def wide(count: int) -> Op:
    read = RequestOp()
    echoes = [Echo(name=f"echo{number}", input_ops=[read]) for number in range(count)]
    return First(name="first", input_ops=echoes)


if __name__ == "__main__":
    shape, count = sys.argv[1], int(sys.argv[2])
    serve("many", (chain if shape == "chain" else wide)(count))
