"""Types of requests and answers of pipelines whose ends are Ops that only run a model."""

from __future__ import annotations

from typing import Any

import msgspec

from pipeline.data import Tensor
from pipeline.engine.models import Served
from pipeline.frontends.v2.interface import Slot
from pipeline.frontends.v2.model import OpModel
from pipeline.op import Op, overrides
from pipeline.schema.arrays import tensor_schema


class ModelTensors(msgspec.Struct, frozen=True):
    """Inputs or outputs of a model: they stand where a schema stands in an Operation."""

    name: str
    slots: tuple[Slot, ...]
    batches: bool

    def json_schema(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the JSON schema of an object of them, and no components."""
        properties = {slot.name: self._one(slot) for slot in self.slots}
        required = [slot.name for slot in self.slots if not slot.is_optional]
        return {"type": "object", "properties": properties, "required": required}, {}

    def _one(self, slot: Slot) -> dict[str, Any]:
        if slot.is_scalar:
            return tensor_schema(Tensor(slot.name, slot.datatype, ()))
        if slot.shape is None:
            return {"description": f"{slot.datatype}: a value, or nested lists of any depth"}
        shape = tuple(slot.full_shape(self.batches))
        return tensor_schema(Tensor(slot.name, slot.datatype, shape))


def request_of(served: Served) -> ModelTensors | None:
    """Return the inputs of the model that a request's fields go to; None: not to one alone."""
    read = served.graph.request_op
    readers = served.graph.successors(read)
    if len(readers) != 1 or overrides(read, "unpack_request_package"):
        return None
    if overrides(readers[0], "preprocess") or overrides(readers[0], "process"):
        return None
    model = OpModel(readers[0].name, readers[0], served.engine.note)
    return _tensors(readers[0], model.interface.inputs, model.interface.batches)


def answer_of(served: Served) -> ModelTensors | None:
    """Return the outputs that are the answer; None: they are not those of one model alone."""
    last = served.graph.last_op
    if overrides(served.graph.response_op, "pack_response_package"):
        return None
    if overrides(last, "process") or overrides(last, "postprocess"):
        return None
    model = OpModel(last.name, last, served.engine.note)
    return _tensors(last, model.interface.outputs, model.interface.batches)


def _tensors(op: Op, slots: tuple[Slot, ...] | None, batches: bool) -> ModelTensors | None:
    return ModelTensors(op.name, slots, batches) if slots else None
