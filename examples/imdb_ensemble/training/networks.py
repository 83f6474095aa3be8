"""The two member networks and their training, by hand in numpy: no framework to install."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from tokenizer import PAD_ID, UNKNOWN_ID

Array = np.ndarray
Parameters = dict[str, Array]
LABELS = 2


class Network(Protocol):
    """What `fit` trains: parameters by name, and how they answer and change."""

    parameters: Parameters

    def predict(self, words: Array) -> Array:
        """Probabilities, float32 (batch, 2), of the negative and the positive label."""
        ...

    def gradients(self, words: Array, labels: Array, rng: np.random.Generator) -> Parameters:
        """Of the mean cross entropy over the batch, one for every parameter."""
        ...


class BagOfWords:
    """The mean of the words' embeddings, then one dense layer."""

    def __init__(self, vocabulary: int, width: int, rng: np.random.Generator) -> None:
        self.parameters: Parameters = {
            "embedding": _embedding(vocabulary, width, rng),
            "dense": _weights((width, LABELS), width, rng),
            "dense_bias": np.zeros(LABELS, np.float32),
        }

    def predict(self, words: Array) -> Array:
        embedded = self.parameters["embedding"][words]
        mean = embedded.sum(axis=1) / _lengths(words)
        return _softmax(mean @ self.parameters["dense"] + self.parameters["dense_bias"])

    def gradients(self, words: Array, labels: Array, rng: np.random.Generator) -> Parameters:
        dense = self.parameters["dense"]
        shares = self._word_shares(words)
        mean = shares @ self.parameters["embedding"]
        scores = _softmax(mean @ dense + self.parameters["dense_bias"])
        error = _error(scores, labels)
        embedding = shares.T @ (error @ dense.T)
        return {"embedding": embedding, "dense": mean.T @ error, "dense_bias": error.sum(axis=0)}

    def _word_shares(self, words: Array) -> Array:
        """float32 (batch, vocabulary): the share of a review that each word is."""
        batch, vocabulary = len(words), len(self.parameters["embedding"])
        cells = words + vocabulary * np.arange(batch)[:, None]
        counts = np.bincount(cells.ravel(), minlength=batch * vocabulary)
        shares = counts.reshape(batch, vocabulary).astype(np.float32)
        shares[:, PAD_ID] = 0.0
        return shares / _lengths(words)


class Convolution:
    """A convolution over the words' embeddings, its maxima over the review, one dense layer."""

    def __init__(
        self, vocabulary: int, width: int, filters: int, span: int, rng: np.random.Generator, drop: float=0.5
    ) -> None:
        self.span = span
        self.drop=drop
        self.parameters: Parameters = {
            "embedding": _embedding(vocabulary, width, rng),
            "filters": _weights((span * width, filters), span * width, rng),
            "filters_bias": np.zeros(filters, np.float32),
            "dense": _weights((filters, LABELS), filters, rng),
            "dense_bias": np.zeros(LABELS, np.float32),
        }

    def predict(self, words: Array) -> Array:
        maxima, _ = self._maxima(words)
        return _softmax(maxima @ self.parameters["dense"] + self.parameters["dense_bias"])

    def gradients(self, words: Array, labels: Array, rng: np.random.Generator) -> Parameters:
        maxima, places = self._maxima(words)
        kept = (rng.random(maxima.shape) >= self.drop) / np.float32(1 - self.drop)
        hidden = maxima * kept.astype(np.float32)
        dense = self.parameters["dense"]
        scores = _softmax(hidden @ dense + self.parameters["dense_bias"])
        error = _error(scores, labels)
        # Only the window that was a filter's maximum, and only above zero, has a gradient.
        upstream = (error @ dense.T) * kept.astype(np.float32) * (maxima > 0)
        spans = self._spans(words, places)
        chosen = self.parameters["embedding"][spans].reshape(*places.shape, -1)
        per_span = upstream[:, :, None] * self.parameters["filters"].T
        width = self.parameters["embedding"].shape[1]
        return {
            "embedding": _scatter(spans.ravel(), per_span.reshape(-1, width), self.parameters),
            "filters": np.einsum("bf,bfi->if", upstream, chosen, optimize=True),
            "filters_bias": upstream.sum(axis=0),
            "dense": hidden.T @ error,
            "dense_bias": error.sum(axis=0),
        }

    def _maxima(self, words: Array) -> tuple[Array, Array]:
        """Of every filter, float32 and int (batch, filters): its largest answer and where."""
        embedded = self.parameters["embedding"][words]
        windows = sliding_window_view(embedded, self.span, axis=1)  # (batch, places, width, span)
        flat = windows.transpose(0, 1, 3, 2).reshape(*windows.shape[:2], -1)
        answers = flat @ self.parameters["filters"]
        places = answers.argmax(axis=1)
        best = np.take_along_axis(answers, places[:, None, :], axis=1)[:, 0]
        return np.maximum(best + self.parameters["filters_bias"], 0), places

    def _spans(self, words: Array, places: Array) -> Array:
        """The ids in the window at each place: (batch, filters, span)."""
        positions = places[:, :, None] + np.arange(self.span)
        return np.take_along_axis(words[:, None, :], positions, axis=2)


