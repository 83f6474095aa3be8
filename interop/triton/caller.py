"""Shared by the checks: a client of a server by one of two protocols, and the list of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

DURATIONS = "success fail queue compute_input compute_infer compute_output cache_hit cache_miss"


@dataclass
class Caller:
    """A client of a server, by one of the two protocols."""

    protocol: str
    module: Any
    client: Any
    ports: tuple[int, int]

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return the answer of a client's method, as JSON."""
        more = {"as_json": True} if self.protocol == "grpc" else {}
        return getattr(self.client, method)(*arguments, **more)

    def input(self, name: str, array: np.ndarray, **how: bool) -> Any:
        tensor = self.module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, **how)
        return tensor

    def infer(self, model: str, inputs: dict[str, np.ndarray], *wanted: str, **more: Any) -> Any:
        tensors = [self.input(name, array) for name, array in inputs.items()]
        outputs = [self.module.InferRequestedOutput(name) for name in wanted] or None
        return self.client.infer(model, tensors, outputs=outputs, **more)

    def counters(self, model: str) -> dict[str, int]:
        """Return the counts of one model that requests change."""
        (entry,) = self.ask("get_inference_statistics", model)["model_stats"]
        stats = entry.get("inference_stats", {})
        counts = {name: int(stats.get(name, {}).get("count", 0)) for name in DURATIONS.split()}
        return {**counts, "inferences": int(entry.get("inference_count", 0))}


Check = Callable[[Caller], None]
CHECKS: dict[str, list[tuple[Check, str]]] = {"numbers": [], "echo": [], "parts": [], "imdb": []}


def check(server: str, protocols: tuple[str, ...] = ("http", "grpc")) -> Callable[[Check], Check]:
    """Add a check of one of the servers, for some protocols."""

    def add(function: Check) -> Check:
        CHECKS[server] += [(function, protocol) for protocol in protocols]
        return function

    return add


@contextmanager
def refused(text: str, *statuses: str) -> Iterator[None]:
    """Assert that the block fails with `text`, and with one of the statuses."""
    caught = None
    try:
        yield
    except InferenceServerException as error:
        caught = error
    if caught is None:
        raise AssertionError(f"not refused: {text}")
    assert text in str(caught), f"{text!r} is not in {caught}"
    status = (caught.status() or "").removeprefix("StatusCode.")
    assert not statuses or status in statuses, f"{status} is not one of {statuses}"
