"""ModelInterface: the inputs and outputs of a model, and checks of requests and answers by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.data import ANY, Tensor, announced_batch
from pipeline.engine.models import ALL_CHECKS, OutputChecks
from pipeline.errors import PayloadTypeError
from pipeline.frontends.v2.errors import UnknownTensorError, V2Error, invalid
from pipeline.predictors.base import ModelMetadata, TensorMetadata
from pipeline.proto.inference_v2_pb2 import DataType, ModelConfig, ModelInput, ModelOutput
from pipeline.proto.v2.raw import datatype_of

Array = npt.NDArray[Any]

_BATCH_NOTE = (
    ". NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to "
    "be prepended to each input shape. If you want to specify the full shape including the batch "
    "dim in your input dims config, try setting max_batch_size to zero. See the model "
    "configuration docs for more info on max_batch_size."
)


class Slot(msgspec.Struct, frozen=True):
    """One input or output. `shape` is without the batch; None: of any rank.

    `is_scalar`: the model's file declares a scalar; v2 accepts any rank, for example [1].
    """

    name: str
    datatype: str
    shape: tuple[int, ...] | None
    is_optional: bool = False
    is_scalar: bool = False

    def full_shape(self, batches: bool) -> list[int]:
        """Return the shape for callers of a model that `batches`."""
        shape = [ANY] if self.shape is None else list(self.shape)
        return [ANY, *shape] if batches else shape


class ModelInterface(msgspec.Struct, frozen=True):
    """A model's interface for callers.

    Args:
        inputs: None: any inputs.
        outputs: None: any outputs.
        max_batch_size: 0: a request is one sample; otherwise the first dimension of every input and
            output is the batch.
        output_checks: what of an output must be as declared; its type is converted if possible.
    """

    inputs: tuple[Slot, ...] | None = None
    outputs: tuple[Slot, ...] | None = None
    max_batch_size: int = 0
    output_checks: OutputChecks = ALL_CHECKS

    @property
    def batches(self) -> bool:
        return self.max_batch_size > 0

    def check_inputs(self, model: str, inputs: Mapping[str, Array]) -> int:
        """Return the number of samples. Raises V2Error for inputs that do not fit the model."""
        if self.inputs is None:
            return 1
        self._check_names(model, self.inputs, inputs)
        for slot in self.inputs:
            if slot.name in inputs:
                self._check_input(model, slot, inputs[slot.name])
        return self._batch_of(model, inputs) if self.batches and inputs else 1

    def check_outputs(self, model: str, wanted: Iterable[str]) -> None:
        """Raise V2Error for an output that the model does not have."""
        if self.outputs is None:
            return
        known = {slot.name for slot in self.outputs}
        for name in wanted:
            if name not in known:
                raise no_such_output(model, name)

    def _check_names(self, model: str, slots: Sequence[Slot], inputs: Mapping[str, Array]) -> None:
        known = [slot.name for slot in slots]
        required = [slot.name for slot in slots if not slot.is_optional]
        missing = [name for name in required if name not in inputs]
        if len(inputs) == len(known) or (len(inputs) < len(known) and not missing):
            for name in inputs:
                if name not in known:
                    text = f"unexpected inference input '{name}' for model '{model}'"
                    raise UnknownTensorError(text)
        else:
            least, most = len(required), len(known)
            expected = (
                f"{most}" if least == most else f"number of inputs between {least} and {most}"
            )
            expected += " inputs" if least == most else ""
            raise invalid(
                f"expected {expected} but got {len(inputs)} inputs for model '{model}'. "
                f"Got input(s) {_listed(inputs)}, but missing required input(s) "
                f"{_listed(missing)}. Please provide all required input(s)."
            )

    def _check_input(self, model: str, slot: Slot, array: Array) -> None:
        datatype = datatype_of(array.dtype)
        if datatype != slot.datatype:
            raise invalid(
                f"inference input '{slot.name}' data-type is '{datatype}', but model '{model}' "
                f"expects '{slot.datatype}'"
            )
        expected = slot.full_shape(self.batches)
        if slot.shape is not None and not fits(array.shape, expected):
            raise invalid(
                f"unexpected shape for input '{slot.name}' for model '{model}'. "
                f"Expected {_dims(expected)}, got {_dims(array.shape)}"
                f"{_BATCH_NOTE if self.batches else '. '}"
            )

    def _batch_of(self, model: str, inputs: Mapping[str, Array]) -> int:
        sizes = {name: len(array) for name, array in inputs.items()}
        batch = next(iter(sizes.values()))
        for name, size in sizes.items():
            if size != batch:
                raise invalid(
                    f"input '{name}' batch size does not match other inputs for '{model}'"
                )
        if batch > self.max_batch_size:
            raise invalid(
                f"inference request batch-size must be <= {self.max_batch_size} for '{model}'"
            )
        if not batch:
            raise invalid(f"inference request batch-size must be >= 1 for '{model}'")
        return batch


def no_such_output(model: str, name: str) -> V2Error:
    return UnknownTensorError(f"unexpected inference output '{name}' for model '{model}'")


def fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    """Return whether `shape` is `expected`, in which -1 is any size."""
    return len(shape) == len(expected) and all(
        expected_size in (ANY, size) for size, expected_size in zip(shape, expected, strict=True)
    )


def slots_of(tensors: Sequence[Tensor]) -> tuple[Slot, ...] | None:
    """Return the interface that an Op declares, or None."""
    slots = tuple(Slot(tensor.full_name, tensor.datatype, tensor.shape) for tensor in tensors)
    return slots or None


def interface_of(
    note: ModelMetadata, batch_size: int, fetch: Sequence[str] | None = None, most: int = 0
) -> ModelInterface | None:
    """Return the interface of a model that a worker has loaded.

    It takes batches if the first dimension of all inputs and outputs may have any size.

    Args:
        batch_size: of the Op.
        fetch: the outputs that the Op fetches; None: all.
        most: the batch size that the Op declares; 0: not declared.

    Returns:
        None for a model with a tensor of a datatype that the protocol lacks.
    """
    outputs = [noted for noted in note.outputs if not fetch or noted.name in fetch]
    batches = bool(note.inputs) and all(map(_is_batched, (*note.inputs, *outputs)))
    try:
        return ModelInterface(
            tuple(_slot(noted, batches) for noted in note.inputs),
            tuple(_slot(noted, batches) for noted in outputs),
            announced_batch(most, batch_size) if batches else 0,
            frozenset({"type"}),  # exporters declare [1] for outputs of shape [rows]
        )
    except PayloadTypeError:
        return None


def interface_of_config(config: ModelConfig, checks: OutputChecks = ALL_CHECKS) -> ModelInterface:
    """Return the interface from the configuration of a repository's model.

    `checks` of outputs depend on its backend.
    """
    return ModelInterface(
        tuple(_slot_of_config(tensor, tensor.optional) for tensor in config.input),
        tuple(map(_slot_of_config, config.output)),
        config.max_batch_size,
        checks,
    )


def _slot_of_config(tensor: ModelInput | ModelOutput, is_optional: bool = False) -> Slot:
    name = DataType.Name(tensor.data_type).removeprefix("TYPE_")
    datatype = "BYTES" if name == "STRING" else name
    return Slot(tensor.name, datatype, tuple(tensor.dims), is_optional)


def _is_batched(noted: TensorMetadata) -> bool:
    return noted.shape is not None and noted.shape[:1] == [ANY]


def _slot(noted: TensorMetadata, batches: bool) -> Slot:
    datatype = datatype_of(np.dtype(noted.dtype)) if noted.dtype else "BYTES"
    shape = tuple(noted.shape[1:] if batches else noted.shape) if noted.shape else None
    return Slot(noted.name, datatype, shape, is_scalar=noted.shape == [])


def _listed(names: Iterable[str]) -> str:
    quoted = ",".join(f"'{name}'" for name in names)
    return f"[{quoted}]"


def _dims(shape: Iterable[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