@dataclass
class Adam:
    """Adam with decoupled weight decay, one step at a time."""

    rate: float
    decay: float = 0.0
    _steps: int = 0
    _means: Parameters = field(default_factory=dict)
    _squares: Parameters = field(default_factory=dict)

    def step(self, parameters: Parameters, gradients: Parameters) -> None:
        """Move every parameter, in place."""
        self._steps += 1
        bias = np.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps)
        for name, gradient in gradients.items():
            mean = self._means.setdefault(name, np.zeros_like(parameters[name]))
            square = self._squares.setdefault(name, np.zeros_like(parameters[name]))
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            change = bias * mean / (np.sqrt(square) + 1e-8)
            if self.decay and name in('embedding',): change = change + self.decay * parameters[name]
            parameters[name] -= np.float32(self.rate) * change.astype(np.float32)
        parameters["embedding"][PAD_ID] = 0.0


def epochs(network, words, labels, *, rate, decay, drop, batch, rng, ema=0.0) -> Iterator[None]:
    adam = Adam(rate, decay)
    live = network.parameters
    slow = {k: v.copy() for k, v in live.items()}
    while True:
        for rows in np.array_split(rng.permutation(len(words)), len(words) // batch):
            seen = words[rows]
            hidden = (rng.random(seen.shape) < drop) & (seen != PAD_ID)
            seen = np.where(hidden, UNKNOWN_ID, seen)
            adam.step(live, network.gradients(seen, labels[rows], rng))
            if ema:
                for k in live: slow[k] += np.float32(1-ema)*(live[k]-slow[k])
        if ema: network.parameters = slow
        yield
        network.parameters = live


def _embedding(vocabulary: int, width: int, rng: np.random.Generator) -> Array:
    embedding = (0.1*rng.standard_normal((vocabulary, width))).astype(np.float32)
    embedding[PAD_ID] = 0.0
    return embedding


def _weights(shape, inputs: int, rng: np.random.Generator) -> Array:
    return (rng.standard_normal(shape) * np.sqrt(2 / inputs)).astype(np.float32)


def _lengths(words: Array) -> Array:
    return np.maximum((words != PAD_ID).sum(axis=1, keepdims=True), 1).astype(np.float32)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _error(scores: Array, labels: Array) -> Array:
    return (scores - np.eye(LABELS, dtype=np.float32)[labels]) / np.float32(len(labels))


def _scatter(ids: Array, rows: Array, parameters: Parameters) -> Array:
    embedding = parameters["embedding"]
    size = len(embedding)
    return np.stack(
        [np.bincount(ids, column, size) for column in rows.T], axis=1
    ).astype(np.float32)
