"""Tensor: what an Op says of its inputs and outputs, in the v2 protocol's terms."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from pipeline.errors import ConfigError, one_line

DATATYPES = frozenset(f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)) | {
    "BOOL",
    "FP16",
    "BF16",
    "FP32",
    "FP64",
    "BYTES",
}

_LEAST_BATCH = 4

ANY = -1
"""A dimension of any size."""


class Tensor(msgspec.Struct, frozen=True):
    """One input or output of an Op or of a pipeline.

        class WordsOp(RequestOp):
            input_tensors = [Tensor("words", "BYTES", (1,))]

        class CombineOp(Op):
            output_tensors = [Tensor("prediction", "FP32", (1,))]

    A pipeline's inputs are those of its RequestOp, its outputs those of the Op that the
    ResponseOp reads, or of the ResponseOp if it has any itself. An Op that reads several others
    says for each input which of them gives it (`source`); callers know it as "source.name".

    Args:
        name: key in the dict that `preprocess` reads, or that `postprocess` returns.
        datatype: one of DATATYPES. BYTES is text or bytes.
        shape: with -1 for any size; without the batch if the Op has a `max_batch_size`.
        source: name of the Op that gives an input.

    Raises:
        ConfigError: no such datatype, or a dimension below -1.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] = (ANY,)
    source: str = ""

    def __post_init__(self) -> None:
        if self.datatype not in DATATYPES:
            known = ", ".join(sorted(DATATYPES))
            raise ConfigError(
                f"Tensor {self.name!r}: datatype {self.datatype!r} is none of {known}"
            )
        if any(type(size) is not int or size < ANY for size in self.shape):
            raise ConfigError(
                f"Tensor {self.name!r}: shape {self.shape!r} must have sizes, or -1 for any"
            )

    @property
    def full_name(self) -> str:
        """What callers of the v2 protocol call it."""
        return f"{self.source}.{self.name}" if self.source else self.name


def declared(op: Any, attribute: str) -> tuple[Tensor, ...]:
    """The Tensors that `op` lists as `input_tensors` or `output_tensors`; () if it lists none.

    Scripts of old may use the names for something else: without a Tensor it is no declaration.

    Raises:
        ConfigError: there are Tensors, but not as a list of them alone.
    """
    listed = getattr(op, attribute, ())
    values = listed.values() if isinstance(listed, dict) else listed
    items = [*values] if isinstance(listed, list | tuple | set | dict) else [listed]
    if not any(isinstance(item, Tensor) for item in items):
        return ()
    if not isinstance(listed, list | tuple) or not all(isinstance(item, Tensor) for item in items):
        found = one_line(repr(listed))
        raise ConfigError(f"Op {op.name!r}: {attribute} has to be a list of Tensors, found {found}")
    return tuple(listed)


def declares(op: Any) -> bool:
    """Whether an Op says what goes in or out."""
    return bool(declared(op, "input_tensors") or declared(op, "output_tensors"))


def announced_batch(most: int, batch_size: int) -> int:
    """The samples that a loaded model takes at once: what its Op says, else what it may well get.

    Triton, too, gives a model that takes any number of them at least 4.
    """
    return most or max(_LEAST_BATCH, batch_size)


def max_batch_size_of(op: Any) -> int:
    """The samples that an Op takes at once, as its `max_batch_size` says; 0 if it says nothing.

    Like `declared` it leaves alone what is no declaration.

    Raises:
        ConfigError: it is no whole number, 0 or more, beside declared tensors.
    """
    most = getattr(op, "max_batch_size", 0)
    is_whole = isinstance(most, int | np.integer) and not isinstance(most, bool)
    if is_whole and most >= 0:
        return int(most)
    if declares(op):
        raise ConfigError(
            f"Op {op.name!r}: max_batch_size has to be a whole number, 0 or more, found {most!r} "
            f"({type(most).__name__})"
        )
    return 0
