"""Settings of the Op of a model: what its configuration says, in the words of config.yml."""

from __future__ import annotations

import pytest

from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.repository.model_config import parse_text
from pipeline.repository.model_defaults import fill_in
from pipeline.repository.op_settings import cards_of, instances_of, metrics_settings, op_settings

HEAD = 'name: "m" backend: "identity" max_batch_size: 8 '


def config_of(text):
    config = parse_text((HEAD + text).encode(), "x")
    fill_in(config, "m", ())
    return config


def settings_of(text):
    """The Op's configuration, as config.yml gives it."""
    config = load_config(yml_dict={"rpc_port": 0, "op": {"m": op_settings(config_of(text))}})
    assert not config.warnings
    return resolve_op("m", {}, config)


def test_without_a_batcher_each_request_runs_alone():
    settings = settings_of("instance_group { count: 3 kind: KIND_CPU }")
    assert (settings.batch_size, settings.concurrency) == (1, 3)


@pytest.mark.parametrize(
    ("groups", "count", "cards"),
    [
        ("", 1, []),
        ("instance_group [ { count: 2 kind: KIND_CPU }, { count: 3 kind: KIND_CPU } ]", 5, []),
        ("instance_group { count: 2 kind: KIND_GPU gpus: [0, 2] }", 4, [0, 2]),
        ("instance_group { count: 2 kind: KIND_MODEL }", 2, []),
    ],
)
def test_instances_are_workers(groups, count, cards):
    config = config_of(groups)
    assert instances_of(config) == count
    assert cards_of(config) == cards


def test_a_direct_sequence_batcher():
    settings = settings_of(
        """sequence_batching {
             max_sequence_idle_microseconds: 5000001
             direct { minimum_slot_utilization: 0.5 max_queue_delay_microseconds: 1500 }
             control_input { name: "START" control {
               kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
             state { input_name: "i" output_name: "o" data_type: TYPE_INT32 dims: [2, -1]
               initial_state { name: "zero" data_type: TYPE_INT32 dims: [2, 1] zero_data: true } }
           }"""
    )
    sequence = settings.sequence
    assert settings.batch_size == 8
    assert (sequence.strategy, sequence.max_idle_ms) == ("direct", 5001), "rounded up"
    assert (sequence.min_slot_utilization, sequence.max_queue_delay_ms) == (0.5, 2)
    assert sequence.controls[0].name == "START"
    assert sequence.controls[0].control[0].int32_false_true == (0, 1)
    assert sequence.state[0].dims == (2, -1)
    assert sequence.state[0].initial_state[0].dims == (2, 1)


def test_an_oldest_sequence_batcher():
    settings = settings_of(
        """sequence_batching { oldest { max_candidate_sequences: 4 preferred_batch_size: [2, 4]
             max_queue_delay_microseconds: 1000 preserve_ordering: true } }"""
    )
    sequence = settings.sequence
    assert (sequence.strategy, sequence.max_candidates) == ("oldest", 4)
    assert sequence.preferred_batch_sizes == (2, 4)
    assert (sequence.max_queue_delay_ms, sequence.preserve_ordering) == (1, True)


def test_an_iterative_model():
    settings = settings_of(
        """sequence_batching { iterative_sequence: true oldest {}
             state { input_name: "i" output_name: "o" data_type: TYPE_INT32 dims: [1] } }"""
    )
    assert settings.batching == "iterative"
    assert settings.sequence.state[0].input_name == "i"


def test_a_dynamic_batcher():
    settings = settings_of(
        """dynamic_batching {
             preferred_batch_size: [4, 8] max_queue_delay_microseconds: 1000
             priority_levels: 18446744073709551615 default_priority_level: 4294967296
             default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 500
               allow_timeout_override: true max_queue_size: 9 }
             priority_queue_policy { key: 2 value { max_queue_size: 3 } } }"""
    )
    batching = settings.dynamic_batching
    assert (settings.batching, settings.batch_size) == ("dynamic", 8)
    assert batching.preferred_batch_size == (4, 8)
    assert batching.max_queue_delay_microseconds == 1000
    levels = batching.priority_levels, batching.default_priority_level
    assert levels == (2**63 - 1, 2**32)
    policy = batching.policy_of(1)
    assert (policy.timeout_action, policy.default_timeout_microseconds) == ("delay", 500)
    assert (policy.allow_timeout_override, policy.max_queue_size) == (True, 9)
    assert batching.policy_of(2).max_queue_size == 3


def test_a_plain_dynamic_batcher_prefers_full_batches():
    assert settings_of("dynamic_batching {}").dynamic_batching.preferred_batch_size == (8,)


BOUNDS = """
model_metrics {
  metric_control {
    metric_identifier { family: "nv_inference_first_response_histogram_ms" }
    histogram_options { buckets: [ 20, 5 ] }
  }
  metric_control { metric_identifier { family: "x" } histogram_options { buckets: [ 1 ] } }
}
"""


def test_a_histogram_has_bounds_of_the_models_own(caplog):
    assert metrics_settings(config_of(BOUNDS)) == {"first_response_buckets_ms": [5, 20]}
    assert "'x' in 'metric_identifier'" in caplog.text
    assert metrics_settings(config_of("")) == {}
