"""Steps around the recogniser (CTC): boxes to lines of one height, and its output to text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import cv2
import numpy as np

from .planes import planes, tables

HEIGHT = 48  # pixels of every line
MIN_WIDTH, MAX_WIDTH = (
    48,
    2400,
)  # a longer line is squeezed: time grows with the square of the width
MULTIPLE = 16  # widths are padded to a multiple, so that engines see few shapes
LINES_A_CALL = 2  # in a mini-batch: on a CPU larger ones only add padding; on a GPU they are faster

_TABLES = tables(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))

_BLANK = 0


class Batch(NamedTuple):
    """A mini-batch: `x` float32 [n, 3, 48, width], and the places of its lines."""

    places: list[int]
    x: np.ndarray


class Reading(NamedTuple):
    """The text of a line, and its score from 0 to 1."""

    text: str
    score: float


def cut_line(image: np.ndarray, box: np.ndarray, max_width: int = MAX_WIDTH) -> np.ndarray:
    """Return the text in a box from left to right: uint8 [48, width, 3]."""
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
    """Return the lines in mini-batches of at most `size`, of similar widths, to reduce padding."""
    by_width = sorted(range(len(lines)), key=lambda place: lines[place].shape[1])
    groups = [by_width[at : at + size] for at in range(0, len(lines), size)]
    return [Batch(places, stacked([lines[place] for place in places])) for places in groups]


def in_order(
    places: Sequence[Sequence[int]], readings: Sequence[Sequence[Reading]]
) -> list[Reading]:
    """Return the readings of mini-batches in the order of their lines."""
    pairs = zip(chain(*places), chain(*readings), strict=True)
    return [reading for _, reading in sorted(pairs, key=lambda pair: pair[0])]


def stacked(lines: Sequence[np.ndarray], width: int = 0) -> np.ndarray:
    """Return lines as float32 [n, 3, 48, width], padded on the right with 0, which is grey.

    Without a width it is that of the widest line, rounded up.
    """
    if not width:
        width = -(-max(line.shape[1] for line in lines) // MULTIPLE) * MULTIPLE
    x = np.zeros((len(lines), 3, HEIGHT, width), np.float32)
    for row, line in zip(x, lines, strict=True):
        row[:, :, : line.shape[1]] = planes(line, _TABLES)
    return x


def read_lines(probabilities: np.ndarray, characters: Sequence[str]) -> list[Reading]:
    """Return the best reading of each line.

    Args:
        probabilities: float32 [lines, steps, classes]; class 0 is CTC's blank.
        characters: of the classes from 1 on.
    """
    best = probabilities.argmax(axis=2)
    sure = np.take_along_axis(probabilities, best[:, :, np.newaxis], axis=2)[:, :, 0]
    return [_reading(*line, characters) for line in zip(best, sure, strict=True)]


def _reading(best: np.ndarray, sure: np.ndarray, characters: Sequence[str]) -> Reading:
    """Join repeated characters of neighbouring steps; a blank separates two equal characters."""
    starts = np.insert(best[1:] != best[:-1], 0, True) & (best != _BLANK)
    text = "".join(characters[place - 1] for place in best[starts])
    return Reading(text, float(sure[starts].mean()) if text else 0.0)
