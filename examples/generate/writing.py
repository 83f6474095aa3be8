"""One word after the other: what the service's Op and the plain loop of measure.py both do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from words import END, UNKNOWN

WIDTH = 144
CHOICES = 40  # words that the next one is drawn from

Run = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(word int64 (rows,), state float32 (rows, WIDTH)) -> (scores (rows, words), next state)"""

Kept = dict[str, Any]
"""What is kept of a text: `word`, the last one; `state` behind those before it; `draws`; `left`."""


def begin(run: Run, prompt: Sequence[int], seed: int, most: int) -> Kept:
    """Read a prompt, the ids of its words; return what is kept of it. `most`: words to write."""
    state = np.zeros((1, WIDTH), np.float32)
    word = END  # every review of the training began behind one
    for following in prompt:
        state = run(np.array([word], np.int64), state)[1]
        word = following
    return {"word": word, "state": state[0], "draws": np.random.default_rng(seed), "left": most}


def step(run: Run, texts: Sequence[Kept], temperature: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Write the next word of each text; return these, int64, and whether it is the last one.

    `temperature`: float32, one for each text; the lower, the likelier are the words that are.
    """
    words = np.array([kept["word"] for kept in texts], np.int64)
    scores, states = run(words, np.stack([kept["state"] for kept in texts]))
    scores[:, UNKNOWN] = -np.inf
    best = np.argpartition(scores, -CHOICES, axis=1)[:, -CHOICES:]
    kept_scores = np.take_along_axis(scores, best, axis=1) / temperature[:, None]
    shares = np.exp(kept_scores - kept_scores.max(axis=1, keepdims=True)).cumsum(axis=1)
    drawn = np.array([kept["draws"].random() for kept in texts])[:, None] * shares[:, -1:]
    places = (shares <= drawn).sum(axis=1)
    words = best[np.arange(len(best)), np.minimum(places, CHOICES - 1)]
    done = words == END
    for row, kept in enumerate(texts):
        kept.update(word=int(words[row]), state=states[row], left=kept["left"] - 1)
        done[row] |= kept["left"] <= 0
    return words, done
