"""The child of a trial: the configuration that it runs with, and what it tells of Ops."""

from __future__ import annotations

import pytest

from pipeline import Op, RequestOp
from pipeline.cli.trial_main import changed, tried_op
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.errors import ConfigError
from pipeline.op import configure_op
from pipeline.tuning.tried_server import TriedOp


class Batched(Op):
    def process(self, feed):
        return feed


def _tried(op: Op, values: dict[str, object], *, streams: bool = False) -> TriedOp:
    config = load_config(yml_dict={"http_port": 0, "op": {op.name: values}})
    configure_op(op, resolve_op(op.name, op.pipeline_given, config))
    return tried_op(op, streams)


def test_a_trial_uses_free_ports_and_has_no_side_effects():
    live = {
        "http_port": 80,
        "http_host": "::",
        "sinks": {"mine": {}},
        "filters": {"record": {"file": "load.jsonl"}, "mine": {}},
        "dag": {"retry": 2},
        "op": {"a": {"batch_size": 2, "response_cache": True}, "b": None},
    }
    tried = changed(live, {"a": {"concurrency": 4}, "new": {"concurrency": 2}})
    assert (tried["http_port"], tried["http_host"], tried["host"]) == (0, None, "127.0.0.1")
    assert tried["sinks"] == {}
    assert tried["filters"] == {"mine": {}}
    assert (tried["dag"]["retry"], tried["dag"]["use_profile"]) == (2, True)
    assert tried["op"] == {
        "a": {"batch_size": 2, "response_cache": False, "concurrency": 4},
        "b": {"response_cache": False},
        "new": {"concurrency": 2},
    }
    assert live["op"]["a"]["response_cache"] is True


def test_an_invalid_configuration_is_refused():
    with pytest.raises(ConfigError):
        changed(["http_port"], {})


def test_an_op_is_described_with_the_arguments_of_its_constructor():
    op = Batched("a", RequestOp(), concurrency=2)
    tried = _tried(op, {"concurrency": 3, "batch_size": 8, "auto_batching_timeout": 5})
    assert tried == TriedOp(
        "a", 2, 8, 5.0, in_processes=False, takes_batches=True, said=("concurrency",)
    )


def test_batches_are_tried_where_there_is_something_to_do_for_a_batch():
    assert not _tried(Op("a", RequestOp()), {}).takes_batches
    assert _tried(Op("a", RequestOp()), {"local_service_conf": {"model_config": "m"}}).takes_batches


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"sequence": {"strategy": "direct"}}, "sequences"),
        ({"batching": "dynamic", "dynamic_batching": {}}, "batching: dynamic"),
    ],
)
def test_settings_of_another_scheduler_are_held(values, told):
    assert told in _tried(Batched("a", RequestOp()), values).held


def test_an_op_that_streams_is_held():
    assert _tried(Batched("a", RequestOp()), {}, streams=True).held
