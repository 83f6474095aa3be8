"""Pages: lines of text on paper, rotated, blurred and noisy like scans; reproducible by seed."""

from __future__ import annotations

import io
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from .fonts import CHINESE, LATIN, font
from .texts import chinese_line, latin_line

_SIZES = ((800, 1100), (1000, 700), (1240, 1754), (640, 900))  # pixels
_LETTERS = (18, 22, 26, 32, 40)  # height of a line's font, pixels
_MARGIN = 0.08  # of the width


class Page(NamedTuple):
    """A JPEG or PNG file, and its text, line by line from the top."""

    file: bytes
    lines: list[str]


FontOf = Callable[[str, int], ImageFont.FreeTypeFont]
"""(name, height in pixels) -> the font."""


def pages(number: int, seed: int = 2026, font_of: FontOf = font) -> list[Page]:
    """Return `number` pages: alternately Latin, Chinese, and both."""
    return [make_page(Random(f"{seed} {index}"), index % 3, font_of) for index in range(number)]


def make_page(random: Random, kind: int, font_of: FontOf = font) -> Page:
    """Return a page of Latin (0) or Chinese text (1), or of both (2)."""
    width, height = random.choice(_SIZES)
    paper = tuple(random.randint(225, 255) for _ in range(3))
    ink = tuple(random.randint(0, 70) for _ in range(3))
    image = Image.new("RGB", (width, height), paper)
    lines = _write(image, random, kind, ink, font_of)
    image = image.rotate(random.uniform(-2, 2), Image.Resampling.BICUBIC, fillcolor=paper)
    if random.random() < 0.5:
        image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.3, 0.8)))
    return Page(_file(_noisy(image, random), random), lines)


def _write(
    image: Image.Image, random: Random, kind: int, ink: tuple[int, ...], font_of: FontOf
) -> list[str]:
    """Fill the page with lines that fit; return their texts."""
    draw = ImageDraw.Draw(image)
    left, top = image.width * _MARGIN, image.height * _MARGIN
    letters = random.choice(_LETTERS)
    lines: list[str] = []
    while top < image.height * (1 - _MARGIN) - 2 * letters:
        if random.random() < 0.2:  # a new paragraph
            letters = random.choice(_LETTERS)
            top += letters
        is_chinese = kind == 1 or (kind == 2 and random.random() < 0.5)
        text = chinese_line(random) if is_chinese else latin_line(random)
        face = font_of(random.choice(CHINESE if is_chinese else LATIN), letters)
        if draw.textlength(text, face) < image.width - 2 * left:
            draw.text((left, top), text, ink, face)
            lines.append(text)
            top += letters * random.uniform(1.25, 2.0)
    return lines


def _noisy(image: Image.Image, random: Random) -> Image.Image:
    sigma = random.uniform(0, 8)
    noise = np.random.default_rng(random.getrandbits(32)).normal(0, sigma, (*image.size[::-1], 1))
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))


def _file(image: Image.Image, random: Random) -> bytes:
    file = io.BytesIO()
    if random.random() < 0.7:
        image.save(file, "JPEG", quality=random.randint(60, 95))
    else:
        image.save(file, "PNG")
    return file.getvalue()
