"""A model repository without folders: models on a virtual clock, and ensembles of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import doubles
import numpy as np

from pipeline import Op, RequestOp, ResponseOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.data import NO_INFO, ChannelData, RequestInfo
from pipeline.engine.engine import Engine
from pipeline.engine.graph import build_graph
from pipeline.engine.journal.journal import EngineObservers, Journal
from pipeline.engine.request import AnswerFuture, RequestState, RequestTarget, StreamSink
from pipeline.engine.worker_api import WorkerContext
from pipeline.errors import NoServiceError
from pipeline.op import configure_op
from pipeline.proto.inference_v2_pb2 import TYPE_FP32, ModelConfig
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.repository.ensembles import ensemble_graph
from pipeline.workers.model import ModelKind

Tensors = Mapping[str, Sequence[int]]


def config_of(
    name: str, inputs: Tensors, outputs: Tensors, batch: int = 0, parts: bool = False
) -> ModelConfig:
    """The configuration of a model with these tensors of FP32."""
    config = ModelConfig(name=name, max_batch_size=batch)
    for slots, tensors in ((config.input, inputs), (config.output, outputs)):
        for each, dims in tensors.items():
            is_optional = each.startswith("optional")
            slots.add(name=each, data_type=TYPE_FP32, dims=dims)
            if is_optional and slots is config.input:
                slots[-1].optional = True
    config.model_transaction_policy.decoupled = parts
    return config


def ensemble_of(
    name: str,
    inputs: Tensors,
    outputs: Tensors,
    *steps: tuple[str, Mapping[str, str], Mapping[str, str]],
    batch: int = 0,
    most: int = 0,
) -> ModelConfig:
    """The configuration of an ensemble of steps (model, its inputs, its outputs)."""
    config = config_of(name, inputs, outputs, batch)
    config.ClearField("model_transaction_policy")
    config.platform = "ensemble"
    scheduling = config.ensemble_scheduling
    scheduling.max_inflight_requests = most
    for model, takes, gives in steps:
        scheduling.step.add(
            model_name=model, model_version=-1, input_map=dict(takes), output_map=dict(gives)
        )
    return config


class Calling(Op):
    """A model that is the last of its `calls`; `seen` has the inputs of each."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        super().__init__(name, RequestOp())
        self.calls: list[Callable[..., Any]] = [function]
        self.seen: list[dict[str, Any]] = []
        self.told: list[RequestInfo] = []

    def process(self, feed_batch, log_id=0, *, context=()):
        (feed,) = feed_batch
        self.seen.append(feed)
        self.told += context
        return self.calls[-1](**feed)


class Dripping(Calling):
    """A model that answers in the parts that its function yields."""

    def process(self, feed_batch, log_id=0, *, context=()):
        (feed,) = feed_batch
        self.seen.append(feed)
        self.told += context
        yield from self.calls[-1](**feed)


class Parts(StreamSink):
    """A sink of parts, which are taken as they come unless `holds`."""

    def __init__(self, holds: bool = False) -> None:
        self.holds = holds
        self.parts: list[ChannelData] = []
        self.ends: list[Any] = []
        self.request: RequestState | None = None

    def add(self, answers: Sequence[Any]) -> None:
        self.parts += answers
        if not self.holds and self.request is not None:
            self.request.took_part(len(answers))

    def end(self, answer: Any) -> None:
        self.ends.append(answer)


