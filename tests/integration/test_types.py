"""What type checkers say of users' code: of the documentation's examples, and of typed scripts.

Each checker runs once. `typed_user.py` has every form of every method with types.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import RUN, blocks
from paths import ROOT

pytestmark = pytest.mark.timeout(400)  # checkers on a busy machine

# The examples need no annotations: they are written for readers.
MYPY = """
[mypy]
strict = true
allow_untyped_defs = true
allow_incomplete_defs = true
allow_untyped_calls = true
"""
_OTHERS = ("paddle_", "ask_")  # scripts of other libraries, with their types
FRAGMENTS = "import numpy as np\nfrom pipeline import *\n"


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The `python` that pyright asks where packages are is this one, and ours is this tree."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    ours = {"PATH": path, "PYTHONPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd, env={**os.environ, **ours}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def pyright(*arguments: str, cwd: Path) -> dict[str, Any]:
    done = run("pyright", "--outputjson", *arguments, cwd=cwd)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all examples but those of the drop-in, whose imports exist at run time only."""
    folder = tmp_path_factory.mktemp("scripts")
    shutil.copy(ROOT / "tests" / "support" / "typed_user.py", folder)
    for page in RUN:
        fragments = ""
        for block in blocks(page):
            if block.language == "python" and block.name:
                if not block.name.startswith(_OTHERS) and "/" not in block.name:
                    (folder / block.name).write_text(block.text)
            elif block.language == "python" and not block.name:
                fragments += block.text
        if "(Op)" in fragments:
            (folder / f"{page.stem}_fragments.py").write_text(FRAGMENTS + fragments)
    (folder / "mypy.ini").write_text(MYPY)
    return folder


def test_the_examples_are_extracted(scripts):
    results = {path.name for path in scripts.glob("*.py")}
    assert {"web_server.py", "client.py", "jump.py", "guide_fragments.py"} <= results


def test_pyright_finds_no_fault_with_users_scripts(scripts):
    report = pyright(".", cwd=scripts)
    errors = [found for found in report["generalDiagnostics"] if found["severity"] == "error"]
    assert errors == []
    assert report["summary"]["filesAnalyzed"] >= len(list(scripts.glob("*.py")))


def test_mypy_finds_no_fault_with_users_scripts(scripts):
    done = run("mypy", ".", cwd=scripts)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_every_public_name_has_a_type(tmp_path):
    report = pyright("--ignoreexternal", "--verifytypes", "pipeline", cwd=tmp_path)
    untyped = [
        f"{symbol['name']}: {found['message']}"
        for symbol in report["typeCompleteness"]["symbols"]
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
        for found in symbol["diagnostics"]
        if found["severity"] == "error"
    ]
    assert untyped == [], "annotate each where it is first set"
    assert report["typeCompleteness"]["completenessScore"] == 1
