"""A short run of `fuzz.repository`, and proof that it is not blind."""

from __future__ import annotations

import pytest
from fuzz import repository

from pipeline.errors import ConfigError
from pipeline.repository.model_maker import GraphMaker
from pipeline.repository.versions import ModelVersions

_MOST_CASES = 20  # until a defect is found


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(repository, "_CHANGES", 6)


def test_loads_under_requests_cost_no_answer():
    assert repository.run(1) == [], "python -m fuzz.repository --seed 1 --cases 1"


def _versions_end_first(patch):
    load = ModelVersions.load

    async def hasty(self, model):
        self.unload(model.key)
        await load(self, model)

    patch.setattr(ModelVersions, "load", hasty)


def _running_requests_are_dropped(patch):
    async def close(self, served):
        self._grace_s = 0.0
        await right(self, served)

    right = GraphMaker._close
    patch.setattr(GraphMaker, "_close", close)


def _a_failed_load_ends_the_model(patch):
    load = ModelVersions.load

    async def harsh(self, model):
        try:
            await load(self, model)
        except ConfigError:
            self.unload(model.key)
            raise

    patch.setattr(ModelVersions, "load", harsh)


@pytest.mark.parametrize(
    "defect", [_versions_end_first, _running_requests_are_dropped, _a_failed_load_ends_the_model]
)
def test_the_fuzzer_reports_a_restored_defect(monkeypatch, defect):
    defect(monkeypatch)
    assert any(repository.run(seed) for seed in range(1, 1 + _MOST_CASES))
