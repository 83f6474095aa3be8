"""Models of the v2 protocol over the double of an engine, and Ops to ask."""

from __future__ import annotations

from contextlib import asynccontextmanager

import numpy as np
import pytest
from doubles import Engine, in_place_of, run_virtual

from pipeline import Op, RequestOp, ResponseOp
from pipeline.config.schema import load_config
from pipeline.data import Tensor
from pipeline.engine.graph import build_graph
from pipeline.engine.models import ALL_CHECKS, ModelRegistry
from pipeline.frontends.v2 import ModelRepository, V2Error
from pipeline.frontends.v2.inference import CallerInfo
from pipeline.observe.snapshot import ModelCounters, Snapshot
from pipeline.observe.statistics import model_names
from pipeline.proto.v2.codec import InferRequest, RequestedOutput


class Double(Op):
    """`y` is twice `x`."""

    input_tensors = (Tensor("x", "FP32", (-1,)),)
    output_tensors = (Tensor("y", "FP32", (-1,)),)

    def preprocess(self, input_dicts, data_id, log_id):
        (answer,) = input_dicts.values()
        with np.errstate(all="ignore"):  # of any bytes that come
            return {"x": answer["x"] * 2}, False, None, ""

    def postprocess(self, input_dicts, fetched, data_id, log_id):
        return {"y": fetched["x"]}, None, ""


class Adds(Op):
    """Writes into the array that it gets."""

    input_tensors = (Tensor("x", "FP32", (-1,)),)

    def preprocess(self, input_dicts, data_id, log_id):
        (answer,) = input_dicts.values()
        answer["x"] += 1
        return {"y": answer["x"]}, False, None, ""


class ServedDouble:
    """The graph of a Server, whose engine is loaded and unloaded by the test."""

    def __init__(self, server, graph, name, config):
        self.engine = server.engine.executor
        self.graph = graph
        self.config = load_config(yml_dict={"rpc_port": 0, **config})
        self.names = model_names(name, [op.name for op in graph.ops])
        self.version = "1"
        self.model_config = None
        self.labels = {}
        self.output_checks = ALL_CHECKS
        self.snapshots = server.whole


class Server:
    """Models over a double's engine."""

    def __init__(self, last, name="svc", response_op=None, has_statistics=True, **config):
        response_op = response_op or ResponseOp(last)
        self.engine = Engine(last, config, response_op=response_op)
        self.snapshots = None
        self.registry = ModelRegistry()
        self.registry.add(ServedDouble(self, build_graph(response_op), name, config))
        self.models = ModelRepository(self.registry, has_statistics)

    async def whole(self):
        if self.snapshots is not None:
            return self.snapshots
        counters = [ModelCounters("svc", success_count=2), ModelCounters("double")]
        return [Snapshot(0, self.engine.executor.state(), counters)]

    async def infer(self, model="svc", *, outputs=(), version="", **more):
        inputs = {name: more.pop(name) for name in list(more) if isinstance(more[name], np.ndarray)}
        wanted = [RequestedOutput(name) for name in outputs]
        timeout_s = more.pop("timeout_s", None)
        request = InferRequest(model, version, inputs=inputs, outputs=wanted, **more)
        return await self.models.inference.infer(request, CallerInfo(timeout_s))

    async def refused(self, *args, **more):
        with pytest.raises(V2Error) as caught:
            await self.infer(*args, **more)
        return caught.value.kind, str(caught.value)


@asynccontextmanager
async def running(last, **more):
    server = Server(last, **more)
    async with server.engine:
        yield server


def served(last, test, **more):
    """Run `test(server)` while a server of `last` runs."""

    async def main():
        async with running(last, **more) as server:
            return await test(server)

    return run_virtual(main())


def shown(view, name, make=None, **more):
    """Run an async test while a server of `make()` runs; its parameter `name` is `view(server)`."""

    def decorate(test):
        def run(**fixtures):
            async def ask(server):
                await test(**{name: view(server)}, **fixtures)

            served((make or double)(), ask, **more)

        return in_place_of(test, run, name)

    return decorate


def bytes_of(*elements):
    array = np.empty(len(elements), object)
    array[:] = [e.encode() for e in elements]
    return array


def floats(*values):
    return np.array(values, np.float32)


def double():
    return Double("double", RequestOp())
