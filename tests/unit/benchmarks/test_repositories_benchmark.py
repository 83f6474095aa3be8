"""The benchmark of repositories: what it writes is a repository, and what it tells is a ratio."""

from __future__ import annotations

from google.protobuf import text_format

from benchmarks.repositories import GOALS, row_of, write_models
from pipeline.proto.inference_v2_pb2 import ModelConfig


def test_its_models_are_there_with_and_without_batching(tmp_path):
    write_models(tmp_path, ".")
    configs = {
        folder.name: text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())
        for folder in tmp_path.iterdir()
    }
    assert set(configs) == {
        name + suffix for name in ("one", "a", "b", "c", "ensemble") for suffix in ("", "_batched")
    }
    assert {kind + "_batched" for kind in GOALS} < set(configs)
    assert configs["one_batched"].HasField("dynamic_batching")
    assert not configs["one"].HasField("dynamic_batching")
    steps = configs["ensemble_batched"].ensemble_scheduling.step
    assert [step.model_name for step in steps] == ["a_batched", "b_batched", "c_batched"]


def test_the_median_of_the_ratios_counts():
    ratio, row = row_of("one", [[100, 150], [200, 100], [100, 220]], 2.0)
    assert ratio == 1.5
    assert row == ["one", "100 to 200", "100 to 220", "1.50 (0.50 to 2.20)", "2"]
