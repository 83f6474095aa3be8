"""FakePredictor: stands in the place of a model, and tells what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from pipeline.errors import InputError, PredictorError
from pipeline.predictors.base import Predictor

Outputs = Mapping[str, Any]
"""Outputs by name: arrays, or what numpy makes one of. The first dimension is the batch."""

Fake = Predictor | Outputs | Callable[[dict[str, Any]], Outputs] | Sequence[Any]
"""A predictor, or what a FakePredictor is made of."""


class FakePredictor:
    """A `Predictor` without a model. Safe to call from many threads.

    Args:
        answers: what it answers. Outputs by name: each call gets them; those with one row get as
            many as were fed. A function: it gets the feed, a dict, and returns outputs by name, or
            raises. A list: one of these, or an exception that is raised, for each call in turn.
        feed_names: the model's inputs, for who asks for them.
        fetch_names: the model's outputs; None: those of `answers`, if these are one mapping.

    Attributes:
        calls: the feeds so far, each as it came.

    >>> model = FakePredictor({"prob": [[0.1, 0.9]]})
    >>> model.predict({"x": np.zeros((2, 4))})["prob"].shape
    (2, 2)
    """

    def __init__(
        self,
        answers: Outputs | Callable[[dict[str, Any]], Outputs] | Sequence[Any],
        *,
        feed_names: Iterable[str] = (),
        fetch_names: Iterable[str] | None = None,
    ) -> None:
        self.feed_names: tuple[str, ...] = tuple(feed_names)
        named = answers if isinstance(answers, Mapping) else ()
        self.fetch_names: tuple[str, ...] = tuple(named if fetch_names is None else fetch_names)
        self.calls: list[dict[str, Any]] = []
        self._answers = answers
        self._turns: Iterator[Any] | None = None
        if not (isinstance(answers, Mapping) or callable(answers)):
            self._turns = iter(list(answers))
            self._count = len(answers)

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
        """Return the configured answer, see `Predictor.predict`.

        Raises InputError: `fetch` names an unknown output; PredictorError: it has no more answers.
        """
        fed: dict[str, Any] = feed[0] if isinstance(feed, list) else feed
        self.calls.append(fed)
        outputs = self._outputs(fed)
        if fetch:
            unknown = [name for name in fetch if name not in outputs]
            if unknown:
                raise InputError(
                    f"FakePredictor: no output is called {', '.join(unknown)}: there is "
                    f"{', '.join(outputs)}"
                )
            outputs = {name: outputs[name] for name in fetch}
        rows = _rows_of(fed) if batch else 1
        return {name: _for_rows(np.asarray(value), rows) for name, value in outputs.items()}

    def _outputs(self, fed: dict[str, Any]) -> Outputs:
        answer: Any = self._answers
        if self._turns is not None:
            answer = next(self._turns, None)
            if answer is None:
                raise PredictorError(
                    f"FakePredictor: call {len(self.calls)} has no answer: there are {self._count}"
                )
        if isinstance(answer, BaseException):
            raise answer
        outputs = answer(fed) if callable(answer) else answer
        if not isinstance(outputs, Mapping):
            raise PredictorError(
                f"FakePredictor: expected outputs by name, a dict, found {type(outputs).__name__}"
            )
        return outputs

    def close(self) -> None:
        """There is nothing to let go of."""


def as_predictor(fake: Fake) -> Predictor:
    """Return a predictor unchanged, and anything else as a FakePredictor that answers it."""
    if isinstance(fake, Mapping) or not hasattr(fake, "predict"):
        return FakePredictor(cast(Any, fake))
    return cast(Predictor, fake)


def _rows_of(feed: Mapping[str, Any]) -> int:
    """Return how many samples are fed; 1 if nothing says so."""
    for value in feed.values():
        if isinstance(value, np.ndarray) and value.ndim:
            return len(value)
        if isinstance(value, list):
            return len(value)
    return 1


def _for_rows(output: np.ndarray, rows: int) -> np.ndarray:
    """Return an output with as many rows as were fed, if it has one for all of them."""
    if rows > 1 and output.ndim and len(output) == 1:
        return np.repeat(output, rows, axis=0)
    return output
