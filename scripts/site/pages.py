"""Pages of the repository as pages of the site: their places, and the links between them."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NAMED = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh-CN.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w+) (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PICTURES = {".png", ".jpg", ".svg"}


def places() -> dict[Path, str]:
    """Return where each page of the repository stands in the site."""
    pages = {ROOT / name: place for name, place in _NAMED.items()}
    pages |= {page: page.name for page in sorted((ROOT / "docs").glob("*.md"))}
    for page in sorted((ROOT / "examples").glob("*/README.md")):
        pages[page] = f"examples/{page.parent.name}.md"
    return pages


class Pages:
    """Writes pages to a folder, with links that work there.

    A link to a file that is not a page, for example a source file, becomes plain text.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places = places()

    def write_all(self) -> None:
        """Write every page of the repository, and the pictures that they show."""
        for page, place in self._places.items():
            text = page.read_text(encoding="utf-8")
            self.write(place, self.linked(text, page, place))

    def write(self, place: str, text: str) -> None:
        """Write one page."""
        target = self._folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def linked(self, text: str, page: Path, place: str) -> str:
        """Return the text of a page with the links of the site; code stays unchanged."""
        pieces, at = [], 0
        for block in _BLOCK.finditer(text):
            pieces += [self._relinked(text[at : block.start()], page, place), _titled(block[0])]
            at = block.end()
        return "".join([*pieces, self._relinked(text[at:], page, place)])

    def _relinked(self, text: str, page: Path, place: str) -> str:
        def link(match: re.Match[str]) -> str:
            is_picture, words, target = match.groups()
            path, _, anchor = target.partition("#")
            if not path or target.startswith(("http://", "https://")):
                return match[0]
            file = (page.parent / path).resolve()
            end = f"#{anchor}" if anchor else ""
            if file in self._places:
                return f"[{words}]({_relative(self._places[file], place)}{end})"
            if file.suffix in _PICTURES and file.is_file():
                return f"{is_picture}[{words}]({_relative(self._picture(file), place)})"
            return words

        return _LINK.sub(link, text)

    def _picture(self, file: Path) -> str:
        """Copy a picture; return its place."""
        place = f"pictures/{file.relative_to(ROOT).as_posix().replace('/', '_')}"
        target = self._folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        return place


def _titled(block: str) -> str:
    """Return a block of code whose file name is its title."""
    return _FENCE.sub(r'```\1 title="\2"', block, count=1)


def _relative(place: str, here: str) -> str:
    return Path(os.path.relpath(place, Path(here).parent)).as_posix()
