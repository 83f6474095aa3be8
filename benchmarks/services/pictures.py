"""A service that answers with the picture of its request: as bytes, or as base64 in JSON."""

from __future__ import annotations

import base64
from typing import Any

from benchmarks.services.common import serve
from pipeline import Op, RequestOp


class Pictures(Op):
    """Answers with the picture's bytes, in the form of the request."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, input_dict),) = input_dicts.items()
        image = input_dict["image"]
        if isinstance(image, str):
            return {"image": base64.b64decode(image)}, False, None, ""
        return {"image": image, "content_type": "image/png"}, False, None, ""


if __name__ == "__main__":
    serve("pictures", Pictures(name="pictures_op", input_ops=[RequestOp()]))
