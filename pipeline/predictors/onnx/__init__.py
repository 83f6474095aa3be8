"""ONNX models, which onnxruntime runs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from pipeline.predictors.base import AcceleratedModel, PredictorEngine


class OnnxModel(AcceleratedModel, frozen=True):
    """A model for onnxruntime."""

    pad_rows: Annotated[
        int,
        Meta(ge=0),
        "ONNX: pad each batch with zeros to this number of rows, for GPUs, which are slow with "
        "changing sizes; 0: off.",
    ] = 0


# Not imported before the fork, because onnxruntime 1.32 then starts a thread. The import costs
# each worker 0.3 s.
ENGINE = PredictorEngine("pipeline.predictors.onnx.predictor", (".onnx",), Options=OnnxModel)
