"""LocalPredictor: checks, errors and the first run of an engine in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.errors import ClosedError, InputError, PredictorError, one_line
from pipeline.predictors.base import TEXT, MemoryUse, TensorSpec
from pipeline.predictors.signature import (
    ModelSignature,
    answer_without_rows,
    refuse_unknown_arguments,
)

_LOGGER = logging.getLogger(__name__)

Run = Callable[[Sequence[str], Mapping[str, np.ndarray]], Sequence[np.ndarray]]
"""Output names and input arrays in, the outputs in the order of their names out."""

Shapes = Mapping[str, Sequence[int]]


class LocalPredictor:
    """A `Predictor` over a `run` that may be called by several threads at once.

    `memory_usage` is the host memory that loading took.
    """

    def __init__(self, signature: ModelSignature, run: Run, takes_empty: bool) -> None:
        self.memory_usage: Sequence[MemoryUse] = ()
        self.signature: ModelSignature = signature
        self.feed_names: tuple[str, ...] = signature.feed_names
        self.fetch_names: tuple[str, ...] = signature.fetch_names
        self._takes_empty = takes_empty
        self._run: Run | None = run

    def predict(
        self,
        feed: Any,
        fetch: Sequence[str] | None = None,
        batch: bool = True,
        log_id: int = 0,
        *,
        deadline_s: float | None = None,
        **legacy: Any,
    ) -> dict[str, np.ndarray]:
        """Run the model once: see `Predictor.predict`."""
        if legacy:
            refuse_unknown_arguments(legacy)
        run = self._run
        if run is None:
            raise ClosedError(f"[{self.signature.model}] the predictor is closed")
        names = self.signature.fetch(fetch)
        arrays = self.signature.feed(feed, batch)
        if not self._takes_empty:
            answer = answer_without_rows(self.signature, arrays, names)
            if answer is not None:
                return answer
        try:
            values = run(names, arrays)
        except InputError:
            raise
        except Exception as error:  # the exceptions of engines share no base class but this one
            raise PredictorError(
                f"[{self.signature.model}] the model failed: {brief(error)}"
            ) from error
        return dict(zip(names, values, strict=True))

    def warm_up(self, usual_shapes: Shapes) -> bool:
        """Run once on zeros if the shapes are known; return whether that worked.

        The first run prepares memory, and on a card kernels and TensorRT's engine, for later runs.
        """
        return self._run is not None and warm_up(self._run, self.signature, usual_shapes)

    def close(self) -> None:
        """Release the model; it is freed when the last call in progress has ended."""
        self._run = None


def brief(error: Exception) -> str:
    """Return a line that is short enough for an answer and a log."""
    return one_line(str(error)) or type(error).__name__


def warm_up(run: Run, signature: ModelSignature, usual_shapes: Shapes) -> bool:
    """Run the model once on zeros or empty texts; return whether it ran.

    A failure is only a warning: zeros are a guess, and a model may rightly refuse values that no
    client would send (an index into an empty table, a sampling rate of 0).

    Args:
        usual_shapes: known shapes by input name: `opt_input_shape` of the Op's
            `set_dynamic_shape_info`.
    """
    shapes = warm_up_shapes(signature.inputs, usual_shapes)
    unknown = [spec.name for spec in signature.inputs if spec.name not in shapes]
    if unknown:
        _LOGGER.info(
            "[%s] no warm-up: the model does not say how large %s is; give it in "
            "opt_input_shape of set_dynamic_shape_info",
            signature.model,
            ", ".join(unknown),
        )
        return False
    if any(0 in shape for shape in shapes.values()):
        return False  # engines get empty arrays only if asked: see answer_without_rows
    try:
        run(
            signature.fetch_names,
            {
                spec.name: np.full(shapes[spec.name], "" if spec.dtype == TEXT else 0, spec.dtype)
                for spec in signature.inputs
            },
        )
    except Exception as error:  # onnxruntime's exceptions share no base class; users give shapes
        _LOGGER.warning(
            "[%s] the warm-up failed, so the first request will be slower, or fail too: on zeros "
            "of the shapes %s the model says: %s",
            signature.model,
            shapes,
            brief(error),
        )
        return False
    return True


def warm_up_shapes(
    inputs: Sequence[TensorSpec], usual_shapes: Shapes
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one run by input name, without inputs of unknown shape.

    `usual_shapes` take precedence. In other inputs the first dynamic dimension is a batch of one; a
    named dimension has the size of that name in another input.
    """
    sizes: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    # Given shapes come first: they set the sizes of named dimensions.
    for spec in sorted(inputs, key=lambda spec: spec.name not in usual_shapes):
        shape = tuple(usual_shapes.get(spec.name, ())) or _shape(spec, sizes)
        if shape is None:
            continue
        shapes[spec.name] = shape
        for dim, size in zip(spec.shape or (), shape, strict=False):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    return shapes


def _shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the input's shape for a batch of one; None if a size is unknown."""
    shape = []
    has_batch = False
    for dim in spec.shape or ():  # without a shape: a scalar, for onnxruntime
        if isinstance(dim, int):
            shape.append(dim)
        elif dim in sizes:
            shape.append(sizes[str(dim)])
        elif has_batch:
            return None
        else:
            shape.append(1)
        has_batch = has_batch or not isinstance(dim, int)
    return tuple(shape)