class Shelf:
    """Models and ensembles by name, each with an engine of its own; see `ServedModels`."""

    def __init__(self, clock_ns: Callable[[], int] | None = None) -> None:
        self._clock_ns = clock_ns
        self.configs: dict[str, ModelConfig] = {}
        self.engines: dict[str, Engine] = {}
        self.ops: dict[str, Calling | None] = {}
        self.pools: dict[str, doubles.ScriptedWorkers] = {}
        self.spans: list[dict[str, Any]] = []
        self.requests: dict[str, list[dict[str, Any]]] = {}
        self.journals: dict[str, Journal] = {}
        self._service_s: dict[str, float | None] = {}

    # What a repository is asked -----------------------------------------------------------------

    def config(self, name: str, version: int) -> ModelConfig:
        if name not in self.configs:
            raise NoServiceError(f"Request for unknown model: '{name}' is not found")
        return self.configs[name]

    def begin(
        self,
        name: str,
        version: int,
        feeds: dict[str, Any],
        info: RequestInfo,
        traceparent: str,
        sink: Any,
        *,
        collector: Any = None,
        convoy: Any = None,
        ready_ns: int = 0,
    ) -> RequestState:
        config, op = self.config(name, version), self.ops[name]
        first = next(iter(feeds.values()), None)
        rows = len(first) if config.max_batch_size and first is not None else 1
        target = RequestTarget(
            op,
            feeds,
            raw_inputs=op is not None,
            wants_response=False,
            rows=rows,
            traceparent=traceparent,
            info=info,
            convoy=convoy,
            ready_ns=ready_ns,
        )
        return self.engines[name].begin(Request(), None, target, sink)

    def convoy_size(self, name: str, version: int, rows: int) -> int:
        return self.engines[name].executor.convoys.size(rows) if name in self.engines else 0

    # The calls of tests -------------------------------------------------------------------------

    async def add(
        self,
        config: ModelConfig,
        function: Callable[..., Any],
        service_s: float | None = 0.0,
        kind: type[Calling] | None = None,
        **settings: Any,
    ) -> Calling:
        """Add a model that is a function; it takes `service_s`, None: until it is released."""
        parts = config.model_transaction_policy.decoupled
        op = (kind or (Dripping if parts else Calling))(config.name, function)
        self.ops[config.name], self._service_s[config.name] = op, service_s
        await self._serve(config, op, settings)
        return op

    async def add_ensemble(self, config: ModelConfig) -> Engine:
        """Add an ensemble of models that are there."""
        self.ops[config.name] = None
        return await self._serve(config, ensemble_graph(config, self).last_op, {})

    async def _serve(self, config: ModelConfig, last: Op, settings: dict[str, Any]) -> Engine:
        readers = [each for each in last.pipeline_consumers if isinstance(each, ResponseOp)]
        graph = build_graph(readers[0] if readers else ResponseOp(last))
        service = load_config(yml_dict={"rpc_port": 0, "op": {config.name: settings}})
        for op in (graph.request_op, *graph.ops, graph.response_op):
            configure_op(op, resolve_op(op.name, op.pipeline_given, service))
        self.configs[config.name] = config
        loop = asyncio.get_running_loop()
        kind = ModelKind([], WorkerContext(service, lambda op, number: None))

        def make_workers(pump: Callable[[], None]) -> Any:
            kind.attach(loop, pump)

            def make(op: Op, owner: Any) -> Any:
                if op.pipeline_config.workers == "model":
                    return kind.workers(op, op.pipeline_config.concurrency, owner)
                pool = doubles.ScriptedWorkers(op, owner, self._service_s.get(op.name, 0.0))
                self.pools[op.name] = pool
                return pool

            return make

        found = self.requests[config.name] = []
        journal = self.journals[config.name] = Journal([_Rows(config.name, self.spans, found)])
        clock_ns = self._clock_ns or (lambda: int(loop.time() * 1e9))
        observers = EngineObservers(journal, clock_ns=clock_ns)
        engine = self.engines[config.name] = Engine(graph, service, make_workers, loop, observers)
        await engine.start()
        return engine

    def ask(
        self,
        name: str,
        info: RequestInfo = NO_INFO,
        sink: Any = None,
        convoy: Any = None,
        **tensors: Any,
    ) -> Any:
        """Ask a model, with lists of numbers: a future of its ChannelData, or the sink."""
        feeds = {key: np.array(value, np.float32) for key, value in tensors.items()}
        answer = sink or AnswerFuture(loop=asyncio.get_running_loop())
        answer.request = self.begin(name, -1, feeds, info, "", answer, convoy=convoy)
        return answer

    async def answer(self, name: str, info: RequestInfo = NO_INFO, **tensors: Any) -> Any:
        """The tensors of a model's answer, as lists."""
        data = await self.ask(name, info, **tensors)
        assert data.error is None, data.error
        return {key: value.tolist() for key, value in data.payload.items()}

    async def error(self, name: str, info: RequestInfo = NO_INFO, **tensors: Any) -> Any:
        """The error that a model answers with."""
        return (await self.ask(name, info, **tensors)).error

    async def close(self) -> None:
        for engine in self.engines.values():
            await engine.stop(0.0)


class _Rows:
    def __init__(self, model: str, *kept: list[dict[str, Any]]) -> None:
        self._model = {"model": model}
        self._kept = kept

    def notify(self, *rows: Any) -> None:
        for found, kept in zip(rows, self._kept, strict=True):
            kept += [
                self._model | dict(zip(found.dtype.names, row, strict=True))
                for row in found.tolist()
            ]
