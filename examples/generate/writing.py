"""Writes texts word by word, for the service's Op and for the plain loop of measure.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from words import END, UNKNOWN

WIDTH = 144
CHOICES = 40  # number of likely words from which the next one is drawn

Run = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(word int64 (rows,), state float32 (rows, WIDTH)) -> (scores (rows, words), next state)"""

Text = dict[str, Any]
"""A running text: `word` (the last one), `state` (of the words before it), `draws`, `left`."""


def begin(run: Run, prompt: Sequence[int], seed: int, most: int) -> Text:
    """Read a prompt, the ids of its words; return the text. `most`: number of words to write."""
    state = np.zeros((1, WIDTH), np.float32)
    word = END  # in the training, every review followed an END
    for following in prompt:
        state = run(np.array([word], np.int64), state)[1]
        word = following
    return {"word": word, "state": state[0], "draws": np.random.default_rng(seed), "left": most}


def step(run: Run, texts: Sequence[Text], temperature: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Write the next word of each text; return the words, int64, and which are the last ones.

    `temperature`: float32, one for each text; a low one favours likely words.
    """
    words = np.array([text["word"] for text in texts], np.int64)
    scores, states = run(words, np.stack([text["state"] for text in texts]))
    scores[:, UNKNOWN] = -np.inf
    best = np.argpartition(scores, -CHOICES, axis=1)[:, -CHOICES:]
    best_scores = np.take_along_axis(scores, best, axis=1) / temperature[:, None]
    shares = np.exp(best_scores - best_scores.max(axis=1, keepdims=True)).cumsum(axis=1)
    drawn = np.array([text["draws"].random() for text in texts])[:, None] * shares[:, -1:]
    places = (shares <= drawn).sum(axis=1)
    words = best[np.arange(len(best)), np.minimum(places, CHOICES - 1)]
    done = words == END
    for row, text in enumerate(texts):
        text.update(word=int(words[row]), state=states[row], left=text["left"] - 1)
        done[row] |= text["left"] <= 0
    return words, done
