"""ONNX models, which onnxruntime runs."""

from pipeline.predictors.base import AcceleratedModel, PredictorEngine

ENGINE = PredictorEngine("pipeline.predictors.onnx.predictor", (".onnx",), Options=AcceleratedModel)
