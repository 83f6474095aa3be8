"""The tokenizer, shared by training, server and tests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np

SEQUENCE_LENGTH = 256
HEAD_LENGTH = (
    128  # a longer review keeps its first and last 128 words: the verdict is often at the end
)
MAX_CHARS = 32_768  # of a longer text only both ends are read, which bounds the work of a request
PAD_ID = 0
UNKNOWN_ID = 1
FIRST_WORD_ID = 2

_BREAK = re.compile(r"<br\s{0,8}/?>")
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")


def words_of(text: str) -> list[str]:
    """Return the words of `text` in lower case, with apostrophes, without line-break tags."""
    if len(text) > MAX_CHARS:
        half = MAX_CHARS // 2
        text = f"{text[:half]} {text[-half:]}"
    return _WORD.findall(_BREAK.sub(" ", text.lower()))


def clip(words: list[str]) -> list[str]:
    """Return at most `SEQUENCE_LENGTH` words: a short review, or both ends of a long one."""
    if len(words) <= SEQUENCE_LENGTH:
        return words
    return words[:HEAD_LENGTH] + words[HEAD_LENGTH - SEQUENCE_LENGTH :]


class Tokenizer:
    """A fixed vocabulary. A word's id is its place, after the ids of padding and unknown."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self._ids = {word: id_ for id_, word in enumerate(vocabulary, start=FIRST_WORD_ID)}

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a vocabulary file: UTF-8, one word a line, the most frequent first."""
        return cls(Path(path).read_text(encoding="utf-8").split())

    def save(self, path: str | Path) -> None:
        """Write the vocabulary file that `load` reads."""
        Path(path).write_text("".join(f"{word}\n" for word in self._ids), encoding="utf-8")

    @property
    def size(self) -> int:
        """Return the number of ids, with padding and unknown: the rows of an embedding."""
        return FIRST_WORD_ID + len(self._ids)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of the words of `text`: int64 (256,), padded at the end with `PAD_ID`."""
        ids = [self._ids.get(word, UNKNOWN_ID) for word in clip(words_of(text))]
        padding = [PAD_ID] * (SEQUENCE_LENGTH - len(ids))
        return np.fromiter(chain(ids, padding), dtype=np.int64, count=SEQUENCE_LENGTH)
