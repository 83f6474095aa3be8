"""Render pictures/page.png, the picture of the demo, and page.txt, its text.

pip install pillow; apt-get install fonts-dejavu-core fonts-wqy-microhei
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw
from rendering.fonts import font

PICTURES = Path(__file__).resolve().parent / "pictures"
SIZE = (900, 720)
SANS, SERIF, HEI = "dejavu/DejaVuSans.ttf", "dejavu/DejaVuSerif.ttf", "wqy/wqy-microhei.ttc"

# (left, top, height of the font, font, text), in reading order
LINES = (
    (60, 46, 46, SERIF, "The Corner Bakery"),
    (60, 116, 32, HEI, "街角面包房 营业时间"),
    (60, 186, 24, SANS, "Monday to Friday 07:30 - 18:00"),
    (540, 186, 24, HEI, "星期一至星期五"),
    (60, 232, 24, SANS, "Saturday 08:00 - 13:00"),
    (540, 232, 24, HEI, "星期六上午"),
    (60, 312, 28, HEI, "全麦面包 每个12.50元"),
    (60, 362, 28, SANS, "Rye bread, sliced: 4.20 EUR"),
    (60, 412, 28, HEI, "苹果派 每块8.00元"),
    (60, 462, 28, SANS, "Cheese roll with butter: 2.95 EUR"),
    (60, 540, 22, SERIF, "Please order cakes two days ahead."),
    (60, 582, 22, HEI, "蛋糕请提前两天预订，电话：5550 1234"),
    (60, 640, 22, SERIF, "We are closed on public holidays."),
)


def main() -> None:
    image = Image.new("RGB", SIZE, (250, 247, 240))
    draw = ImageDraw.Draw(image)
    draw.rectangle((24, 24, SIZE[0] - 25, SIZE[1] - 25), outline=(120, 90, 60), width=3)
    draw.line((60, 168, SIZE[0] - 60, 168), (120, 90, 60), 2)
    for left, top, height, name, text in LINES:
        draw.text((left, top), text, (40, 30, 25), font(name, height))
    image = image.rotate(1.2, Image.Resampling.BICUBIC, fillcolor=(215, 210, 200))
    image.quantize(24, dither=Image.Dither.NONE).save(PICTURES / "page.png", optimize=True)
    text = "".join(f"{line[-1]}\n" for line in LINES)
    (PICTURES / "page.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
