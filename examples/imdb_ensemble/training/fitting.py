"""Fits a network: Adam, randomly hidden words, averaged weights, and the best epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tokenizer import PAD_ID, UNKNOWN_ID
from training.networks import Array, Network, Parameters

BATCH_SIZE = 64
AVERAGE_KEEPS = np.float32(0.99)  # of the running average, at each step
MEAN_KEEPS, SQUARE_KEEPS = 0.9, 0.999  # Adam's usual ones
PREDICT_AT_ONCE = 250  # reviews; bounds the memory of a convolution


@dataclass(frozen=True)
class Examples:
    """Encoded reviews: `words` int64 (reviews, length), `labels` int64 (reviews,)."""

    words: Array
    labels: Array


@dataclass(frozen=True)
class Plan:
    """Number of epochs, learning rate, and share of words to hide at each step."""

    epochs: int
    rate: float
    hidden_words: float = 0.5


class Adam:
    """Adam over a dictionary of parameters, which it changes in place."""

    def __init__(self, parameters: dict[str, Array], rate: float) -> None:
        self._parameters = parameters
        self._rate = rate
        self._steps = 0
        self._means = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._squares = {name: np.zeros_like(value) for name, value in parameters.items()}

    def step(self, gradients: Parameters) -> None:
        """Update every parameter once."""
        self._steps += 1
        bias = np.sqrt(1 - SQUARE_KEEPS**self._steps) / (1 - MEAN_KEEPS**self._steps)
        rate = np.float32(self._rate * bias)
        for name, gradient in gradients.items():
            mean, square = self._means[name], self._squares[name]
            mean += (1 - MEAN_KEEPS) * (gradient - mean)
            square += (1 - SQUARE_KEEPS) * (gradient * gradient - square)
            self._parameters[name] -= rate * mean / (np.sqrt(square) + 1e-8)


def fit(
    network: Network, train: Examples, validation: Examples, plan: Plan, rng: np.random.Generator
) -> tuple[dict[str, Array], float]:
    """Return the averaged parameters of the best epoch, and their validation accuracy."""
    parameters = network.initial(rng)
    average = _copy(parameters)
    adam = Adam(parameters, plan.rate)
    best, best_accuracy = _copy(average), 0.0
    for _ in range(plan.epochs):
        for batch in _batches(train, rng):
            words = _hide(batch.words, plan.hidden_words, rng)
            adam.step(network.gradients(parameters, words, batch.labels, rng))
            _follow(average, parameters)
        accuracy = accuracy_of(predict(network, average, validation.words), validation.labels)
        if accuracy > best_accuracy:
            best, best_accuracy = _copy(average), accuracy
    return best, best_accuracy


def predict(network: Network, parameters: Parameters, words: Array) -> Array:
    """Return probabilities, float32 (reviews, 2), computed in slices of reviews."""
    slices = range(0, len(words), PREDICT_AT_ONCE)
    return np.concatenate(
        [network.predict(parameters, words[start : start + PREDICT_AT_ONCE]) for start in slices]
    )


def accuracy_of(predictions: Array, labels: Array) -> float:
    """Return the share of rows whose larger probability is at their label."""
    return float((predictions.argmax(axis=1) == labels).mean())


def _batches(examples: Examples, rng: np.random.Generator) -> Iterator[Examples]:
    order = rng.permutation(len(examples.words))
    for rows in np.array_split(order, max(1, len(order) // BATCH_SIZE)):
        yield Examples(examples.words[rows], examples.labels[rows])


def _hide(words: Array, share: float, rng: np.random.Generator) -> Array:
    """Return `words` with a share of them unknown, so that rare words do not identify a review."""
    hidden = (rng.random(words.shape) < share) & (words != PAD_ID)
    return np.where(hidden, UNKNOWN_ID, words)


def _follow(average: dict[str, Array], parameters: Parameters) -> None:
    for name, value in parameters.items():
        average[name] += (1 - AVERAGE_KEEPS) * (value - average[name])


def _copy(parameters: Parameters) -> dict[str, Array]:
    return {name: value.copy() for name, value in parameters.items()}
