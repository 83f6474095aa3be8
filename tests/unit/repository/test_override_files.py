"""Files of models that came with the request to load them."""

from __future__ import annotations

import pytest

from pipeline.errors import ConfigError
from pipeline.frontends.v2.control import Overrides
from pipeline.repository.control import OverrideFiles


@pytest.fixture
def files():
    result = OverrideFiles()
    yield result
    result.close()


@pytest.mark.parametrize("path", ["1/model.py", "/1/model.py", "//1/model.py"])
def test_a_path_is_below_the_folder_of_the_model(files, path):
    folder = files.write("m", Overrides("{}", {path: b"x"}))
    assert (folder.name, (folder / "1" / "model.py").read_bytes()) == ("m", b"x")


def test_files_need_a_configuration(files):
    with pytest.raises(ConfigError, match="need a config"):
        files.write("m", Overrides(None, {"1/model.py": b"x"}))
