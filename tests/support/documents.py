"""The pages of documentation, and the fenced blocks in them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from paths import ROOT

README = ROOT / "README.md"
FIRST_SERVICE = ROOT / "docs" / "first_service.md"
FIRST_PADDLE = ROOT / "docs" / "first_paddle.md"
FIRST_TRITON = ROOT / "docs" / "first_triton.md"
FIRST_PICTURES = ROOT / "docs" / "first_pictures.md"
FIRST_CHAT = ROOT / "docs" / "first_chat.md"
GUIDE = ROOT / "docs" / "guide.md"
PROCESSES = ROOT / "docs" / "processes.md"
MIGRATION = ROOT / "docs" / "migration.md"
TRITON = ROOT / "docs" / "triton.md"
OBSERVABILITY = ROOT / "docs" / "observability.md"
TESTING = ROOT / "docs" / "testing.md"
# Pages that were one with the guide before that became too long.
OF_THE_GUIDE = tuple(
    ROOT / "docs" / f"{name}.md"
    for name in (
        *("cascades", "streams", "sequences", "batching", "models"),
        *("types", "clients", "json", "filters"),
    )
)
RUN = (
    README,
    FIRST_SERVICE,
    FIRST_PADDLE,
    FIRST_TRITON,
    FIRST_PICTURES,
    FIRST_CHAT,
    GUIDE,
    PROCESSES,
    MIGRATION,
    TRITON,
    OBSERVABILITY,
    TESTING,
    *OF_THE_GUIDE,
)  # the pages whose examples are run
IN_CHINESE = {
    page: page.with_suffix(".zh-CN.md")
    for page in (README, FIRST_SERVICE, FIRST_PADDLE, GUIDE, MIGRATION)
}
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")])


class Block(NamedTuple):
    """A fenced block: its language, what else its opening line says, and its text."""

    language: str
    name: str
    text: str


@cache
def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w*) ?(.*)\n((?s:.*?))^```$", page.read_text(), re.MULTILINE)
    return [Block(*parts) for parts in found]


def file_named(name: str, *pages: Path) -> str:
    (text,) = [block.text for page in pages for block in blocks(page) if block.name == name]
    return text
