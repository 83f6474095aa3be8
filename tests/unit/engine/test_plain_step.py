"""A lone request at an Op without `process` fares as each of several does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import Op, ProductError
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.stages import BatchRun
from pipeline.errors import PipelineError
from pipeline.op import configure_op

DATA = {"x": "1"}


def raised(error: BaseException) -> Any:
    raise error


PREPARED = {
    "a dict": lambda: DATA,
    "all four": lambda: (DATA, False, None, ""),
    "skips": lambda: (DATA, True, None, ""),
    "three": lambda: (DATA, None, ""),
    "a code": lambda: (DATA, False, 77, "no"),
    "no flag": lambda: (DATA, "flag", None, ""),
    "a list": lambda: ([DATA], False, None, ""),
    "a text": lambda: "text",
    "nothing": lambda: None,
    "too much": lambda: (DATA, False, None, "", 5),
    "an error": lambda: raised(ValueError("no")),
    "an end": lambda: raised(SystemExit(3)),
}
ANSWERED = {
    "a dict": lambda data: {"got": data},
    "all three": lambda data: ({"got": data}, None, ""),
    "one of them": lambda data: ({"got": data},),
    "a code": lambda data: ({"got": data}, 78, "no"),
    "a list": lambda data: [data],
    "nothing": lambda data: None,
    "a refusal": lambda data: raised(ProductError(79, "no")),
    "an error": lambda data: raised(KeyError("x")),
}


def bind(op: Op) -> BoundOp:
    settings = load_config(yml_dict={"rpc_port": 0})
    configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
    return BoundOp(op, 0)


def outcomes_of(bound: BoundOp, count: int) -> list[Any]:
    """What so many requests get in one batch."""
    given = {"inputs": {}, "log_id": 5, "is_over": False, "is_feed": False}
    batch = BatchRun([SimpleNamespace(data_id=number, **given) for number in range(count)])
    batch.run(bound, None, lambda: 0)
    return batch.outcomes


def comparable(outcome: Any) -> Any:
    if isinstance(outcome, PipelineError):
        return type(outcome), outcome.code, str(outcome)
    return outcome


@pytest.mark.parametrize("prepared", PREPARED)
@pytest.mark.parametrize("answered", ANSWERED)
def test_a_single_request_and_each_of_two_get_the_same_outcome(prepared, answered):
    class Plain(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            return PREPARED[prepared]()

        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return ANSWERED[answered](fetch_data)

    bound = bind(Plain("p"))
    assert bound.is_plain
    (alone,) = outcomes_of(bound, 1)
    first, second = outcomes_of(bound, 2)
    assert comparable(alone) == comparable(first) == comparable(second)
