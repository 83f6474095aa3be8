"""The gallery: each example with its graph, and its picture if it has one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PICTURES = {
    "ocr": ("ocr/pictures/page.png", "A page that is read"),
    "imdb_ensemble": ("../docs/page.png", "The page at /, with this graph at work"),
}
_SCRIPTS = {name: f"{name}_server.py" for name in ("agent", "chat", "rag")}
_LIMIT_S = 60.0
_INSTALLED = re.compile(r"\S*/site-packages/")  # where this machine has it


def gallery() -> str:
    """Return the page, with links as the repository has them in examples/."""
    parts = ["# Examples\n\nEach is a folder of the repository, and runs with `make`."]
    for readme in sorted((ROOT / "examples").glob("*/README.md")):
        name = readme.parent.name
        title, lead = _head(readme.read_text(encoding="utf-8"))
        part = f"## [{title}]({name}/README.md)\n\n{lead}"
        if name in _PICTURES:
            path, words = _PICTURES[name]
            part += f"\n\n![{words}]({path})"
        parts.append(f"{part}\n\n```text\n{graph_of(readme.parent)}\n```")
    return "\n\n".join(parts) + "\n"


def graph_of(folder: Path) -> str:
    """Return the drawing of an example's graph: nothing is started for it."""
    script = _SCRIPTS.get(folder.name, "web_server.py")
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "graph", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{folder.name}/{script}: {done.stderr[-800:]}")
    return _INSTALLED.sub("", done.stdout).strip()


def _head(text: str) -> tuple[str, str]:
    """Return the title of a page, and its first paragraph of prose."""
    title, _, rest = text.partition("\n")
    paragraphs = (part.strip() for part in rest.split("\n\n"))
    prose = (part for part in paragraphs if part and not part.startswith(("[", "!", "```", "#")))
    return title.removeprefix("# "), next(prose, "")
