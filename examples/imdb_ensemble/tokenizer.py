"""Words to ids: the one tokenizer that training, server and tests share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np

SEQUENCE_LENGTH = 256
HEAD_LENGTH = 128  # of a longer review the first and the last 128 words: verdicts stand at its end
MAX_CHARS = 32_768  # of a longer text only the two ends are read, so one request is bounded work
PAD_ID = 0
UNKNOWN_ID = 1
FIRST_WORD_ID = 2

_BREAK = re.compile(r"<br\s{0,8}/?>")
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")


def words_of(text: str) -> list[str]:
    """The lower-case words of `text`, line-break tags left out, apostrophes kept ("don't")."""
    if len(text) > MAX_CHARS:
        half = MAX_CHARS // 2
        text = f"{text[:half]} {text[-half:]}"
    return _WORD.findall(_BREAK.sub(" ", text.lower()))


def clip(words: list[str]) -> list[str]:
    """At most `SEQUENCE_LENGTH` words: all of a short review, the two ends of a long one."""
    if len(words) <= SEQUENCE_LENGTH:
        return words
    return words[:HEAD_LENGTH] + words[HEAD_LENGTH - SEQUENCE_LENGTH :]


class Tokenizer:
    """A fixed vocabulary. The id of a word is its place in it, after padding and unknown."""

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
        """How many ids there are, padding and unknown included: the rows of an embedding."""
        return FIRST_WORD_ID + len(self._ids)

    def encode(self, text: str) -> np.ndarray:
        """Ids of the words of `text`: int64, shape (256,), padded at the end with `PAD_ID`."""
        ids = [self._ids.get(word, UNKNOWN_ID) for word in clip(words_of(text))]
        padding = [PAD_ID] * (SEQUENCE_LENGTH - len(ids))
        return np.fromiter(chain(ids, padding), dtype=np.int64, count=SEQUENCE_LENGTH)
