"""The two networks, written in numpy: their predictions and their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from tokenizer import PAD_ID

Array = np.ndarray
Parameters = Mapping[str, Array]
LABELS = 2


class Network(Protocol):
    """A network without its weights: they are passed in, so that training can hold several sets."""

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """Return initial parameters, float32 by name; `embedding` has a row for each id."""
        ...

    def predict(self, parameters: Parameters, words: Array) -> Array:
        """Return probabilities, float32 (batch, 2): negative, positive. `words`: int64 (batch,
        length).
        """
        ...

    def gradients(
        self, parameters: Parameters, words: Array, labels: Array, rng: np.random.Generator
    ) -> dict[str, Array]:
        """Return the gradients of the mean cross entropy over the batch, one for each parameter."""
        ...


@dataclass(frozen=True)
class BagOfWords:
    """The sum of the words' embeddings over the root of their number, then one dense layer.

    With the root, three strong words decide a short review less surely than a hundred words decide
    a long one; with the number itself they would decide equally.
    """

    vocabulary: int
    width: int = 8

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        return {
            "embedding": _embedding(self.vocabulary, self.width, rng),
            "dense": _weights(self.width, LABELS, rng),
            "dense_bias": np.zeros(LABELS, np.float32),
        }

    def predict(self, parameters: Parameters, words: Array) -> Array:
        bag = parameters["embedding"][words].sum(axis=1) / _root_lengths(words)
        return _softmax(bag @ parameters["dense"] + parameters["dense_bias"])

    def gradients(
        self, parameters: Parameters, words: Array, labels: Array, rng: np.random.Generator
    ) -> dict[str, Array]:
        weights = self._word_weights(words)
        bag = weights @ parameters["embedding"]
        answers = _softmax(bag @ parameters["dense"] + parameters["dense_bias"])
        error = _error(answers, labels)
        return {
            "embedding": weights.T @ (error @ parameters["dense"].T),
            "dense": bag.T @ error,
            "dense_bias": error.sum(axis=0),
        }

    def _word_weights(self, words: Array) -> Array:
        """Return the weight of each word in its review, float32 (batch, vocabulary); padding has
        none.
        """
        cells = words + self.vocabulary * np.arange(len(words))[:, None]
        counts = np.bincount(cells.ravel(), minlength=len(words) * self.vocabulary)
        weights = counts.reshape(-1, self.vocabulary).astype(np.float32)
        weights[:, PAD_ID] = 0.0
        return weights / _root_lengths(words)


@dataclass(frozen=True)
class Convolution:
    """Filters over `span` words, their maxima over the review, then one dense layer."""

    vocabulary: int
    width: int = 16
    filters: int = 64
    span: int = 3
    dropout: float = 0.5

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        return {
            "embedding": _embedding(self.vocabulary, self.width, rng),
            "filters": _weights(self.span * self.width, self.filters, rng),
            "filters_bias": np.zeros(self.filters, np.float32),
            "dense": _weights(self.filters, LABELS, rng),
            "dense_bias": np.zeros(LABELS, np.float32),
        }

    def predict(self, parameters: Parameters, words: Array) -> Array:
        maxima, _ = self._maxima(parameters, words)
        return _softmax(maxima @ parameters["dense"] + parameters["dense_bias"])

    def gradients(
        self, parameters: Parameters, words: Array, labels: Array, rng: np.random.Generator
    ) -> dict[str, Array]:
        maxima, places = self._maxima(parameters, words)
        mask = self._dropout_mask(maxima.shape, rng)
        hidden = maxima * mask
        answers = _softmax(hidden @ parameters["dense"] + parameters["dense_bias"])
        error = _error(answers, labels)
        # Only the window with a filter's maximum, if above zero, has a gradient.
        upstream = (error @ parameters["dense"].T) * mask * (maxima > 0)
        seen = self._spans(words, places)
        inputs = parameters["embedding"][seen].reshape(*places.shape, -1)
        return {
            "embedding": self._embedding_gradient(parameters, seen, upstream),
            "filters": np.einsum("bf,bfi->if", upstream, inputs, optimize=True),
            "filters_bias": upstream.sum(axis=0),
            "dense": hidden.T @ error,
            "dense_bias": error.sum(axis=0),
        }

    def _maxima(self, parameters: Parameters, words: Array) -> tuple[Array, Array]:
        """Return each filter's maximum, float32 (batch, filters), and its first word's place."""
        windows = sliding_window_view(parameters["embedding"][words], self.span, axis=1)
        inputs = windows.transpose(0, 1, 3, 2).reshape(*windows.shape[:2], -1)
        answers = inputs @ parameters["filters"]
        places = answers.argmax(axis=1)
        largest = np.take_along_axis(answers, places[:, None, :], axis=1)[:, 0]
        return np.maximum(largest + parameters["filters_bias"], 0), places

    def _spans(self, words: Array, places: Array) -> Array:
        """Return the ids in the window at each of `places`: int64 (batch, filters, span)."""
        positions = places[:, :, None] + np.arange(self.span)
        return np.take_along_axis(words[:, None, :], positions, axis=2)

    def _dropout_mask(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        kept = (rng.random(shape) >= self.dropout).astype(np.float32)
        return kept / np.float32(1 - self.dropout)

    def _embedding_gradient(self, parameters: Parameters, seen: Array, upstream: Array) -> Array:
        """Return the gradient of the embeddings, float32 (vocabulary, width)."""
        rows = (upstream[:, :, None] * parameters["filters"].T).reshape(-1, self.width)
        columns = [np.bincount(seen.ravel(), column, self.vocabulary) for column in rows.T]
        gradient = np.stack(columns, axis=1).astype(np.float32)
        gradient[PAD_ID] = 0.0  # padding stays the zero vector
        return gradient


def _embedding(vocabulary: int, width: int, rng: np.random.Generator) -> Array:
    embedding = (0.1 * rng.standard_normal((vocabulary, width))).astype(np.float32)
    embedding[PAD_ID] = 0.0
    return embedding


def _weights(inputs: int, outputs: int, rng: np.random.Generator) -> Array:
    return (rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32)


def _root_lengths(words: Array) -> Array:
    """Return the root of the number of words without padding, at least 1: float32 (batch, 1)."""
    lengths = (words != PAD_ID).sum(axis=1, keepdims=True)
    return np.sqrt(np.maximum(lengths, 1)).astype(np.float32)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _error(answers: Array, labels: Array) -> Array:
    """Return the gradient of the mean cross entropy at the softmax's input."""
    return (answers - np.eye(LABELS, dtype=np.float32)[labels]) / np.float32(len(labels))
