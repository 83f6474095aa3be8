"""Photograph /docs of examples/ocr with a picture and its lines: docs/ocr_docs_page.png."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OCR = ROOT / "examples" / "ocr"
sys.path[:0] = [str(OCR), str(ROOT / "tests" / "support")]

from browser import Browser  # noqa: E402  # a helper of the tests
from serving import running  # noqa: E402  # of the example


def photograph(url: str, out: Path) -> None:
    """Upload the example's picture, send it, take the picture of what is shown."""
    with Browser(1280, 900) as browser:
        browser.open(url)
        browser.wait_for("document.getElementById('state').textContent === 'Ready'")
        browser.upload("#field_image", OCR / "pictures" / "page.png")
        browser.wait_for("document.getElementById('code').textContent.includes('base64 -w0')")
        browser.run("document.getElementById('send').click()")
        browser.wait_for("document.querySelector('#picture polygon') !== null")
        browser.screenshot(out, is_whole=True)


def main() -> None:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "ocr_docs_page.png")
    arguments = parser.parse_args()
    with running() as service:
        photograph(service.url.removesuffix("ocr/prediction") + "docs", arguments.out)


if __name__ == "__main__":
    main()
