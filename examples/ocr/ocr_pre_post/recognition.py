"""Before and after the recogniser (CTC): boxes to lines of one height, its numbers to text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import cv2
import numpy as np

from .planes import planes, tables

HEIGHT = 48  # pixels that the recogniser sees of every line
MIN_WIDTH, MAX_WIDTH = 48, 2400  # a longer line is squeezed: time grows with the square of it
MULTIPLE = 16  # widths are padded to it, so that engines see few shapes
LINES_A_CALL = 2  # in a mini-batch: on a CPU more gain nothing and pad more; on a GPU they do gain

_TABLES = tables(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))

_BLANK = 0


class Batch(NamedTuple):
    """A mini-batch: `x` float32 [n, 3, 48, width], and of which lines."""

    places: list[int]
    x: np.ndarray


class Reading(NamedTuple):
    """What a line says, and how sure that is, 0 to 1."""

    text: str
    score: float


def cut_line(image: np.ndarray, box: np.ndarray, max_width: int = MAX_WIDTH) -> np.ndarray:
    """uint8 [48, width, 3]: the text in a box, from left to right."""
    across = max(np.hypot(*(box[1] - box[0])), np.hypot(*(box[2] - box[3])))
    down = max(np.hypot(*(box[3] - box[0])), np.hypot(*(box[2] - box[1])))
    width, height = max(1, round(float(across))), max(1, round(float(down)))
    corners = np.float32([[0, 0], [width, 0], [width, height], [0, height]])
    matrix = cv2.getPerspectiveTransform(box.astype(np.float32), corners)
    line = cv2.warpPerspective(
        image, matrix, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    wide = min(max(round(width * HEIGHT / height), MIN_WIDTH), max_width)
    return cv2.resize(line, (wide, HEIGHT))


def mini_batches(lines: Sequence[np.ndarray], size: int) -> list[Batch]:
    """The lines in mini-batches of at most `size`, like widths together, so little is padding."""
    by_width = sorted(range(len(lines)), key=lambda place: lines[place].shape[1])
    groups = [by_width[at : at + size] for at in range(0, len(lines), size)]
    return [Batch(places, stacked([lines[place] for place in places])) for places in groups]


def in_order(
    places: Sequence[Sequence[int]], readings: Sequence[Sequence[Reading]]
) -> list[Reading]:
    """The readings of mini-batches in the order of their lines."""
    pairs = zip(chain(*places), chain(*readings), strict=True)
    return [reading for _, reading in sorted(pairs, key=lambda pair: pair[0])]


def stacked(lines: Sequence[np.ndarray], width: int = 0) -> np.ndarray:
    """float32 [n, 3, 48, width] of lines; padded on the right with 0, which is grey.

    Without a width as wide as the widest line, or a little wider.
    """
    if not width:
        width = -(-max(line.shape[1] for line in lines) // MULTIPLE) * MULTIPLE
    x = np.zeros((len(lines), 3, HEIGHT, width), np.float32)
    for row, line in zip(x, lines, strict=True):
        row[:, :, : line.shape[1]] = planes(line, _TABLES)
    return x


def read_lines(probabilities: np.ndarray, characters: Sequence[str]) -> list[Reading]:
    """The best reading of each line.

    Args:
        probabilities: float32 [lines, steps, classes]; class 0 is the blank of CTC.
        characters: of the classes from 1 on.
    """
    best = probabilities.argmax(axis=2)
    sure = np.take_along_axis(probabilities, best[:, :, np.newaxis], axis=2)[:, :, 0]
    return [_reading(*line, characters) for line in zip(best, sure, strict=True)]


def _reading(best: np.ndarray, sure: np.ndarray, characters: Sequence[str]) -> Reading:
    """A character that stands at several steps in a row is one; a blank parts two equal ones."""
    starts = np.insert(best[1:] != best[:-1], 0, True) & (best != _BLANK)
    text = "".join(characters[place - 1] for place in best[starts])
    return Reading(text, float(sure[starts].mean()) if text else 0.0)
