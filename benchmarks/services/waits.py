"""A service that sleeps, so that other requests wait, and answers with a picture's size."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.services.common import serve
from pipeline import Op, RequestOp

_WAITING_S = 0.2


class Waits(Op):
    """Sleeps, and answers with the size of the picture."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, input_dict),) = input_dicts.items()
        time.sleep(_WAITING_S)
        return {"size": str(len(input_dict["image"]))}, False, None, ""


if __name__ == "__main__":
    serve("waits", Waits(name="waits_op", input_ops=[RequestOp()]))
