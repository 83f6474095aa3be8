"""An item runs by itself at an Op without `process`, until its worker is given up."""

from __future__ import annotations

from types import SimpleNamespace

from pipeline import Op
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.engine.op.channel import Item
from pipeline.engine.op.dispatcher import as_batch
from pipeline.engine.run.bound_op import BoundOp
from pipeline.errors import PipelineError
from pipeline.op import configure_op


class Notes(Op):
    """Notes which of its methods were called; its preprocess is `during`."""

    def __init__(self, during=lambda: None):
        super().__init__(name="notes")
        self.called = []
        self.during = during

    def preprocess(self, input_dicts, data_id, log_id):
        self.called.append("preprocess")
        self.during()
        return {"x": "1"}, False, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        self.called.append("postprocess")
        return fetch_data, None, ""


def bind(op):
    settings = load_config(yml_dict={"rpc_port": 0})
    configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
    return BoundOp(op, 0)


def lone(generation=0):
    request = SimpleNamespace(generation=0)
    return Item(request, generation, 7, 5, {"read": {}}, 0.0)


def test_it_runs_both_stages():
    run, bound = lone(), bind(Notes())
    run.run(bound, None, iter((1, 2, 3)).__next__)
    assert run.outcome == {"x": "1"}
    assert (run.start_ns, run.preprocess_end_ns, run.end_ns) == (1, 2, 3)
    assert bound.op.called == ["preprocess", "postprocess"]


def test_no_method_runs_for_a_finished_request():
    run, bound = lone(generation=1), bind(Notes())
    run.run(bound, None, iter(()).__next__)
    assert run.outcome is None
    assert bound.op.called == []


def test_an_item_that_was_given_up_does_not_continue():
    run = lone()
    bound = bind(Notes(lambda: setattr(as_batch(run), "is_superseded", True)))
    run.run(bound, None, lambda: 1)
    assert run.outcome is None
    assert bound.op.called == ["preprocess"]


def test_the_batch_that_it_becomes_has_it_as_its_only_item():
    run = lone()
    batch = as_batch(run)
    assert batch.items == [run] == [*run.items]
    assert isinstance(batch.timed_out("notes", 0), PipelineError)
