"""Ensembles: `ensemble_scheduling` of a model's configuration as a graph whose Ops ask models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from pipeline.data import NO_INFO, RequestInfo
from pipeline.engine.graph import Graph, build_graph
from pipeline.engine.model_calls import LAST
from pipeline.engine.op.channel import Item
from pipeline.errors import NotImplementedByOpError, PipelineError, with_text
from pipeline.op import EXECUTOR_NAME, Op, RequestOp, ResponseOp
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.base import Backend, ModelSource
from pipeline.repository.backends.ragged import Dims, reshaped, reshaping_of
from pipeline.repository.ensemble_checks import check_steps, dims_fit, in_order, own_dims, steps_of
from pipeline.repository.model_folders import key_of
from pipeline.repository.served_models import ServedModels
from pipeline.workers.model_step import ModelStep, ServerModels

_LOGGER = logging.getLogger(__name__)
_NOTHING: Mapping[str, Any] = {}
_ANY = 1 << 30
PLACES = 4096  # requests in an ensemble, for each step: its models have limits of their own

Fit = Callable[[Any], Any]
"""Adds the batch to an array, takes it away, or reshapes it, where two models see it differently.
"""


class StepOp(Op):
    """One step of an ensemble: its requests go to a model.

    Attributes:
        pipeline_step: what that is asked.
    """

    def __init__(self, name: str, input_ops: Sequence[Op], step: ModelStep) -> None:
        super().__init__(name, list(input_ops))
        self.pipeline_step: ModelStep = step
        own = {"workers": "model", "concurrency": PLACES}
        self.pipeline_given: Mapping[str, object] = {**self.pipeline_given, **own}


class PartsStepOp(StepOp):
    """A step whose model answers in parts; by its `process` it is known to be one that does."""

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        """Refuse what nobody calls."""
        raise NotImplementedByOpError(f"{self.name} has no process: its model has")
        yield


class TensorSource(msgspec.Struct, frozen=True):
    """Origin of a tensor of an ensemble: its Op, whether that batches, and comes in parts.

    `fit`: what each reader does with it first.
    """

    op: Op
    batches: bool
    streams: bool = False
    fit: Fit | None = None

    @property
    def key(self) -> str:
        """The key of that Op's answer in what others read."""
        return EXECUTOR_NAME if isinstance(self.op, RequestOp) else self.op.name


class Read(msgspec.Struct, frozen=True):
    """One tensor that a step reads: whose answer it is in, its names there and here."""

    producer: str
    tensor: str
    name: str
    fit: Fit | None


