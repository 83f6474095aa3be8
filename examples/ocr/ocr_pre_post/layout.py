"""The direction of the text on a page, and the order of its lines."""

from __future__ import annotations

import numpy as np

TALL = (
    1.5  # height over width from which the text of a box runs downwards, unless most boxes differ
)
SAME_ROW = 0.5  # maximum distance of a box's centre from its row, as a share of the box's height


def along_the_text(boxes: np.ndarray) -> np.ndarray:
    """Return the boxes with their corners rotated so that text in tall boxes runs downwards.

    On a page that lies on its side, short words also count as rotated.
    """
    widths, heights = _sides(boxes)
    lies = heights[heights > TALL * widths].sum() > widths[widths > TALL * heights].sum()
    tall = heights > widths * (1 / TALL if lies else TALL)
    return np.where(tall[:, np.newaxis, np.newaxis], np.roll(boxes, -1, axis=1), boxes)


def upside_down(boxes: np.ndarray) -> np.ndarray:
    """Return the boxes for text that is upside down."""
    return np.roll(boxes, 2, axis=1)


def longest(boxes: np.ndarray, number: int) -> np.ndarray:
    """Return the `number` boxes with the longest lines."""
    widths, heights = _sides(boxes)
    return boxes[(heights / widths.clip(1)).argsort(kind="stable")[:number]]


def reading_order(boxes: np.ndarray) -> list[int]:
    """Return the indexes of the boxes in reading order: row by row, each row from its start.

    Rows follow the direction of the text, so a page may be slightly turned, or lie on its side.
    Columns are not recognised.
    """
    if not len(boxes):
        return []
    along, across, heights = _by_the_text(boxes)
    rows: list[list[int]] = []
    for index in map(int, across.argsort(kind="stable")):
        last = rows[-1][-1] if rows else index
        same = SAME_ROW * min(heights[index], heights[last])
        if rows and across[index] - across[last] < same:
            rows[-1].append(index)
        else:
            rows.append([index])
    return [index for row in rows for index in sorted(row, key=lambda place: along[place])]


def _by_the_text(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the centres along and across the lines, and the heights, float [n] each."""
    widths, heights = _sides(boxes)
    directions = (boxes[:, 1] - boxes[:, 0])[widths >= np.median(widths)]
    x_way, y_way = np.median(directions / np.hypot(*directions.T)[:, np.newaxis], axis=0)
    x, y = boxes.mean(axis=1).T
    return x * x_way + y * y_way, y * x_way - x * y_way, heights


def _sides(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of the sides along and across the text, float [n] each."""
    return np.hypot(*(boxes[:, 1] - boxes[:, 0]).T), np.hypot(*(boxes[:, 3] - boxes[:, 0]).T)
