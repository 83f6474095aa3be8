"""A peer: LitServe, with batches, a worker a core, and the queue that it calls the fast one."""

# ruff: noqa: E402 - the peers are imported from the folder that use_peers adds

from __future__ import annotations

import os
from typing import Any

import numpy as np

from benchmarks.services.installed import use_peers
from benchmarks.services.peer_models import Jpegs, Reviews
from benchmarks.services.ports import HTTP_PORT

use_peers()
import litserve as ls


class JpegAPI(ls.LitAPI):  # type: ignore[misc]
    """Classifies the file `image` of a form."""

    def setup(self, device: str) -> None:
        self.model = Jpegs()

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # types would be models
        return self.model.read(request["image"].file.read())

    def batch(self, inputs: list[Any]) -> Any:
        return np.concatenate(inputs)

    def predict(self, x: Any) -> list[dict[str, Any]]:
        return self.model.answers(x)

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return output

    def encode_response(self, output):  # type: ignore[no-untyped-def]  # types would be models
        return output


class ReviewAPI(JpegAPI):
    """Scores the text `words` of an object."""

    def setup(self, device: str) -> None:
        self.model = Reviews()  # type: ignore[assignment]

    def decode_request(self, request):  # type: ignore[no-untyped-def]
        return self.model.read(request["words"])


def serve(name: str) -> None:
    """Serve one of them."""
    api = (JpegAPI if name == "jpeg" else ReviewAPI)(max_batch_size=32, batch_timeout=0.005)
    server = ls.LitServer(
        api, accelerator="cpu", workers_per_device=os.cpu_count(), fast_queue=True
    )
    server.run(host="127.0.0.1", port=HTTP_PORT, generate_client_file=False, log_level="warning")
