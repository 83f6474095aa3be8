"""A client type of a plug-in: its servers add to x, or would if there were any.

The entry point of the group `pipeline.clients` names Adder. config.yml then has its options
beside its name: `op: {sum: {client_type: adder, server_endpoints: [...], amount: 5}}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from pipeline.predictors.remote.base import RemoteModel


class AdderModel(RemoteModel, frozen=True, kw_only=True):
    """A model behind this client: what all have, such as `endpoints`, and its own key."""

    amount: Annotated[float, "The number to add."]


class Adder:
    """Adds an amount to x, and calls it y; see `pipeline.predictors.base.Predictor`."""

    Options = AdderModel
    feed_names = ("x",)
    fetch_names = ("y",)

    def __init__(self, model: AdderModel) -> None:
        self._model = model

    def predict(
        self,
        feed: Any,
        fetch: Sequence[str] | None = None,
        batch: bool = True,
        log_id: int = 0,
        *,
        deadline_s: float | None = None,
        **legacy: Any,
    ) -> dict[str, Any]:
        """Return the sum, and which servers would have been asked."""
        return {"y": np.asarray(feed["x"]) + self._model.amount, "of": self._model.endpoints}

    def close(self) -> None:
        """Let go of the connections."""
