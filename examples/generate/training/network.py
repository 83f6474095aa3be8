"""The network, written in numpy: one recurrent layer over words, and its gradients.

A step: `input = embedding[word]`; a gated recurrent unit makes the new state from it and the old
state; the scores of the next word are `state @ embedding.T + score_bias`. So input and output share
the embedding, the largest table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Array = np.ndarray
Parameters = Mapping[str, Array]


class Lesson(NamedTuple):
    """The result of a pass over some words.

    `loss`: mean cross entropy, in nats a word; `state`: float32 (lanes, width), after the last
    word.
    """

    loss: float
    gradients: dict[str, Array]
    state: Array


def initial(vocabulary: int, width: int, rng: np.random.Generator) -> dict[str, Array]:
    """Return initial parameters, float32 by name."""

    def drawn(rows: int, columns: int, scale: float) -> Array:
        return (scale * rng.standard_normal((rows, columns))).astype(np.float32)

    return {
        "embedding": drawn(vocabulary, width, 0.1),
        "score_bias": np.zeros(vocabulary, np.float32),
        "from_input": drawn(width, 3 * width, width**-0.5),
        "from_state": drawn(width, 3 * width, width**-0.5),
        "input_bias": np.zeros(3 * width, np.float32),
        "state_bias": np.zeros(3 * width, np.float32),
    }


def lesson(parameters: Parameters, words: Array, state: Array, learns: bool = True) -> Lesson:
    """Predict each of `words`, int64 (steps + 1, lanes), from the words before it.

    The gradients of the mean loss, empty unless it `learns`, stop at `state`, the state after the
    words before.
    """
    p, (width, steps) = parameters, (state.shape[1], len(words) - 1)
    inputs = p["embedding"][words[:-1]]
    by_input = inputs @ p["from_input"] + p["input_bias"]
    states, kept = [state], []
    for step in range(steps):
        state, gates = _forward(p, by_input[step], state)
        states.append(state)
        kept.append(gates)
    after = np.stack(states[1:]).reshape(-1, width)
    scores = after @ p["embedding"].T + p["score_bias"]
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    rows, targets = np.arange(len(scores)), words[1:].ravel()
    loss = float(-np.log(scores[rows, targets] + 1e-9).mean())
    if not learns:
        return Lesson(loss, {}, state)
    scores[rows, targets] -= 1
    scores /= np.float32(len(scores))
    gradients = {
        "score_bias": scores.sum(axis=0),
        "embedding": scores.T @ after,
        "from_state": np.zeros_like(p["from_state"]),
    }
    upstream = (scores @ p["embedding"]).reshape(steps, -1, width)
    to_input, to_state = np.empty_like(by_input), np.empty_like(by_input)
    back = np.zeros_like(state)
    for step in reversed(range(steps)):
        back += upstream[step]
        to_input[step], to_state[step], back = _backward(p, kept[step], states[step], back)
    flat = to_state.reshape(-1, 3 * width)
    gradients["from_state"] = np.stack(states[:-1]).reshape(-1, width).T @ flat
    gradients["state_bias"] = flat.sum(axis=0)
    flat = to_input.reshape(-1, 3 * width)
    gradients["from_input"] = inputs.reshape(-1, width).T @ flat
    gradients["input_bias"] = flat.sum(axis=0)
    np.add.at(gradients["embedding"], words[:-1].ravel(), flat @ p["from_input"].T)
    return Lesson(loss, gradients, state)


def _forward(p: Parameters, by_input: Array, state: Array) -> tuple[Array, tuple[Array, ...]]:
    width = state.shape[1]
    by_state = state @ p["from_state"] + p["state_bias"]
    opened = _sigmoid(by_input[:, : 2 * width] + by_state[:, : 2 * width])
    reset, keep = opened[:, :width], opened[:, width:]
    held = by_state[:, 2 * width :]
    fresh = np.tanh(by_input[:, 2 * width :] + reset * held)
    return fresh + keep * (state - fresh), (reset, keep, held, fresh)


def _backward(
    p: Parameters, kept: tuple[Array, ...], state: Array, back: Array
) -> tuple[Array, Array, Array]:
    """Return the gradients at what the input, and the state, gave; and at the state before."""
    reset, keep, held, fresh = kept
    at_fresh = back * (1 - keep) * (1 - fresh * fresh)
    at_keep = back * (state - fresh) * keep * (1 - keep)
    at_reset = at_fresh * held * reset * (1 - reset)
    to_input = np.concatenate([at_reset, at_keep, at_fresh], axis=1)
    to_state = np.concatenate([at_reset, at_keep, at_fresh * reset], axis=1)
    return to_input, to_state, back * keep + to_state @ p["from_state"].T


def _sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-values))
