"""Steps around the classifier of text that is upside down."""

from __future__ import annotations

import numpy as np

from .layout import longest
from .recognition import cut_line, stacked

WIDTH = 192  # pixels of a line; longer ones are squeezed
LINES = 6  # number of the longest lines, which vote


def classifier_input(image: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return some of the lines in the boxes, at least one: float32 [n, 3, 48, 192]."""
    return stacked([cut_line(image, box, WIDTH) for box in longest(boxes, LINES)], WIDTH)


def is_upside_down(probabilities: np.ndarray) -> bool:
    """Return the vote of the lines: float32 [n, 2], probabilities of upright and upside down."""
    return bool(probabilities[:, 1].mean() > 0.5)
