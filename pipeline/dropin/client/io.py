"""`paddle_serving_client.io` and `.convert`: models run without conversion."""

from typing import Any

from pipeline.dropin.stubs import stub

_ADVICE = (
    "name the folder of the inference model (.pdmodel or .json, and .pdiparams; or .onnx) as "
    "model_config; to write a serving_server folder use Paddle Serving's own tool"
)

inference_model_to_serving: Any = stub("inference_model_to_serving", __name__, _ADVICE)
save_model: Any = stub("save_model", __name__, _ADVICE)

__all__ = ["inference_model_to_serving", "save_model"]

if __name__ == "__main__":
    raise SystemExit(f"there is no converter here: {_ADVICE}")
