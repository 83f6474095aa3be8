"""The public surface is what `tests/support/golden/public_surface.txt` says, first made of a8c0ad6:
nothing goes away or changes unnoticed. An addition on purpose is written into that file by hand,
in the same commit, with its line in CHANGELOG.md."""

from __future__ import annotations

import importlib
import sys

import public_surface
import pytest
from paths import TESTS

GOLDEN = public_surface.from_text(
    (TESTS / "support" / "golden" / "public_surface.txt").read_text(encoding="utf-8")
)


def test_every_section_is_compared():
    assert list(GOLDEN) == list(public_surface.SECTIONS)


@pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="the golden file has signatures and help texts as Python 3.11 writes them",
)
@pytest.mark.parametrize("section", public_surface.SECTIONS)
def test_the_public_surface_has_not_changed(section):
    now = set(public_surface.SECTIONS[section]())
    golden = set(GOLDEN[section])
    assert now, "nothing was found: the comparison would hold of anything"
    assert sorted(golden - now) == [], "gone or changed: users have it"
    assert sorted(now - golden) == [], "new: if that is meant, add it to the golden file"


@pytest.mark.parametrize("module", public_surface.PUBLIC_MODULES)
def test_a_public_module_can_be_imported(module):
    assert importlib.import_module(module).__name__ == module
