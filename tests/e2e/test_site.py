"""The documentation as a site: it is built, its links lead somewhere, nothing is fetched."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from paths import ROOT

SITE = ROOT / "build" / "site"
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=[\"']?https?:|<link[^>]+stylesheet[^>]+https?:|"
    r"url\([\"']?https?:|@import[^;]+https?:"
)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "build_site.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = [*SITE.rglob("*.html"), *SITE.rglob("*.css")]
    return {str(file.relative_to(SITE)): file.read_text(encoding="utf-8") for file in files}


def test_every_page_is_there_with_its_links(pages):
    docs = {f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md")}
    assert docs <= set(pages)
    assert {"index.html", "index.zh-CN.html", "gallery.html", "changelog.html"} <= set(pages)
    assert "TestClient" in pages["api/pipeline.testing.html"]
    assert "PipelineServer" in pages["api/pipeline.server.html"]
    assert "examples/ocr.html" in pages["gallery.html"]


def test_no_file_is_fetched_from_another_host(pages):
    results = {name: hit[0] for name, text in pages.items() if (hit := FETCHED.search(text))}
    assert results == {}


def test_a_picture_of_the_site_is_one_of_its_files(pages):
    for name, text in pages.items():
        for source in re.findall(r"<img[^>]+src=\"([^\"]+)\"", text):
            assert (SITE / name).parent.joinpath(source).resolve().is_file(), (name, source)
