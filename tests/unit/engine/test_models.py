"""ModelRegistry: what is added, loaded and unloaded, and that its states are a table."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from doubles import virtual

from pipeline import Op, RequestOp, ResponseOp
from pipeline.engine.graph import build_graph
from pipeline.engine.models import (
    ALL_CHECKS,
    LEGAL_STEPS,
    IllegalStepError,
    ModelEntry,
    ModelRegistry,
    ModelState,
)
from pipeline.errors import ClosedError, ConfigError, InitError
from pipeline.proto.pipeline_service_pb2 import Request


class EngineDouble:
    def __init__(self):
        self.is_ready = True
        self.begun = []

    def begin(self, raw, timeout_s, target, sink):
        self.begun.append((raw.name, timeout_s, target, sink))
        return self


class Served:
    """A graph whose loading and unloading end when the test lets them."""

    config = None

    def __init__(self, name, *op_names):
        last = RequestOp()
        for op_name in op_names or (f"op of {name}",):
            last = Op(op_name, last)
        self.graph = build_graph(ResponseOp(last))
        self.names = name, [op.name for op in self.graph.ops]
        self.version = "1"
        self.model_config = None
        self.labels = {}
        self.output_checks = ALL_CHECKS
        self.engine = EngineDouble()
        self.calls = []
        self.done = asyncio.Event()
        self.failure = None

    async def load(self):
        self.calls.append("load")
        await self.done.wait()
        if self.failure:
            raise self.failure

    async def unload(self, grace_s):
        self.calls.append(("unload", grace_s))
        await self.done.wait()


def states(registry):
    return {entry.name: (entry.state.name, entry.reason) for entry in registry.entries()}


@virtual
async def test_a_graph_and_its_ops_change_their_states_together():
    registry, served = ModelRegistry(), Served("one", "a", "b")
    registry.add(served)
    names = ("one", "a", "b")
    assert states(registry) == dict.fromkeys(names, ("UNAVAILABLE", "not loaded"))
    loading = asyncio.ensure_future(registry.load("one"))
    await asyncio.sleep(0)
    assert states(registry) == dict.fromkeys(names, ("LOADING", ""))
    served.done.set()
    await loading
    assert states(registry) == dict.fromkeys(names, ("READY", ""))
    served.done.clear()
    unloading = asyncio.ensure_future(registry.unload("one", 3.0))
    await asyncio.sleep(0)
    assert states(registry) == dict.fromkeys(names, ("UNLOADING", ""))
    assert registry.graphs() == []
    served.done.set()
    await unloading
    assert states(registry) == dict.fromkeys(names, ("UNAVAILABLE", "unloaded"))
    await registry.load("one")
    assert states(registry) == dict.fromkeys(names, ("READY", ""))
    assert served.calls == ["load", ("unload", 3.0), "load"]


@virtual
async def test_a_model_that_cannot_be_loaded_has_the_reason():
    registry, served = ModelRegistry(), Served("one")
    registry.add(served)
    served.failure = InitError("no model file")
    served.done.set()
    with pytest.raises(InitError):
        await registry.load("one")
    assert set(states(registry).values()) == {("UNAVAILABLE", "no model file")}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(ModelState, repeat=2)))
def test_a_step_is_in_the_table_or_raises(old, new):
    entry = ModelEntry("one", Served("one"))
    entry.state = old
    if new in LEGAL_STEPS[old]:
        entry.advance(new)
        assert entry.state is new
    else:
        with pytest.raises(IllegalStepError, match=f"model 'one' is {old.value}, not {new.value}"):
            entry.advance(new)
        assert entry.state is old


@virtual
async def test_a_loaded_model_cannot_be_loaded_again():
    registry, served = ModelRegistry(), Served("one")
    registry.add(served)
    served.done.set()
    await registry.load("one")
    with pytest.raises(IllegalStepError):
        await registry.load("one")
    assert served.calls == ["load"]


@pytest.mark.parametrize("other", [("one",), ("two", "op of one"), ("op of one", "x")])
def test_a_name_is_there_once(other):
    registry = ModelRegistry()
    registry.add(Served("one"))
    with pytest.raises(ConfigError, match=r"there is a model '(one|op of one)' already"):
        registry.add(Served(*other))
    assert len(registry.entries()) == 2


@virtual
async def test_a_request_runs_in_the_named_graph_or_the_first():
    registry, one, two = ModelRegistry(), Served("one"), Served("two")
    registry.add(one)
    assert registry.begin == one.engine.begin, "with one graph nothing stands in between"
    registry.add(two)
    for served in (one, two):
        served.done.set()
        await registry.load(served.names[0])
    for name in ("two", "one", "", "three"):
        registry.begin(Request(name=name), 1.0, None, "sink")
    assert [name for name, *_ in one.engine.begun] == ["one", "", "three"]
    assert two.engine.begun == [("two", 1.0, None, "sink")]
    begin = registry.begin
    await registry.unload("two", 0.0)
    begin(Request(name="two"), None, None, None)
    assert [name for name, *_ in one.engine.begun][-1] == "two", "who refuses it"
    await registry.unload("one", 0.0)
    with pytest.raises(ClosedError):
        begin(Request(), None, None, None)


@virtual
async def test_all_graphs_that_are_there_have_to_be_ready():
    registry, one, two = ModelRegistry(), Served("one"), Served("two")
    assert not registry.is_ready
    for served in (one, two):
        registry.add(served)
        served.done.set()
        await registry.load(served.names[0])
    assert registry.is_ready
    two.engine.is_ready = False
    assert not registry.is_ready
    await registry.unload("two", 0.0)
    assert registry.is_ready
