"""The benchmark of large payloads: its models, and which service is compared with which."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format

from benchmarks.pictures import rows, targets, with_before, write_models
from pipeline.proto.inference_v2_pb2 import ModelConfig

SIDES = {"here": ("repository", "models"), "Triton": ("triton", "models")}


def test_its_models_are_there_with_and_without_batching(tmp_path):
    write_models(tmp_path, ".")
    batched = {
        folder.name
        for folder in tmp_path.iterdir()
        if text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig()).HasField(
            "dynamic_batching"
        )
    }
    assert batched == {"looks_batched", "echo_batched", "waits_batched"}
    for path in tmp_path.glob("*/1/model.py"):
        compile(path.read_text(), path, "exec")


def test_targets_refer_to_the_row_and_the_other_side():
    groups = [with_before(group, Path("tree")) for group in rows(SIDES)]
    limits = {
        (target.case, str(target.base).rpartition(", ")[2]): target.at_least
        for target in targets(groups, 16)
        if target.figure == "per_s"
    }
    assert limits["looks, v2 HTTP, 150 KB", "Triton"] == 1.2
    assert limits["looks, v2 gRPC, 1 MiB", "Triton"] == 1.0
    assert limits["own wire, gateway, 150 KB", "before"] == 2.5
    assert limits["/api, 100 KB, process", "before"] == 2.0
    assert limits["gateway, looks, v2 HTTP, 1 MiB", "embedded"] == 1.5
    assert ("gateway, looks, v2 HTTP, 1 MiB", "before") not in limits


def test_a_target_names_as_many_clients_as_ask():
    groups = list(rows(SIDES))
    clients = {(case.name, (case.clients or (16,))[0]) for group in groups for case in group}
    assert {(target.case, target.clients) for target in targets(groups, 16)} <= clients
