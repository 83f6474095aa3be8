"""Steps around the detector (DB): pictures to its input, and its map of text to boxes."""

from __future__ import annotations

import cv2
import numpy as np

from .planes import planes, tables

MAX_SIDE = 1280  # pixels of the longer side of the detector's input: time and memory grow with it
MULTIPLE = 32  # of both sides: the detector halves them five times

TEXT_PIXEL = 0.3  # value of the map from which a pixel counts as text
BOX_SCORE = 0.5  # minimum mean of the map within a box
UNCLIP = 2.2  # how far a box grows: the map shows only the core of a line
MIN_SIDE = 3  # pixels, of the map and of the picture: letters are not smaller
MAX_BOXES = 1000

_TABLES = tables(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def detector_input(image: np.ndarray) -> np.ndarray:
    """Return the detector's input for a picture: float32 [1, 3, height, width], sides multiples of
    32.
    """
    height, width = image.shape[:2]
    factor = min(1.0, MAX_SIDE / max(height, width))
    size = _side(width * factor), _side(height * factor)
    return planes(cv2.resize(image, size), _TABLES)[np.newaxis]


def find_boxes(text_map: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the boxes of the lines of text, in pixels of the picture, in no order.

    Args:
        text_map: float32 [map height, map width], the probability of text at each pixel.
        height: of the picture.
        width: of the picture.
    """
    text = (text_map > TEXT_PIXEL).astype(np.uint8)
    contours, _ = cv2.findContours(text, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    candidates = [_box(text_map, contour) for contour in contours[:MAX_BOXES]]
    boxes = np.array([box for box in candidates if box is not None], np.float32).reshape(-1, 4, 2)
    map_height, map_width = text_map.shape
    boxes *= np.float32([width / map_width, height / map_height])
    boxes = boxes.clip(0, np.float32([width - 1, height - 1]))
    sides = np.linalg.norm(boxes[:, [1, 3]] - boxes[:, :1], axis=2)
    return boxes[(sides >= MIN_SIDE).all(axis=1)]


def _side(length: float) -> int:
    return max(MULTIPLE, round(length / MULTIPLE) * MULTIPLE)


def _box(text_map: np.ndarray, contour: np.ndarray) -> np.ndarray | None:
    """Return the corners of a contour's rectangle, moved outwards; None if it is not text."""
    centre, (a, b), angle = cv2.minAreaRect(contour)
    if min(a, b) < MIN_SIDE or _score(text_map, contour) < BOX_SCORE:
        return None
    # A polygon library would offset the rectangle by area / perimeter * ratio.
    distance = UNCLIP * a * b / (2 * (a + b))
    return _clockwise(cv2.boxPoints((centre, (a + 2 * distance, b + 2 * distance), angle)))


def _score(text_map: np.ndarray, contour: np.ndarray) -> float:
    """Return the mean of the map within a contour."""
    x, y, width, height = cv2.boundingRect(contour)
    mask = np.zeros((height, width), np.uint8)
    cv2.fillPoly(mask, [contour], 1, offset=(-x, -y))
    return cv2.mean(text_map[y : y + height, x : x + width], mask)[0]


def _clockwise(corners: np.ndarray) -> np.ndarray:
    """Return four corners clockwise from the top left: (x, y) float32 [4, 2]."""
    by_x = corners[corners[:, 0].argsort(kind="stable")]
    top_left, bottom_left = by_x[:2][by_x[:2, 1].argsort(kind="stable")]
    top_right, bottom_right = by_x[2:][by_x[2:, 1].argsort(kind="stable")]
    return np.stack([top_left, top_right, bottom_right, bottom_left])
