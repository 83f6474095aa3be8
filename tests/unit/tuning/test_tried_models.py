"""Models whose settings are tried: what may be, what a configuration becomes, what is measured."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.tuning.load import LoadRequest
from pipeline.tuning.settings import OpMeasurement, OpSettings
from pipeline.tuning.tried_models import advised_files, asked_models, changed, measured, tried_op


def config(text):
    return text_format.Parse(text, ModelConfig())


def asks(path):
    return LoadRequest(path, b"{}")


def test_the_models_of_a_load_are_derived_from_its_paths():
    paths = ("/v2/models/a/infer", "/a/prediction", "/v2/models/b/versions/2/generate")
    assert asked_models([asks(path) for path in (*paths, *paths)]) == ["a", "b"]
    with pytest.raises(ConfigError, match="no request"):
        asked_models([asks("/v2/models/a/ready")])


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("sequence_batching {}", "sequences"),
        ("model_transaction_policy { decoupled: true }", "parts"),
        ("instance_group [ { count: 1 }, { count: 2 } ]", "groups"),
    ],
)
def test_an_unsupported_model_is_held(text, held):
    assert held in tried_op(config(text)).held


def test_the_settings_of_a_model_are_read():
    alone = tried_op(config('name: "m" backend: "python" max_batch_size: 8'))
    assert (alone.concurrency, alone.batch_size, alone.in_processes) == (1, 1, True)
    assert (alone.takes_batches, alone.held) == (True, "")
    gathered = tried_op(
        config(
            "max_batch_size: 8 instance_group [ { count: 3 } ] "
            "dynamic_batching { max_queue_delay_microseconds: 2500 }"
        )
    )
    assert (gathered.concurrency, gathered.batch_size, gathered.delay_ms) == (3, 8, 2.5)
    assert not tried_op(config("max_batch_size: 0")).takes_batches


def test_settings_change_only_their_keys():
    before = config(
        "max_batch_size: 8 version_policy { all {} } "
        "instance_group [ { kind: KIND_CPU count: 1 } ] "
        "dynamic_batching { preferred_batch_size: [2, 4] preserve_ordering: true }"
    )
    larger = changed(before, OpSettings(4, 16, 2.0))
    assert larger == config(
        "max_batch_size: 16 version_policy { all {} } "
        "instance_group [ { kind: KIND_CPU count: 4 } ]"
        " dynamic_batching { preferred_batch_size: [16] max_queue_delay_microseconds: 2000"
        " preserve_ordering: true }"
    )
    assert changed(before, OpSettings(1, 4)).max_batch_size == 8, "callers may send as much"
    assert not changed(before, OpSettings(1, 1)).HasField("dynamic_batching")
    assert changed(config(""), OpSettings(2, 1)).instance_group[0].count == 2
    assert before.max_batch_size == 8


def counted(success, **batches):
    def batch(size, count, ns):
        spent = {"count": count, "ns": ns // 2}
        nothing = {"count": count, "ns": 0}
        return {
            "batch_size": int(size[1:]),
            "compute_input": nothing,
            "compute_infer": spent,
            "compute_output": spent,
        }

    return {
        "inference_stats": {"success": {"count": success}},
        "batch_stats": [batch(size, *each) for size, each in batches.items()],
    }


def test_a_measurement_is_the_difference_of_statistics():
    before = counted(10, s1=(10, 10_000_000))
    after = counted(110, s1=(20, 30_000_000), s4=(20, 200_000_000))
    result = measured(before, after, 50, 2.0)
    assert result == OpMeasurement(2.0, 0.11, ((1.0, 2.0, 10.0), (4.0, 10.0, 20.0)))


def test_unchanged_models_are_not_written(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.pbtxt").write_text('backend: "python" max_batch_size: 4')
    configs = {name: config(f'name: "{name}" max_batch_size: 4') for name in ("a", "b")}
    same, before, best = OpSettings(1, 1), OpSettings(1, 1), OpSettings(2, 4)
    files = advised_files([tmp_path], configs, (same, before), (same, best))
    assert list(files) == ["b/config.pbtxt"]
    result = config(files["b/config.pbtxt"])
    assert (result.backend, result.instance_group[0].count, result.name) == ("python", 2, "")
