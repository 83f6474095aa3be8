"""Modules beside a Python model belong to it, even if others have the same names."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.repository.backends.python import loading

MODEL = """
import helper
import parts.inner
from helper import VALUE
from parts.inner import VALUE as INNER
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    values = (VALUE, helper.VALUE, INNER, parts.inner.VALUE)
    tensor = pb_utils.Tensor

    def late(self):
        import late

        return late.VALUE

    def folder(self):
        return pb_utils.get_model_dir()
"""


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The imports of this process and their paths are restored afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "path_hooks", [*sys.path_hooks])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for name in ("helper", "late", "parts", "parts.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


def model(repository: Path, name: str, version: int, value: int) -> Path:
    folder = repository / name / str(version)
    (folder / "parts").mkdir(parents=True)
    (folder / "model.py").write_text(MODEL)
    (folder / "parts" / "__init__.py").write_text("from . import inner\nimport inner as other\n")
    (folder / "parts" / "inner.py").write_text("from helper import VALUE\n")
    (folder / "triton_python_backend_utils.py").write_text("raise ImportError('for editors')\n")
    edited(folder, value)
    return folder / "model.py"


def code_of(file: Path) -> loading.ModelCode:
    folder = file.parent
    return loading.ModelCode(folder.parent.name, int(folder.name), str(file), str(folder))


def edited(folder: Path, value: int) -> None:
    (folder / "helper.py").write_text(f"VALUE = {value}\n")
    (folder / "late.py").write_text(f"VALUE = {value}\n")
    (folder / "inner.py").write_text(f"VALUE = {value}\n")


@pytest.fixture
def server_folder(tmp_path: Path) -> Path:
    """A folder that Python searches first, as the one in which a server is started."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    edited(folder, 99)
    sys.path.insert(0, str(folder))
    return folder


@pytest.mark.usefixtures("server_folder")
def test_a_model_with_a_process_to_itself_has_its_own_modules(tmp_path):
    alone = loading.load_alone(code_of(model(tmp_path, "m", 1, 1)))
    assert alone.values == (1, 1, 1, 1)
    assert alone().late() == 1
    assert sys.modules["helper"].VALUE == 1


@pytest.mark.usefixtures("server_folder")
def test_models_of_one_process_have_their_own_modules(tmp_path):
    cases = {
        (name, v): model(tmp_path, name, v, v + 10 * (name == "n")) for name in "mn" for v in (1, 2)
    }
    loads = {key: loading.LoadBesideOthers() for key in cases}
    results = {key: loads[key](code_of(file)) for key, file in cases.items()}
    for (name, version), each in results.items():
        value = version + 10 * (name == "n")
        assert each.values == (value,) * 4
        assert each().late() == value, "also when it is imported by and by"
        assert pickle.loads(pickle.dumps(each)) is each, "its classes have names, for processes"


@pytest.mark.parametrize("load", [loading.load_alone, loading.LoadBesideOthers()])
def test_a_model_imports_its_other_files_by_both_names(tmp_path, monkeypatch, load):
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "many" / "1"
    folder.mkdir(parents=True)
    (folder / "beside.py").write_text("NUMBER = 7\n")
    file = folder / "model.py"
    file.write_text(
        "import beside\nfrom . import beside as own\n"
        "class TritonPythonModel:\n    numbers = beside.NUMBER, own.NUMBER\n"
    )
    code = loading.ModelCode("many", 1, str(file), str(folder))
    assert load(code).numbers == (7, 7)


@pytest.mark.parametrize("load", [loading.load_alone, loading.LoadBesideOthers()])
def test_a_load_neither_writes_nor_reads_bytecode(tmp_path, load):
    file = model(tmp_path, "m", 1, 1)
    load(code_of(file))
    assert not [*tmp_path.rglob("*.pyc")]


def test_an_edit_within_a_second_is_loaded(tmp_path):
    file = model(tmp_path, "m", 1, 1)
    first, second = loading.LoadBesideOthers(), loading.LoadBesideOthers()
    assert first(code_of(file)).values == (1,) * 4
    edited(file.parent, 2)
    result = second(code_of(file))
    assert (result.values, result().late()) == ((2,) * 4, 2)


def test_a_load_retains_its_modules_during_other_loads(tmp_path):
    path, file, other = [*sys.path], model(tmp_path / "a", "m", 1, 1), tmp_path / "b"
    first, second = loading.LoadBesideOthers(), loading.LoadBesideOthers()
    one, two = first(code_of(file)), second(code_of(file))
    third = loading.LoadBesideOthers()
    three = third(code_of(model(other, "m", 1, 3)))
    assert (one().late(), one().folder()) == (1, str(file.parent))
    del first, three
    assert (two().late(), two().folder()) == (1, str(file.parent)), "in the folders of the first"
    del third
    assert not [item for item in sys.path if str(other) in item]
    assert not [folder for folder in loading._folders if other in folder.parents]
    del second
    assert sys.path == path
    assert not [name for name in sys.modules if name.startswith("m_1_model")]
    assert not [item for item in sys.path_importer_cache if str(tmp_path) in item]


def test_concurrent_loads_are_independent(tmp_path):
    files = [model(tmp_path, name, 1, value) for value, name in enumerate("klmn")]

    def load(place):
        for _ in range(5):
            here = loading.LoadBesideOthers()
            assert here(code_of(files[place]))().late() == place

    with ThreadPoolExecutor(len(files)) as pool:
        assert [*pool.map(load, range(len(files)))] == [None] * len(files)


def test_instances_of_one_load_share_their_modules(tmp_path):
    file, load = model(tmp_path, "m", 1, 1), loading.LoadBesideOthers()
    one = load(code_of(file))
    edited(file.parent, 2)
    other = load(code_of(file))
    assert one is not other
    assert other.values == one.values


def test_installed_packages_precede_plain_folders(tmp_path):
    file = model(tmp_path, "m", 1, 1)
    (file.parent / "numpy").mkdir()
    (file.parent / "data").mkdir()
    (file.parent / "data" / "names.py").write_text("VALUE = 7\n")
    file.write_text(
        "import numpy\nfrom data.names import VALUE\n"
        "class TritonPythonModel:\n    found = numpy.pi, VALUE\n"
    )
    assert loading.LoadBesideOthers()(code_of(file)).found == (pytest.approx(3.14159, abs=1e-4), 7)


def test_a_python_backend_imports_its_own_modules(tmp_path):
    backend, version = tmp_path / "backends" / "adder", tmp_path / "models" / "m" / "1"
    for folder in (backend, version):
        folder.mkdir(parents=True)
    edited(backend, 1)
    edited(version, 2)
    (backend / "model.py").write_text(
        "import triton_python_backend_utils as pb_utils\nfrom helper import VALUE\n"
        "class TritonPythonModel:\n    def folder(self): return pb_utils.get_model_dir()\n"
        "    value = VALUE\n"
    )
    code = loading.ModelCode("m", 1, str(backend / "model.py"), str(version))
    load = loading.LoadBesideOthers()
    model_class = load(code)
    assert (model_class.value, model_class().folder()) == (1, str(version))
    assert str(backend) in sys.path
    assert str(backend.parent) not in sys.path
    del load


def test_a_file_in_a_subfolder_imports_modules_of_the_version(tmp_path):
    version = tmp_path / "m" / "1"
    (version / "code").mkdir(parents=True)
    edited(version, 3)
    file = version / "code" / "model.py"
    file.write_text("from helper import VALUE\nclass TritonPythonModel:\n    value = VALUE\n")
    code = loading.ModelCode("m", 1, str(file), str(version))
    assert loading.LoadBesideOthers()(code).value == 3
