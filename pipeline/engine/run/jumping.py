"""The last stage of a batch at an Op with `jump_to_ops`: whether its answers jump."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from pipeline.data import ChannelData
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.stage_errors import stage_error


def check_jumping(op: BoundOp, items: Sequence[Any], outcomes: list[Any]) -> bool:
    """Return whether the answers among a batch's outcomes jump; an error takes their places."""
    answers = OrderedDict(
        (item.data_id, ChannelData(item.data_id, item.log_id, outcome))
        for item, outcome in zip(items, outcomes, strict=True)
        if isinstance(outcome, dict)
    )
    if not answers:
        return False
    try:
        return bool(op.op.check_jumping(answers))
    except BaseException as error:  # user code; a worker survives even SystemExit
        failed = stage_error(error, op, "check_jumping", 0, *answers)
        outcomes[:] = [failed if isinstance(each, dict) else each for each in outcomes]
        return False
