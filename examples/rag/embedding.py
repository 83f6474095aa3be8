"""An embedding without training: a random direction for each word and each piece of a word.

Texts that share rare words, or rare pieces of words, have similar directions. Any other embedding
model can replace it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

BUCKETS, WIDTH, SEED = 16384, 384, 20_261_129
_WORD = re.compile(r"[a-z]{3,}")
_PIECE = 4


class Embedding:
    """Makes vectors of length 1 from texts; rare words have a larger weight.

    Args:
        texts: the texts to search, which define how rare a word is.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._directions = (
            np.random.default_rng(SEED).standard_normal((BUCKETS, WIDTH)).astype(np.float32)
        )
        counts = np.zeros(BUCKETS, np.float32)  # number of texts with a feature
        for text in texts:
            counts[[*{bucket for bucket, _ in _features(text)}]] += 1
        rarity = np.log((len(texts) + 1) / (counts + 0.5)).clip(0.05)
        self._weights = np.where(counts > 0, rarity, 0.0).astype(np.float32)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return a row for each text, float32."""
        rows = np.zeros((len(texts), WIDTH), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for bucket, weight in _features(text):
                row += weight * self._weights[bucket] * self._directions[bucket]
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def _features(text: str) -> Iterator[tuple[int, float]]:
    for word in _WORD.findall(text.lower()):
        yield _bucket(word), 2.0
        padded = f"<{word}>"
        for at in range(len(padded) - _PIECE + 1):
            yield _bucket(padded[at : at + _PIECE]), 0.5


def _bucket(feature: str) -> int:
    return zlib.crc32(feature.encode()) % BUCKETS
