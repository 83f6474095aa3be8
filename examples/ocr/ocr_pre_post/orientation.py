"""Before and after the classifier that tells whether text stands on its head."""

from __future__ import annotations

import numpy as np

from .layout import longest
from .recognition import cut_line, stacked

WIDTH = 192  # pixels that the classifier sees of a line; longer ones are squeezed
LINES = 6  # that vote on a page: the longest say most


def classifier_input(image: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """float32 [n, 3, 48, 192] of some of the lines in at least one box."""
    return stacked([cut_line(image, box, WIDTH) for box in longest(boxes, LINES)], WIDTH)


def is_upside_down(probabilities: np.ndarray) -> bool:
    """The vote of the lines: float32 [n, 2], how likely each is upright and on its head."""
    return bool(probabilities[:, 1].mean() > 0.5)
