"""Writes the documentation as a site: python scripts/build_site.py

The pages of the repository, the reference of what is public and a gallery of the examples go to
build/pages, and mkdocs makes build/site of them. A link that leads nowhere is an error. Nothing
in the site comes from another host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from scripts.site.gallery import gallery  # noqa: E402
from scripts.site.pages import Pages  # noqa: E402
from scripts.site.reference import reference  # noqa: E402


def main() -> int:
    folder = ROOT / "build" / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    pages = Pages(folder)
    pages.write_all()
    examples = ROOT / "examples" / "README.md"  # where its links begin
    pages.write("gallery.md", pages.linked(gallery(), examples, "gallery.md"))
    for place, text in reference():
        pages.write(place, text)
    config = ROOT / "scripts" / "site" / "mkdocs.yml"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # which tells of other programs
    done = subprocess.run([*command, "--config-file", str(config)], env=quiet, check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
