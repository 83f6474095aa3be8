"""RepositoryHost: what models are told of other models."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pipeline.engine.model_calls import ModelChange
from pipeline.errors import NoServiceError
from pipeline.frontends.v2.control import IndexedModel
from pipeline.observe.custom_metrics import CustomMetrics
from pipeline.repository.model_host import RepositoryHost


class Gone:
    """Models, and a control, of which none can be asked any more."""

    def is_ready(self, name: str, version: int) -> bool:
        raise NoServiceError(f"Request for unknown model: '{name}' is not found")

    async def index(self) -> list[IndexedModel]:
        was = IndexedModel("was", "1", "UNAVAILABLE", "unloaded")
        return [was, IndexedModel("never")]


def is_ready(name: str) -> bool:
    host = RepositoryHost(cast(Any, Gone()), cast(Any, Gone()), CustomMetrics())
    return asyncio.run(host.change(ModelChange(name, "is_ready")))


def test_a_model_that_was_unloaded_is_not_ready() -> None:
    assert is_ready("was") is False


@pytest.mark.parametrize("name", ["never", "nowhere"])
def test_of_a_model_that_was_never_loaded_nothing_is_known(name: str) -> None:
    with pytest.raises(NoServiceError, match="is not found"):
        is_ready(name)
