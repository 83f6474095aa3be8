"""What a configuration does not say is filled in as Triton does it."""

from __future__ import annotations

import pytest

from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import ModelConfig, ModelInstanceGroup
from pipeline.repository.model_config import parse_text
from pipeline.repository.model_defaults import fill_in


def filled(text="", name="m", files=(), cards=()) -> ModelConfig:
    config = parse_text(text.encode(), "config.pbtxt")
    fill_in(config, name, files, cards)
    return config


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ("", ["model.onnx"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", ["model.py"], ("python", "", "model.py")),
        ("", ["web_server.py"], ("pipeline", "", "web_server.py")),
        ("", ["model.plan"], ("tensorrt", "tensorrt_plan", "model.plan")),
        ('backend: "onnxruntime"', [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('platform: "onnxruntime_onnx"', [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('platform: "onnxruntime"', [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('default_model_filename: "model.py"', [], ("python", "", "model.py")),
        ('backend: "identity"', [], ("identity", "", "")),
        ('backend: "python" default_model_filename: "a.py"', [], ("python", "", "a.py")),
        ('platform: "nonsense"', ["model.onnx"], ("", "nonsense", "")),
        ('platform: "ensemble"', [], ("", "ensemble", "")),
    ],
)
def test_the_backend_is_derived_from_the_files(text, files, expected):
    config = filled(text, files=files)
    assert (config.backend, config.platform, config.default_model_filename) == expected


@pytest.mark.parametrize("files", [[], ["model.identity"]])
def test_the_name_of_a_folder_may_name_the_backend(files):
    config = filled(name="model.identity", files=files)
    assert (config.name, config.backend) == ("model.identity", "identity")
    assert config.default_model_filename == "model.identity"


def test_a_model_without_a_known_backend_is_refused():
    with pytest.raises(ConfigError, match="Could not determine backend for model 'm'"):
        filled()


def test_versions_batches_and_memory_have_defaults():
    config = filled('backend: "python" max_batch_size: 4 dynamic_batching { }')
    assert config.version_policy.latest.num_versions == 1
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    assert config.optimization.input_pinned_memory.enable
    assert config.optimization.output_pinned_memory.enable


def test_sequences_have_defaults():
    config = filled('backend: "python" max_batch_size: 4 sequence_batching { oldest { } }')
    batching = config.sequence_batching
    assert batching.max_sequence_idle_microseconds == 1_000_000
    assert list(batching.oldest.preferred_batch_size) == [4]


def test_an_ensemble_has_neither_instances_nor_memory():
    config = filled('platform: "ensemble"')
    assert not config.instance_group
    assert not config.HasField("optimization")


@pytest.mark.parametrize(
    ("text", "cards", "expected"),
    [
        ('backend: "python"', [], [("m", "KIND_CPU", 1, [])]),
        ('backend: "onnxruntime"', [], [("m", "KIND_CPU", 2, [])]),
        ('backend: "python" instance_group { count: 3 }', [], [("m_0", "KIND_CPU", 3, [])]),
        ('backend: "python" instance_group { gpus: 5 }', [0], [("m_0", "KIND_CPU", 1, [5])]),
        ('backend: "python" instance_group { }', [1, 0], [("m_0", "KIND_GPU", 1, [0, 1])]),
        (
            'backend: "python" instance_group [{ name: "a" }, { kind: KIND_MODEL }]',
            [],
            [("a", "KIND_CPU", 1, []), ("m_1", "KIND_MODEL", 1, [])],
        ),
    ],
)
def test_instances_are_named_and_counted(text, cards, expected):
    kind = ModelInstanceGroup.Kind.Name
    instance_group = filled(text, cards=cards).instance_group
    assert [(g.name, kind(g.kind), g.count, list(g.gpus)) for g in instance_group] == expected
