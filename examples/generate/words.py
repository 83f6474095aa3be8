"""Words of a review and their ids, for training and serving alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

END, UNKNOWN = 0, 1
FIRST_WORD = 2
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[.,!?]")
_MARKUP = re.compile(r"<[^>]*>")


def words_of(text: str) -> list[str]:
    """Return the words and marks of a text, in lower case."""
    return _WORD.findall(_MARKUP.sub(" ", text.lower()))


class Vocabulary:
    """The words of the model; a word's id is its place, from `FIRST_WORD`."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = ["", "", *words]
        self._ids = {word: place for place, word in enumerate(self._words) if word}

    @property
    def size(self) -> int:
        """Return the number of ids, with those of the end and of unknown words."""
        return len(self._words)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's words."""
        return [self._ids.get(word, UNKNOWN) for word in words_of(text)]

    def text_of(self, word_id: int) -> str:
        """Return a word with the blank before it; punctuation marks have no blank."""
        word = self._words[word_id]
        return word if word in ".,!?" else f" {word}"

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read a file that `save` wrote."""
        return cls(path.read_text(encoding="utf-8").split())

    @staticmethod
    def save(words: Iterable[str], path: Path) -> None:
        """Write one word on each line."""
        path.write_text("\n".join(words) + "\n", encoding="utf-8")
