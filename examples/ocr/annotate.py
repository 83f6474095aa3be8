"""Draws a picture beside its text, with each line in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from ocr_pre_post.picture import decode

_RED, _BLUE, _BLACK = (40, 40, 220), (200, 80, 20), (30, 30, 30)
_HAS_LETTERS = hasattr(cv2, "FontFace")  # from OpenCV 5 on: a built-in font, also for Chinese


def annotated(file: bytes, lines: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return uint8 [height, 2 x width, 3]: numbered boxes on the left, the texts on the right."""
    picture, scale = decode(file)
    left, right = picture.copy(), np.full_like(picture, 255)
    for number, line in enumerate(lines, 1):
        box = np.array(line["box"], np.float32) / scale
        corners = [box.round().astype(np.int32)]
        for side in (left, right):
            cv2.polylines(side, corners, True, _RED, 1, cv2.LINE_AA)
        _number(left, str(number), box)
        _text(right, line["text"], box)
    return np.hstack([left, right])


def _number(image: np.ndarray, number: str, box: np.ndarray) -> None:
    x, y = box[0]
    at = (max(0, int(x) - 10 * len(number) - 2), max(10, int(y) + 10))
    cv2.putText(image, number, at, cv2.FONT_HERSHEY_SIMPLEX, 0.45, _BLUE, 1, cv2.LINE_AA)


def _text(image: np.ndarray, text: str, box: np.ndarray) -> None:
    """Draw the text as large as its box allows; OpenCV 4 can only draw ASCII."""
    width = float(np.hypot(*(box[1] - box[0])))
    height = float(np.hypot(*(box[3] - box[0])))
    at = (int(box[3][0]) + 2, int(box[3][1] - 0.25 * height))
    if _HAS_LETTERS:
        face = cv2.FontFace("sans")
        size = max(6, round(0.65 * height))
        _, _, wide, _ = cv2.getTextSize(image.shape[1::-1], text, at, face, size)
        size = max(6, int(size * min(1.0, width / max(wide, 1))))
        cv2.putText(image, text, at, _BLACK, face, size)
        return
    plain = text.encode("ascii", "replace").decode()
    (wide, _), _ = cv2.getTextSize(plain, cv2.FONT_HERSHEY_SIMPLEX, 1.0, 1)
    factor = min(height / 40, width / max(wide, 1))
    cv2.putText(image, plain, at, cv2.FONT_HERSHEY_SIMPLEX, factor, _BLACK, 1, cv2.LINE_AA)
