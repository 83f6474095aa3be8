"""Samples that a worker runs at its start: in batches or alone, at Ops of all kinds."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import logs_in

from pipeline import Op, RequestOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.engine.op.answer_form import packed
from pipeline.engine.run.bound_op import BoundOp
from pipeline.errors import InitError
from pipeline.op import configure_op
from pipeline.workers.warm_up import WarmUpSample, warm_up

FEED = packed({"x": np.array([[1.0, 2.0]], np.float32), "START": np.ones((1, 1), np.int32)})


class Sums(Op):
    """Notes the shapes that it was fed."""

    seen: list[dict[str, tuple[int, ...]]]

    def process(self, feed_batch, typical_logid=0):
        self.seen.append({name: array.shape for name, array in feed_batch[0].items()})
        if feed_batch[0]["x"].flat[0] < 0:
            raise ValueError("below")
        return {"y": feed_batch[0]["x"]}


class Streams(Sums):
    def process(self, feed_batch, typical_logid=0):
        self.seen.append({name: array.shape for name, array in feed_batch[0].items()})
        yield {"y": feed_batch[0]["x"]}


def bound(kind, *samples, **config):
    op = kind("sums", RequestOp())
    op.seen = []
    op.pipeline_warm_up = samples
    settings = load_config(yml_dict={"rpc_port": 0, "op": {"sums": {"batch_size": 8, **config}}})
    configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
    return BoundOp(op, 0, None), op


def test_requests_of_a_sample_are_one_batch_or_run_alone():
    made, op = bound(
        Sums, WarmUpSample("together", FEED, 3), WarmUpSample("alone", FEED, 2, 2, False)
    )
    warm_up(made, 0)
    assert [item["x"] for item in op.seen] == [(3, 2), *[(1, 2)] * 4]
    assert op.seen[0]["START"] == (3, 1)


def test_an_op_that_answers_in_parts_runs_them_to_the_end():
    made, op = bound(Streams, WarmUpSample("s", FEED, 2))
    warm_up(made, 0)
    assert len(op.seen) == 2


def test_the_first_that_fails_ends_it(tmp_path):
    bad = packed({"x": np.array([[-1.0]], np.float32)})
    made, op = bound(Sums, WarmUpSample("bad", bad), WarmUpSample("never", FEED))
    with pytest.raises(InitError, match=r"failed to run warmup sample 'bad': .*below.*; "):
        warm_up(made, 0)
    assert len(op.seen) == 1


def test_each_warm_up_run_is_logged(tmp_path, capsys):
    made, _ = bound(Sums, WarmUpSample("twice", FEED, 1, 2), concurrency=3)
    with logs_in(None, "DEBUG", to="stdout"):
        warm_up(made, 2)
    text = "model 'sums' instance sums_0_2 is running warmup sample 'twice' for iteration "
    assert [capsys.readouterr().out.count(text)] == [2]
