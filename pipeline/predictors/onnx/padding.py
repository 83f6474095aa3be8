"""PaddedRunner: batches of one size for a card, whatever the number of rows that are fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.predictors.base import TEXT, TensorSpec
from pipeline.predictors.onnx.binding import Run
from pipeline.predictors.signature import ModelSignature


class PaddedRunner:
    """A runner that fills each batch up with zeros to `rows`, or a multiple of it.

    onnxruntime prepares a convolution on CUDA anew whenever the shape of its input is not that of
    the run before: a ResNet-50 whose batches have 8 and 7 rows in turn takes 60 ms instead of 3.
    Outputs are cut to the rows that were fed.
    """

    def __init__(self, run: Run, signature: ModelSignature, rows: int) -> None:
        self._run = run
        self._rows = rows
        self._batched_inputs = {spec.name for spec in signature.inputs if _has_batch(spec)}
        self._batched_outputs = {spec.name for spec in signature.outputs if _has_batch(spec)}

    def __call__(
        self, names: Sequence[str], arrays: Mapping[str, np.ndarray]
    ) -> Sequence[np.ndarray]:
        counts = {len(array) for name, array in arrays.items() if name in self._batched_inputs}
        if len(counts) != 1:  # no batch, or nobody can say which one it is
            return self._run(names, arrays)
        (count,) = counts
        lacking = -count % self._rows
        if not lacking:
            return self._run(names, arrays)
        padded = {
            name: _filled(array, lacking) if name in self._batched_inputs else array
            for name, array in arrays.items()
        }
        outputs = self._run(names, padded)
        return [
            output[:count] if name in self._batched_outputs and len(output) > count else output
            for name, output in zip(names, outputs, strict=True)
        ]


def _has_batch(spec: TensorSpec) -> bool:
    """Return whether the first dimension may have any size."""
    return bool(spec.shape and not isinstance(spec.shape[0], int))


def _filled(array: np.ndarray, lacking: int) -> np.ndarray:
    """Return an array with so many rows of zeros, or of empty texts, behind its own."""
    more = np.full((lacking, *array.shape[1:]), "" if array.dtype == TEXT else 0, array.dtype)
    return np.concatenate([array, more])
