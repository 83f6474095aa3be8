"""Pixels to the numbers that models are fed."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np


def tables(mean: Sequence[float], std: Sequence[float]) -> list[np.ndarray]:
    """For each colour the float32 [256] of what its 256 values become."""
    values = np.arange(256, dtype=np.float32) / 255
    return [((values - m) / s).astype(np.float32) for m, s in zip(mean, std, strict=True)]


def planes(image: np.ndarray, colour_tables: Sequence[np.ndarray]) -> np.ndarray:
    """float32 [3, height, width] of a picture: a table look-up is cheaper than arithmetic."""
    pairs = zip(cv2.split(image), colour_tables, strict=True)
    return np.stack([cv2.LUT(plane, table) for plane, table in pairs])
