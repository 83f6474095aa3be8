"""Measures the accuracy of the service on rendered pages: python accuracy.py

Accuracy is 1 - edit distance / length, over all pages together, with the lines of a page in reading
order; once with spaces and line breaks, once without. Needs Pillow and fonts, see
rendering/fonts.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from client import ask_grpc
from rendering.pages import Page, pages
from serving import CONFIG, running

from pipeline import PipelineClient

KINDS = ("Latin", "Chinese", "both")  # the kind of page i: i modulo 3


class Count(NamedTuple):
    """Number of characters, and of characters that must be changed, removed or inserted."""

    characters: int
    wrong: int

    @property
    def accuracy(self) -> float:
        return 1 - self.wrong / self.characters


def edit_distance(one: str, other: str) -> int:
    """Return the minimum number of characters to insert, delete or replace."""
    letters = np.array([ord(letter) for letter in other], np.int64)
    offsets = np.arange(len(other) + 1)
    row = offsets.copy()
    for number, letter in enumerate(one, 1):
        replaced = row[:-1] + (letters != ord(letter))
        row[1:] = np.minimum(row[1:] + 1, replaced)
        row[0] = number
        # Insertions run along the row: the minimum over all earlier places, plus the distance.
        row = np.minimum.accumulate(row - offsets) + offsets
    return int(row[-1])


def counted(expected: Sequence[str], read: Sequence[str], spaces: bool) -> Count:
    """Compare the two texts of one page."""
    texts = ["\n".join(lines) for lines in (expected, read)]
    if not spaces:
        texts = ["".join(text.split()) for text in texts]
    return Count(len(texts[0]), edit_distance(*texts))


def total(counts: Sequence[Count]) -> Count:
    return Count(sum(c.characters for c in counts), sum(c.wrong for c in counts))


def read_all(rendered: Sequence[Page], endpoint: str) -> list[list[str]]:
    """Return the lines that the service reads on each page."""
    with PipelineClient() as client:
        client.connect([endpoint])
        return [[line["text"] for line in ask_grpc(client, page.file)] for page in rendered]


def show(rendered: Sequence[Page], read: Sequence[Sequence[str]]) -> None:
    for start, kind in (*enumerate(KINDS), (None, "all")):
        places = range(len(rendered)) if start is None else range(start, len(rendered), len(KINDS))
        with_spaces, without = (
            total([counted(rendered[place].lines, read[place], spaces) for place in places])
            for spaces in (True, False)
        )
        print(
            f"{kind:8} {len(places):3} pages {with_spaces.characters:6} characters: "
            f"{with_spaces.accuracy:.4f} with spaces, {without.accuracy:.4f} without"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--pages", type=int, default=36)
    parser.add_argument("--seed", type=int, default=2026)
    arguments = parser.parse_args()
    rendered = pages(arguments.pages, arguments.seed)
    with running(arguments.config) as service:
        show(rendered, read_all(rendered, service.endpoint))


if __name__ == "__main__":
    main()
