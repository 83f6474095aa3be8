"""Bundles: the folder of a script, packed and unpacked."""

from __future__ import annotations

import io
import os
import zipfile

import pytest

from pipeline.cluster import bundle as bundles
from pipeline.cluster.bundle import ScriptBundle, bundle_of, unpacked
from pipeline.errors import ConfigError


@pytest.fixture
def script(tmp_path):
    folder = tmp_path / "service"
    (folder / "models").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("")
    (folder / "models" / "m.bin").write_bytes(b"model")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "web_server.py").write_text("print('hi')\n")
    return folder / "web_server.py"


def test_an_unpacked_bundle_equals_the_folder(script, tmp_path):
    place = unpacked(bundle_of(script), tmp_path / "node")
    files = {str(path.relative_to(place.parent)) for path in place.parent.rglob("*")}
    assert files == {"models", "models/m.bin", "run.sh", "web_server.py"}
    assert place.read_text() == script.read_text()
    assert (place.parent / "run.sh").stat().st_mode & 0o111


def test_the_same_files_are_the_same_bundle(script):
    first = bundle_of(script)
    script.touch()
    assert bundle_of(script) == first


def test_a_script_in_place_is_a_path(script, tmp_path):
    made = bundle_of(script, is_in_place=True)
    assert (made.archive, unpacked(made, tmp_path)) == (b"", script)
    script.unlink()
    with pytest.raises(ConfigError, match="is not on this node"):
        unpacked(made, tmp_path)


def test_a_folder_that_is_too_large_is_refused(script, monkeypatch):
    monkeypatch.setattr(bundles, "MAX_BYTES", 10)
    with pytest.raises(ConfigError, match="Put what is large"):
        bundle_of(script)


def test_no_script_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        bundle_of(tmp_path / "nothing.py")


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil"])
def test_a_name_that_leads_out_is_refused(tmp_path, name):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(ConfigError, match="leads out of its folder"):
        unpacked(ScriptBundle("web_server.py", target.getvalue()), tmp_path)


def test_a_link_to_a_folder_is_refused(script, tmp_path):
    (script.parent / "large").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="large: a link to a folder is not packed"):
        bundle_of(script)


def test_an_invalid_name_is_refused(script):
    (script.parent / os.fsdecode(b"\xff.bin")).write_text("")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        bundle_of(script)


def test_a_file_that_disappears_during_packing_is_an_error(script, monkeypatch):
    def gone(folder):
        yield folder / "gone"

    monkeypatch.setattr(bundles, "_files", gone)
    with pytest.raises(ConfigError, match="gone: No such file or directory, while it was packed"):
        bundle_of(script)
