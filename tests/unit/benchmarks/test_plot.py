"""Plots of a soak."""

from __future__ import annotations

import pytest

from benchmarks.plot import plot

image = pytest.importorskip("PIL.Image")


def test_a_figure_that_grows_is_a_line_that_rises(tmp_path):
    path = tmp_path / "soak.png"
    flat, rising = [5.0] * 11, [float(value) for value in range(11)]
    plot(path, "soak", [60.0 * at for at in range(11)], {"flat": flat, "rising": rising})
    picture = image.open(path).convert("RGB")
    navy = {
        (x, y)
        for x in range(picture.width)
        for y in range(picture.height)
        if picture.getpixel((x, y)) == (0, 0, 128)
    }
    half = picture.height // 2
    upper = {y for _, y in navy if y < half}
    lower = {y for _, y in navy if y >= half}
    assert len(upper) <= 3
    assert len(lower) > 80
