"""LoadedGraph: one graph in a server, with its workers, its engine and what looks into it."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipeline.config import registry
from pipeline.config.schema import ServiceConfig
from pipeline.engine.engine import Engine
from pipeline.engine.filters import NameCheck, configured
from pipeline.engine.graph import Graph
from pipeline.engine.models import ALL_CHECKS, FIRST_VERSION, ModelNames, OutputChecks
from pipeline.engine.op.cache import ModelCache
from pipeline.engine.op.elastic import Elasticity, resize
from pipeline.engine.op.limiter import open_limits
from pipeline.engine.sequences.filter import reorder_buffers_of
from pipeline.engine.stored_inputs import StoredInputs, check_has_no_schema
from pipeline.engine.worker_api import (
    WorkerContext,
    WorkerKind,
    Workers,
    WorkersBase,
    WorkersFactory,
    WorkersOwner,
)
from pipeline.errors import InitError
from pipeline.observe.logs.remote import LogsHome, replay_bytes
from pipeline.observe.logs.setup import RequestLog, log_folder
from pipeline.observe.snapshot import AskAll
from pipeline.observe.statistics import model_names
from pipeline.op import Op
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.runtime.observation import ObservabilityStack
from pipeline.runtime.predictor_loader import PredictorLoader
from pipeline.runtime.replica_query import Ask, Record, ServerView
from pipeline.runtime.share import Share
from pipeline.system.event_loop import waited
from pipeline.tracing.running import Notes
from pipeline.workers.process.shared import SharedProcesses
from pipeline.workers.thread import ThreadKind

_LOGGER = logging.getLogger(__name__)

_LOOK_S = 0.02  # at the sequences of a server that stops
_EDGE_WORKERS = 4  # threads for an overridden unpack or pack method, unless configured


class RepositoryModel(NamedTuple):
    """The names under which a graph is a model, or its Ops are, and their description.

    `labels` are names of classes, by output.
    """

    names: ModelNames
    version: str
    config: ModelConfig
    labels: Mapping[str, Sequence[bytes]] = {}
    output_checks: OutputChecks = ALL_CHECKS


class GraphPlace(NamedTuple):
    """The place of a graph among those of all processes of a server.

    Its requests have every `id_step`-th number from `first_id` on. It is in `replica`, and `ask`
    puts a question to those of its name in all of them; None: there is but one process. `label` is
    its name in metrics, if there are others; `further` is its name if it is not the first.
    """

    first_id: int = 0
    id_step: int = 1
    replica: int | None = None
    ask: Ask | None = None
    label: str = ""
    further: str = ""


class LoadedGraph:
    """A graph that a server serves under a name; see `engine.models.ServedGraph`.

    Its Ops are configured. Without a name requests for any service are taken. With `model` it is
    one version of a model of a repository, whose workers may come from `processes`. `share` has
    what it has in common with others of the server.
    """

    def __init__(
        self,
        name: str | None,
        graph: Graph,
        config: ServiceConfig,
        load_predictor: PredictorLoader,
        place: GraphPlace | None = None,
        model: RepositoryModel | None = None,
        processes: SharedProcesses | None = None,
        share: Share | None = None,
    ) -> None:
        self.graph: Graph = graph
        self.config: ServiceConfig = config
        self.names: ModelNames = model_names(name, [op.name for op in graph.ops])
        self.version: str = FIRST_VERSION
        self.model_config: ModelConfig | None = None
        self.labels: Mapping[str, Sequence[bytes]] = {}
        self.output_checks: OutputChecks = ALL_CHECKS
        if model is not None:
            self.names, self.version, self.model_config, self.labels = model[:4]
            self.output_checks = model.output_checks
        self._place = place = place or GraphPlace()
        self.observation: ObservabilityStack = ObservabilityStack(
            self.names, graph, config, place.replica, self.version, place.id_step, place.label
        )
        view = ServerView(place.ask or self._ask_only_me)
        self.snapshots: AskAll = view.snapshots
        self.record: Record = view.record
        notes = Notes() if config.notes_requests else None
        if notes is not None:
            notes.trace_of = self.observation.trace_of
        for op in graph.ops:
            op.pipeline_notes = notes
        self._name = name
        is_asked = self.names[0] is not None  # else nothing goes by RequestOp and ResponseOp
        self._workers = _WorkerKinds(
            graph,
            config,
            load_predictor,
            _EDGE_WORKERS if is_asked else 1,
            processes,
            self.observation.trace_of,
        )
        self._engine: Engine | None = None
        self._elasticity: Elasticity | None = None
        self._stored: StoredInputs | None = None
        self._share = share or Share()

    @property
    def engine(self) -> Engine:
        """The engine; made by `open`."""
        if self._engine is None:
            raise InitError("the server is not running.")
        return self._engine

    async def _ask_only_me(self, question: str, limit_s: float) -> list[bytes]:
        return [await self.observation.answer(question)]

    def fork(self) -> None:
        """Let each kind of workers fork what it needs, see `Runtime`; before `open`."""
        self._workers.fork()

    def open(self, on_readiness: Callable[[bool], None]) -> None:
        """Make the engine, which takes requests and lets them wait for `load`."""
        config = self.config
        log, loop = RequestLog(_LOGGER, config.log.request_sample), asyncio.get_running_loop()
        self.observation.start(log_folder(), self._place.further, self.model_config is None)
        ours = [] if self._name is None else [NameCheck(self._name)]
        whole, ops = self.names
        name = whole or (ops[0] if ops else None) or ""
        server = self._share.cache
        cache = None if server is None else ModelCache(server, name, self.version)
        if self._share.store is not None:
            check_has_no_schema(self.graph.request_op)
            self._stored = StoredInputs(self._share.store, loop, config.max_message_bytes)
        self._engine = Engine(
            self.graph,
            config,
            functools.partial(self._workers.factory, loop),
            loop,
            observers=self.observation.observers(log),
            filters=[*ours, *configured(config.filters)],
            on_readiness=on_readiness,
            numbering=(self._place.first_id, self._place.id_step),
            cache=cache,
            stored=self._stored,
            queue=self._share.queue,
        )
        open_limits(self._share.limiter, self._engine.executor.nodes.values(), loop)
        self.observation.attach(self._engine)

    async def load(self) -> None:
        """Initialise the Ops and start the engine. InitError names the Op that failed."""
        engine = self.engine
        self._elasticity = Elasticity(engine.executor.nodes.values())
        await engine.start()
        self._elasticity.start()

    async def resize(self, op: Op, count: int) -> None:
        """Have an Op worked on by so many workers, see `op.elastic`; or raise why not."""
        await resize(self.engine.executor.nodes[op], count)

    def leave(self) -> None:
        """Report not ready permanently; continue to serve."""
        if self._engine is not None:
            self._engine.leave()

    async def finish_sequences(self, ends: float, cancelled: asyncio.Event) -> None:
        """Begin no more sequences, and serve on while there are some: until then, on the loop."""
        if self._engine is None:
            return
        loop = asyncio.get_running_loop()
        for buffer in reorder_buffers_of(self._engine.executor.nodes).values():
            buffer.is_stopping = True
            while buffer.has_live and loop.time() < ends and not cancelled.is_set():
                await waited(cancelled, min(_LOOK_S, ends - loop.time()))

    def answer_all_closed(self) -> None:
        """Answer all requests at once."""
        if self._engine is not None:
            self._engine.answer_all_closed()

    async def unload(self, grace_s: float) -> None:
        """Let the engine finish what it has, for so long, and end all workers."""
        if self._elasticity is not None:
            await self._elasticity.close()
        if self._engine is not None:
            left = await self._engine.stop(grace_s)
            if left:
                _LOGGER.warning("%d workers hang in user code and were left behind", left)
        if self._stored is not None:
            self._stored.close()
        await self._workers.close()


class _WorkerKinds:
    """The kinds of workers that the Ops name."""

    def __init__(
        self,
        graph: Graph,
        config: ServiceConfig,
        load: PredictorLoader,
        edge_workers: int,
        processes: SharedProcesses | None,
        trace_of: Callable[[int], str],
    ) -> None:
        self._graph = graph
        self._edge_workers = edge_workers
        logs = LogsHome(config.log.level)
        models = None if processes is None else processes.models
        replay = functools.partial(replay_bytes, trace_of=trace_of)
        self._context = WorkerContext(
            config, load, logs, replay, processes, models, load.base_dir, load.runtimes
        )
        self._edge_kind = ThreadKind((), self._context)
        self._by_name: dict[str, WorkerKind] = {}

    def fork(self) -> None:
        """Make the kinds, and let each fork what it needs."""
        ops: dict[str, list[Op]] = {}
        for op in self._graph.ops:
            ops.setdefault(op.pipeline_config.workers or "", []).append(op)
        for name, members in ops.items():
            make = registry.find("workers", name)
            kind = self._edge_kind if make is ThreadKind else make(members, self._context)
            kind.fork()
            self._by_name[name] = kind

    def factory(self, loop: asyncio.AbstractEventLoop, pump: Callable[[], None]) -> WorkersFactory:
        if not self._by_name:
            self.fork()
        edge_kind = self._edge_kind
        for kind in {edge_kind, *self._by_name.values()}:
            kind.attach(loop, pump)

        def make(op: Op, owner: WorkersOwner) -> Workers:
            config = op.pipeline_config
            if op in (self._graph.request_op, self._graph.response_op):
                return edge_kind.workers(op, max(config.concurrency, self._edge_workers), owner)
            kind = self._by_name[config.workers or ""]
            return _completed(kind.workers(op, config.concurrency, owner))

        return make

    async def close(self) -> None:
        """End what was forked."""
        for kind in self._by_name.values():
            await kind.close()
        self._by_name.clear()


_UNSAID = WorkersBase()


def _completed(workers: Workers) -> Workers:
    """Give workers of a plug-in, whose class need not be derived from ours, what it leaves out."""
    for name in vars(WorkersBase):
        if not (name.startswith("_") or hasattr(workers, name)):
            setattr(workers, name, getattr(_UNSAID, name))
    return workers
