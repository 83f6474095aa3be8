"""The fonts of rendered pages, from four Debian packages."""

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
    """Return a font of `LATIN` or `CHINESE`, `size` pixels high.

    Raises:
        SystemExit: it is not installed; the text says how to install it.
    """
    path = _FOLDER / name
    if not path.is_file():
        raise SystemExit(f"{path} does not exist: apt-get install {PACKAGES}")
    return ImageFont.truetype(str(path), size)
