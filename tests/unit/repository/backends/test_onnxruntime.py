"""The backend `onnxruntime`: what it completes a configuration with, and reads from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.predictors.base import ModelMetadata, TensorMetadata
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.onnxruntime import ONNXRUNTIME, completed
from pipeline.repository.model_checks import check_tensors


def note(x: list[int] | None, y: list[int] | None) -> ModelMetadata:
    tensors = [TensorMetadata(name, "float32", shape) for name, shape in (("x", x), ("y", y))]
    return ModelMetadata("onnx", tensors[:1], tensors[1:])


@pytest.mark.parametrize(
    ("x", "y", "most", "dims"),
    [
        ([], [3], 0, ([1], [3])),
        ([2], [], 0, ([2], [1])),
        ([-1], [-1, 3], 4, ([1], [3])),
        ([-1, 2], [], 0, ([-1, 2], [1])),
    ],
)
def test_a_scalar_has_the_dims_of_one(x: list[int], y: list[int], most: int, dims: Any) -> None:
    config = completed(ModelConfig(name="m"), note(x, y))
    check_tensors(config)
    assert config.max_batch_size == most
    assert ([*config.input[0].dims], [*config.output[0].dims]) == dims


def test_an_unknown_rank_must_be_configured() -> None:
    with pytest.raises(ConfigError, match="does not say how many dimensions 'y' has: give its dim"):
        completed(ModelConfig(name="m"), note([1], None))
    config = ModelConfig(name="m")
    config.output.add(name="y", dims=[2])
    assert [*completed(config, note([1], None)).output[0].dims] == [2]


def test_a_batch_that_the_file_has_not_is_refused() -> None:
    config = ModelConfig(name="m", max_batch_size=1)
    with pytest.raises(ConfigError, match="'m': model does not support batching while non-zero"):
        completed(config, note([16], [-1, 3]))


@pytest.mark.parametrize(("word", "taken"), [("true", True), ("false", None)])
def test_takes_empty_is_read_from_the_configuration(word: str, taken: bool | None) -> None:
    assert _settings(word).get("takes_empty") is taken
    with pytest.raises(ConfigError, match="takes_empty: expected true or false, found 'yes'"):
        _settings("yes")


def _settings(word: str) -> dict[str, Any]:
    config = ModelConfig(name="m")
    config.parameters["takes_empty"].string_value = word
    source: Any = type("Source", (), {"config": config, "file": Path("m.onnx"), "name": "m"})
    setting: dict[str, Any] = ONNXRUNTIME.settings(source)["local_service_conf"]
    return setting
