"""P: three Ops in a row, each 4 ms of pure Python, two workers; argument `processes` or none."""

from __future__ import annotations

from typing import Any

from benchmarks.services.common import serve
from pipeline import Op, RequestOp

STAGES = 3
_CONCURRENCY = 2
_STEPS = 75_000  # 4 ms of CPU where docs/performance.md was measured; the same work for all


class Work(Op):
    """Computes something, without a call that would give the interpreter's lock away."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, input_dict),) = input_dicts.items()
        return {"x": str(_work(int(input_dict["x"])))}, False, None, ""


def _work(number: int) -> int:
    for step in range(_STEPS):
        number = (number * 31 + step) % 1_000_003
    return number


def expected(number: int) -> int:
    """Return the service's answer."""
    for _ in range(STAGES):
        number = _work(number)
    return number


if __name__ == "__main__":
    last: Op = RequestOp()
    for stage in range(STAGES):
        last = Work(name=f"work{stage}", input_ops=[last])
    serve(
        "python_work",
        last,
        {f"work{stage}": {"concurrency": _CONCURRENCY} for stage in range(STAGES)},
    )
