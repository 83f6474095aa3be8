"""The OCR example at /docs: a reader uploads its picture and sees the lines drawn on it."""

from __future__ import annotations

import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from browser import CHROMIUM, Browser
from paths import ROOT
from served import free_port

pytest.importorskip("cv2", reason="the OCR example needs opencv-python-headless")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH"),
    pytest.mark.skipif(
        find_spec("rapidocr_onnxruntime") is None,
        reason="no models: pip install --no-deps rapidocr-onnxruntime",
    ),
]

EXAMPLE = ROOT / "examples" / "ocr"
PICTURES = EXAMPLE / "pictures"
FIRST = [[50, 52], [505, 52], [505, 105], [50, 105]]  # of the page's lines


def serving() -> ModuleType:
    sys.path.insert(0, str(EXAMPLE))
    try:
        return importlib.import_module("serving")
    finally:
        sys.path.remove(str(EXAMPLE))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The example's configuration, on ports that are free."""
    values = yaml.safe_load((EXAMPLE / "config.yml").read_text(encoding="utf-8"))
    values |= {"rpc_port": free_port(), "http_port": free_port()}
    path = tmp_path / "config.yml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def test_a_reader_uploads_a_picture_and_sees_its_lines(config, tmp_path):
    with serving().running(config) as service, Browser(1280, 900) as browser:
        browser.open(service.url.removesuffix("ocr/prediction") + "docs")
        browser.wait_for("document.getElementById('state').textContent === 'Ready'")
        assert browser.text("#about") == "A picture with text in it."
        browser.upload("#field_image", PICTURES / "page.png")
        browser.wait_for("document.getElementById('code').textContent.includes('base64 -w0')")
        browser.run("document.getElementById('send').click()")
        browser.wait_for("/^200, /.test(document.getElementById('status').textContent)")
        texts = (PICTURES / "page.txt").read_text(encoding="utf-8").splitlines()
        browser.wait_for("document.querySelector('#picture polygon') !== null")
        drawn = browser.run(
            "[...document.querySelectorAll('#picture polygon')].map((one) => "
            "one.getAttribute('points').split(' ').map((at) => at.split(',').map(Number)))"
        )
        assert len(drawn) == len(texts)
        for point, wanted in zip(drawn[0], FIRST, strict=True):
            assert point == pytest.approx(wanted, abs=15)
        assert browser.run("document.querySelector('#picture svg').getAttribute('viewBox')") == (
            "0 0 900 720"
        )
        assert json.loads(browser.text("#answer"))["text"].startswith(texts[0])
        browser.screenshot(tmp_path / "docs.png", is_whole=True)
        assert browser.complaints == []
