"""JPEG: a picture as a file of a form, decoded, resized and classified by one Op."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2

from benchmarks.services.common import serve
from benchmarks.services.picture_model import best, decoded, write_model
from pipeline import Op, RequestOp


class Classify(Op):
    """Feeds the model a picture, and answers with the class that scores most."""

    def init_op(self) -> None:
        cv2.setNumThreads(1)

    def preprocess(self, input_dicts: Any) -> Any:
        (request,) = input_dicts.values()
        return {"x": decoded(request["image"])}

    def postprocess(self, input_dicts: Any, fetch_dict: Any) -> Any:
        return best(fetch_dict["scores"][0])


if __name__ == "__main__":
    with TemporaryDirectory(dir=os.environ.get("SERVING_HOME")) as folder:
        path = Path(folder, "pictures.onnx")
        write_model(path)
        model = {"model_config": str(path), "client_type": "local_predictor", "thread_num": 1}
        settings = {
            "concurrency": os.cpu_count(),
            "batch_size": 32,
            "local_service_conf": model,
        }
        serve("jpeg", Classify(name="classify", input_ops=[RequestOp()]), {"classify": settings})