class EnsembleStep:
    """Question of one step of an ensemble; see `ModelStep`.

    Args:
        ensemble: its name.
        reads: the model's inputs.
        writes: names of the ensemble's tensors by the model's outputs.
        leads_to: outputs of the ensemble for which the step is needed.
        outputs: that the model is asked for; empty: all.

    Attributes:
        is_last: its answer is that of the ensemble.
        makes_parts: whether the model answers in parts.
        streams: whose answers it reads that come in parts.
        fits: of the tensors of that.
    """

    def __init__(
        self,
        models: ServerModels,
        ensemble: str,
        name: str,
        version: int,
        reads: Sequence[Read],
        writes: Mapping[str, str],
        leads_to: frozenset[str],
        outputs: tuple[str, ...] = (),
        most: int = 0,
    ) -> None:
        self.models: ServerModels = models
        self.name: str = name
        self.version: int = version
        self.most: int = most
        self.writes: Mapping[str, str] = dict(writes)
        self.fits: Mapping[str, Fit] = _NOTHING
        self.is_last: bool = False
        self.makes_parts: bool = False
        self.streams: Sequence[str] = ()
        self._ensemble = ensemble
        self._reads = [(read.producer, read.tensor, read.name, read.fit) for read in reads]
        self._leads_to = leads_to
        self._outputs = outputs
        self._plain_info = RequestInfo(outputs=outputs) if outputs else NO_INFO

    def feeds(self, item: Item) -> dict[str, Any] | None:
        """Return the model's inputs; None: nobody has asked for what the step leads to."""
        outputs = item.request.info.outputs
        if outputs and self._leads_to.isdisjoint(outputs):
            return None
        return self._read(item.inputs)

    def _read(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        feeds = {}
        for producer, tensor, name, fit in self._reads:
            value = inputs.get(producer, _NOTHING).get(tensor)
            if value is not None:  # it is or was optional to the model that makes it
                feeds[name] = value if fit is None else fit(value)
        return feeds

    def convoy_size(self, rows: int) -> int:
        """Return how many requests of so many samples the model takes as one; 0: none does."""
        if self.most or self.fits or any(fit is not None for *_, fit in self._reads):
            return 0
        return self.models.convoy_size(self.name, self.version, rows)

    def info(self, item: Item) -> RequestInfo:
        """Return what the caller of the ensemble says, and which outputs are needed here."""
        return self.model_info(item.request.info)

    def model_info(self, info: RequestInfo) -> RequestInfo:
        """Return the same, of what the caller says."""
        if info is NO_INFO:
            return self._plain_info
        if info.outputs == self._outputs:
            return info
        return msgspec.structs.replace(info, outputs=self._outputs)

    def answer(self, item: Item, fetched: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors of the ensemble that a model's answer has."""
        writes = self.writes
        tensors = {writes[name]: value for name, value in fetched.items() if name in writes}
        if self.is_last:
            for name, fit in self.fits.items():
                if name in tensors:
                    tensors[name] = fit(tensors[name])
            outputs = item.request.info.outputs or self._leads_to
            if len(tensors) < len(outputs):
                tell_missing(outputs, tensors)
        if self._ends(item.inputs, fetched):
            tensors[LAST] = True
        return tensors

    def _ends(self, inputs: Mapping[str, Any], fetched: Mapping[str, Any]) -> bool:
        """Return whether an answer is the last of several, as what it is made of says."""
        if self.makes_parts and LAST not in fetched:
            return False
        is_last = all(LAST in inputs.get(name, _NOTHING) for name in self.streams)
        return is_last and (self.makes_parts or bool(self.streams))

    def failed(self, error: PipelineError) -> PipelineError:
        """Return the error with the name of the ensemble before it."""
        return within(self._ensemble, error)


class OutputStep(EnsembleStep):
    """The end of an ensemble whose outputs several steps make: it asks nobody."""

    def convoy_size(self, rows: int) -> int:
        """Return that any number goes through, unless they are to be fitted."""
        return 0 if any(fit is not None for *_, fit in self._reads) else _ANY

    def feeds(self, item: Item) -> None:
        return None

    def answer(self, item: Item, fetched: Mapping[str, Any]) -> dict[str, Any]:
        tensors = self._read(item.inputs)
        outputs = item.request.info.outputs or self._leads_to
        if len(tensors) < len(outputs):
            tell_missing(outputs, tensors)
        if self._ends(item.inputs, fetched):
            tensors[LAST] = True
        return tensors


def tell_missing(outputs: Iterable[str], present: Container[str]) -> None:
    """Log which outputs of an ensemble no model has made."""
    for name in outputs:
        if name not in present:
            _LOGGER.debug("Composing models did not output tensor %s", name)


def within(ensemble: str, error: PipelineError) -> PipelineError:
    """Return an error of the same kind that says in which ensemble it came to be."""
    copy = with_text(error, f"in ensemble '{ensemble}', {error}")
    copy.op = None
    return copy


def ensemble_graph(config: ModelConfig, models: ServedModels) -> Graph:
    """Return the steps of an ensemble as a graph.

    Raises:
        ConfigError: they do not fit their models, in Triton's words.
        PipelineError: one of these is not there.
    """
    check_steps(config, models.config)
    most = config.ensemble_scheduling.max_inflight_requests
    if most:
        _LOGGER.info(
            "Ensemble model '%s' configured with max_inflight_requests: %d", config.name, most
        )
    return build_graph(ResponseOp(_Steps(config, models).last))


def is_decoupled(config: ModelConfig, models: ServedModels) -> bool:
    """Return whether an ensemble answers in parts. Raises as `ensemble_graph` does."""
    return check_steps(config, models.config)


class _Steps:
    """The steps of an ensemble, made into Ops one by one.

    Attributes:
        last: the Op whose answer is the ensemble's.
    """

    def __init__(self, config: ModelConfig, models: ServedModels) -> None:
        self._config = config
        self._models = models
        self._batches = config.max_batch_size > 0
        reshaping, request = reshaping_of(config), RequestOp()
        given = _reshaping(reshaping.skip, reshaping.inputs)
        self._answered = _reshaping(reshaping.skip, reshaping.outputs)
        self._sources: dict[str, TensorSource] = {
            slot.name: TensorSource(request, self._batches, fit=given.get(slot.name))
            for slot in config.input
        }
        self._dims = {slot.name: own_dims(slot) for slot in config.output}
        self._leads_to = _leading(config)
        self._names = _names(config)
        for number in in_order(config):
            self._add(number)
        makers = {self._sources[name].op for name in self._dims}
        only = next(iter(makers)) if len(makers) == 1 else None
        if isinstance(only, StepOp) and not only.pipeline_consumers:
            self.last: Op = only
            assert isinstance(only.pipeline_step, EnsembleStep)
            only.pipeline_step.is_last = True
            fits = {read.name: read.fit for read in self._own_reads()}
            only.pipeline_step.fits = {name: fit for name, fit in fits.items() if fit is not None}
        else:
            self.last = self._end()

    def _add(self, number: int) -> None:
        """Make the Op of a step, all of whose inputs are made."""
        step = steps_of(self._config)[number]
        key = key_of(step.model_namespace, step.model_name)
        model = self._models.config(key, step.model_version)
        batches = model.max_batch_size > 0
        dims = {slot.name: tuple(slot.dims) for slot in model.input}
        reads = [
            self._read(tensor, name, dims[name], batches) for name, tensor in step.input_map.items()
        ]
        is_all = step.output_map.keys() == {slot.name for slot in model.output}
        ensemble_step = EnsembleStep(
            self._models,
            self._config.name,
            key,
            step.model_version,
            reads,
            step.output_map,
            self._leads_to[number],
            outputs=() if is_all else tuple(step.output_map),
            most=self._config.ensemble_scheduling.max_inflight_requests,
        )
        ensemble_step.makes_parts = model.model_transaction_policy.decoupled
        ensemble_step.streams = self._streams(step.input_map.values())
        kind = PartsStepOp if ensemble_step.makes_parts else StepOp
        op = kind(self._names[number], self._producers(step.input_map.values()), ensemble_step)
        made = TensorSource(op, batches, bool(ensemble_step.makes_parts or ensemble_step.streams))
        self._sources.update((tensor, made) for tensor in step.output_map.values())

    def _end(self) -> Op:
        """Return an Op that puts together what several steps have made."""
        reads = self._own_reads()
        step = OutputStep(self._models, self._config.name, "", -1, reads, {}, frozenset(self._dims))
        step.streams = self._streams(self._dims)
        name = _unused("outputs", self._names)
        return StepOp(name, self._producers(self._dims), step)

    def _own_reads(self) -> list[Read]:
        """Return the reads of the outputs, as one that reads them would."""
        return [
            self._read(name, name, dims, self._batches, self._answered.get(name))
            for name, dims in self._dims.items()
        ]

    def _read(
        self,
        tensor: str,
        name: str,
        dims: Sequence[int],
        batches: bool,
        last: Fit | None = None,
    ) -> Read:
        source = self._sources[tensor]
        fits = [source.fit, _fit(source.batches, batches, dims), last]
        return Read(source.key, tensor, name, _joined([fit for fit in fits if fit is not None]))

    def _streams(self, tensors: Iterable[str]) -> list[str]:
        sources = [self._sources[tensor] for tensor in tensors]
        return list(dict.fromkeys(source.key for source in sources if source.streams))

    def _producers(self, tensors: Iterable[str]) -> list[Op]:
        return list(dict.fromkeys(self._sources[tensor].op for tensor in tensors))


def _names(config: ModelConfig) -> list[str]:
    """Return a name for the Op of each step: its model's, with a number if there are several."""
    models = [step.model_name for step in steps_of(config)]
    names: list[str] = []
    for number, model in enumerate(models):
        name = model if models.count(model) == 1 else f"{model}#{models[: number + 1].count(model)}"
        names.append(_unused(name, [*names, *models]) if name != model else name)
    return names


def _unused(name: str, names: Iterable[str]) -> str:
    taken = set(names)
    while name in taken:
        name += "_"
    return name


def _leading(config: ModelConfig) -> list[frozenset[str]]:
    """Return for each step the outputs of the ensemble that are made of what it makes."""
    steps, outputs = steps_of(config), {slot.name for slot in config.output}
    needs: dict[str, frozenset[str]] = {name: frozenset([name]) for name in outputs}
    leads: list[frozenset[str]] = [frozenset()] * len(steps)
    for number in reversed(in_order(config)):
        step = steps[number]
        of_made = (needs.get(name, frozenset()) for name in step.output_map.values())
        leads[number] = frozenset().union(*of_made)
        for name in step.input_map.values():
            needs[name] = needs.get(name, frozenset()) | leads[number]
    return leads


def _fit(is_batched: bool, batches: bool, dims: Sequence[int]) -> Fit | None:
    """Return the conversion that makes a tensor of one model fit another; None: no conversion is
    needed.

    Args:
        is_batched: whether the model that makes it batches.
        batches: whether the one that gets it does.
        dims: what that one expects, without the batch.
    """
    if is_batched == batches:
        return None
    return _adding(tuple(dims)) if batches else _taking(tuple(dims))


def _joined(fits: Sequence[Fit]) -> Fit | None:
    """Return the conversions one after the other as one."""
    if len(fits) < 2:
        return fits[0] if fits else None

    def fit(value: Any) -> Any:
        for step in fits:
            value = step(value)
        return value

    return fit


def _reshaping(skip: int, shapes: Mapping[str, tuple[Dims, Dims]]) -> dict[str, Fit]:
    return {name: partial(reshaped, name, skip, *dims) for name, dims in shapes.items()}


def _adding(dims: tuple[int, ...]) -> Fit:
    def fit(value: Any) -> Any:
        return value.reshape(1, *value.shape) if dims_fit(dims, value.shape) else value

    return fit


def _taking(dims: tuple[int, ...]) -> Fit:
    def fit(value: Any) -> Any:
        shape = value.shape
        is_one = shape and shape[0] == 1 and not dims_fit(dims, shape)
        return value.reshape(shape[1:]) if is_one else value

    return fit


class EnsembleBackend(Backend):
    """Ensembles.

    Args:
        models: of the repository, which their steps ask.
    """

    serves_graph = True

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    async def complete(self, source: ModelSource) -> ModelConfig:
        """Return the configuration, which says whether there are several answers to a request."""
        config = ModelConfig()
        config.CopyFrom(source.config)
        if is_decoupled(config, self._models):
            config.model_transaction_policy.decoupled = True
        return config

    def labels(self, source: ModelSource) -> dict[str, Sequence[bytes]]:
        """Return the labels of the models that make the outputs."""
        return {
            tensor: labels
            for step in steps_of(source.config)
            for name, labels in self._models.labels(
                key_of(step.model_namespace, step.model_name), step.model_version
            ).items()
            if (tensor := step.output_map.get(name))
        }

    def graph(self, source: ModelSource) -> Graph:
        """Return the steps. Raises ConfigError: they do not fit their models."""
        return ensemble_graph(source.config, self._models)
