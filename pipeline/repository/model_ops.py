"""AskModelOp: an Op of a pipeline in a repository that asks another model of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from pipeline.data import NO_INFO, RequestInfo
from pipeline.engine.graph import Graph
from pipeline.engine.op.channel import Item
from pipeline.errors import NotImplementedByOpError, PayloadTypeError, PipelineError
from pipeline.frontends.v2.interface import interface_of_config
from pipeline.op import Op
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.proto.v2.raw import BYTES, DATATYPES, array_of
from pipeline.repository.ensembles import PLACES
from pipeline.repository.served_models import ServedModels


class AskModelOp(Op):
    """An Op that forwards its requests to a model of the same repository, without hooks.

        faces = AskModelOp("faces", decode, "face_detector", inputs={"pixels": "image"})

    It takes part in a graph like any Op: before, beside or after others, with `Goto` and `loop_to`.
    The model is looked up for each request.

    Args:
        name: name of the Op.
        input_ops: its input Ops.
        model: name of the model, or of an ensemble.
        version: version of the model; -1: the latest.
        inputs: keys of the input dict, by the model's input; others have the input's name.
        outputs: keys of the answer, by the model's output; None: all outputs, with their names.
        parts: the Op answers in parts, as its model does; otherwise the parts are joined.
    """

    def __init__(
        self,
        name: str,
        input_ops: Op | Iterable[Op],
        model: str,
        version: int = -1,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        parts: bool = False,
    ) -> None:
        super().__init__(name, input_ops)
        if parts:
            vars(self)["process"] = _parts
        self.pipeline_step: AskedModel = AskedModel(model, version, inputs or {}, outputs)
        own = {"workers": "model", "concurrency": PLACES}
        self.pipeline_given: Mapping[str, object] = {**self.pipeline_given, **own}


class AskedModel:
    """Question of an AskModelOp; see `ModelStep`.

    Attributes:
        models: those of the repository; given by `bind_models`.
    """

    most: int = 0
    models: ServedModels

    def __init__(
        self,
        name: str,
        version: int,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str] | None,
    ) -> None:
        self.name: str = name
        self.version: int = version
        self._inputs = inputs
        self._outputs = outputs
        self._config: ModelConfig | None = None
        self._reads: list[tuple[str, str, np.dtype[Any]]] = []
        self._info = RequestInfo(outputs=tuple(outputs)) if outputs else NO_INFO

    def _look(self) -> None:
        """Look at the inputs of the model as it is now. Raises PipelineError: it is not there."""
        config = self.models.config(self.name, self.version)
        if config is not self._config:
            slots = interface_of_config(config).inputs or ()
            self._config = config
            self._reads = [
                (slot.name, self._inputs.get(slot.name, slot.name), DATATYPES[slot.datatype])
                for slot in slots
            ]

    def feeds(self, item: Item) -> dict[str, Any]:
        """Return the model's inputs, as far as what the Op reads has them."""
        self._look()
        feeds: dict[str, Any] = {}
        for answer in item.inputs.values():
            feeds |= answer
        return {
            name: value if isinstance(value, np.ndarray) else _array(value, dtype)
            for name, key, dtype in self._reads
            if (value := feeds.get(key)) is not None
        }

    def info(self, item: Item) -> RequestInfo:
        """Return what the caller says, and which outputs are needed."""
        return self.model_info(item.request.info)

    def convoy_size(self, rows: int) -> int:
        """Return that requests come one by one."""
        return 0

    def model_info(self, info: RequestInfo) -> RequestInfo:
        """Return the same, of what the caller says."""
        if info is NO_INFO:
            return self._info
        return msgspec.structs.replace(info, outputs=self._info.outputs)

    def answer(self, item: Item, fetched: Mapping[str, Any]) -> dict[str, Any]:
        """Return the Op's answer, of the model's."""
        if self._outputs is None:
            return dict(fetched)
        return {key: fetched[name] for name, key in self._outputs.items() if name in fetched}

    def failed(self, error: PipelineError) -> PipelineError:
        """Return the error unchanged: the engine adds the Op's name."""
        return error


def _array(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return what an Op answered as an array of a model's type. Raises PipelineError."""
    try:
        return array_of(value) if dtype == BYTES else np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise PayloadTypeError(f"a model cannot be fed {type(value).__name__}: {error}") from error


def bind_models(graph: Graph, models: ServedModels) -> None:
    for op in graph.ops:
        if isinstance(op, AskModelOp):
            op.pipeline_step.models = models


def _parts(feed_batch: Any, typical_logid: int = 0) -> Any:
    """Refuse what nobody calls: by it an Op is known to answer in parts."""
    raise NotImplementedByOpError("an Op that asks a model has no process")
    yield
