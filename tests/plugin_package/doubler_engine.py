"""An engine of a plug-in: its models, files that end in .toy, double their input x.

The entry point of the group `pipeline.engines` names ENGINE. config.yml then has its options
beside its name: `local_service_conf: {model_config: m.toy, engine: doubler, times: 2}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from pipeline.predictors.base import Device, LocalModel, PredictorEngine


class DoublerModel(LocalModel, frozen=True):
    """A model of this engine: what all have, such as `model_path`, and its own key."""

    times: Annotated[int, Meta(ge=1), "How often the input is doubled."] = 1


class DoublerPredictor:
    """Doubles x, and calls it y; see `pipeline.predictors.base.Predictor`."""

    feed_names = ("x",)
    fetch_names = ("y",)

    def __init__(self, model: DoublerModel) -> None:
        self._factor = 2**model.times

    def predict(
        self,
        feed: Any,
        fetch: Sequence[str] | None = None,
        batch: bool = True,
        log_id: int = 0,
        *,
        deadline_s: float | None = None,
        **legacy: Any,
    ) -> dict[str, np.ndarray]:
        """Return twice the input, as often as the model says."""
        return {"y": np.asarray(feed["x"]) * self._factor}

    def close(self) -> None:
        """Let go of the model."""


def load(model: DoublerModel, device: Device) -> DoublerPredictor:
    """Load a model; called where the Op's worker runs, once for each worker."""
    return DoublerPredictor(model)


ENGINE = PredictorEngine("doubler_engine", (".toy",), Options=DoublerModel)
