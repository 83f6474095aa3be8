"""The fonts that pages are rendered in: those of four Debian packages."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from PIL import ImageFont

PACKAGES = "fonts-dejavu-core fonts-wqy-microhei fonts-wqy-zenhei fonts-arphic-uming"

_FOLDER = Path("/usr/share/fonts/truetype")
LATIN = ("dejavu/DejaVuSans.ttf", "dejavu/DejaVuSerif.ttf", "dejavu/DejaVuSansMono.ttf")
CHINESE = ("wqy/wqy-microhei.ttc", "wqy/wqy-zenhei.ttc", "arphic/uming.ttc")


@cache
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """A font of `LATIN` or `CHINESE`, `size` pixels high.

    Raises:
        SystemExit: it is not installed; says how to install it.
    """
    path = _FOLDER / name
    if not path.is_file():
        raise SystemExit(f"{path} is not there: apt-get install {PACKAGES}")
    return ImageFont.truetype(str(path), size)
