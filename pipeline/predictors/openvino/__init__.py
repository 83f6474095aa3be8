"""ONNX models and OpenVINO's own, which OpenVINO runs on the CPU."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from pipeline.predictors.base import LocalModel, PredictorEngine, TakesEmpty


class OpenVinoModel(LocalModel, frozen=True):
    """A model for OpenVINO."""

    takes_empty: TakesEmpty = False
    precision: Annotated[
        Literal["fp32", "bf16"], "OpenVINO on the CPU: fp32 or bf16; for int8 quantise the model."
    ] = "fp32"
    streams: Annotated[
        int,
        Meta(ge=1),
        "OpenVINO: number of runs at the same time, each with thread_num threads.",
    ] = 1


# Not imported before the fork, because OpenVINO starts threads at its import.
ENGINE = PredictorEngine(
    "pipeline.predictors.openvino.predictor",
    (".xml",),
    companion=".bin",
    if_named=(".onnx",),
    Options=OpenVinoModel,
)
