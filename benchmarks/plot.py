"""Figures over time as a PNG: one panel for each, with its least and greatest value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

_WIDTH, _HEIGHT, _EDGE = 720, 90, 24


def plot(
    path: Path, title: str, at_s: Sequence[float], figures: Mapping[str, Sequence[float]]
) -> None:
    """Write the panels; each begins at 0, so that a flat line is one that does not grow."""
    from PIL import Image, ImageDraw  # of the extra dev

    image = Image.new("RGB", (_WIDTH, _EDGE + (_HEIGHT + _EDGE) * len(figures)), "white")
    draw = ImageDraw.Draw(image)
    draw.text((4, 6), f"{title}: {at_s[-1] / 60:.0f} minutes", "black")
    for row, (name, values) in enumerate(figures.items()):
        top = _EDGE + row * (_HEIGHT + _EDGE)
        draw.rectangle((0, top, _WIDTH - 1, top + _HEIGHT), outline="lightgrey")
        draw.line(list(_points(at_s, values, top)), "navy", 2)
        low, high = min(values), max(values)
        draw.text((4, top + _HEIGHT + 4), f"{name}: {low:,.1f} to {high:,.1f}", "black")
    image.save(path)


def _points(at_s: Sequence[float], values: Sequence[float], top: int) -> list[tuple[float, float]]:
    most_s, most = max(at_s[-1], 1e-9), max(*values, 1e-9)
    return [
        (at / most_s * (_WIDTH - 1), top + _HEIGHT * (1 - value / most))
        for at, value in zip(at_s, values, strict=True)
    ]
