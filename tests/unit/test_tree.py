"""The tree of tests: who looks for a module's tests finds them under the module's own path."""

from __future__ import annotations

import pytest
from paths import ROOT, TESTS

KINDS = ("unit", "integration", "conformance", "e2e")
BESIDE_THE_PACKAGE = ("benchmarks", "deploy", "examples", "scripts")


def test_a_test_is_in_one_of_four_folders():
    elsewhere = {
        path.relative_to(TESTS).parts[0]
        for path in TESTS.rglob("test_*.py")
        if path.relative_to(TESTS).parts[0] not in KINDS
    }
    assert elsewhere == set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_tests_is_a_folder_of_the_package(kind):
    folders = {path.parent.relative_to(TESTS / kind) for path in (TESTS / kind).rglob("test_*.py")}
    assert folders
    strange = [
        str(folder)
        for folder in folders
        if not (ROOT / "pipeline" / folder).is_dir()
        and not (folder.parts[0] in BESIDE_THE_PACKAGE and (ROOT / folder.parts[0]).is_dir())
    ]
    assert strange == []
