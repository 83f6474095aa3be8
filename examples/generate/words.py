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
    """The words that the model knows; each one's id is its place, from `FIRST_WORD`."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = ["", "", *words]
        self._ids = {word: place for place, word in enumerate(self._words) if word}

    @property
    def size(self) -> int:
        """Return how many ids there are, with those of the end and of an unknown word."""
        return len(self._words)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's words."""
        return [self._ids.get(word, UNKNOWN) for word in words_of(text)]

    def text_of(self, word_id: int) -> str:
        """Return what a word adds to a text: with a blank in front of it, but for marks."""
        word = self._words[word_id]
        return word if word in ".,!?" else f" {word}"

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read what `save` has written."""
        return cls(path.read_text(encoding="utf-8").split())

    @staticmethod
    def save(words: Iterable[str], path: Path) -> None:
        """Write one word a line."""
        path.write_text("\n".join(words) + "\n", encoding="utf-8")
