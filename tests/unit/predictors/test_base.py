"""Which engine, file and device a local model gets."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from typing import Annotated

import pytest

from pipeline.config import registry
from pipeline.errors import ConfigError, InitError
from pipeline.predictors.base import (
    Device,
    DeviceType,
    LocalModel,
    PredictorEngine,
    known_engines,
    load_local_predictor,
)


@pytest.fixture
def engines():
    """Two engines whose `load` returns what it was given."""
    modules = {}
    for name in ("onnx", "paddle"):
        module = types.ModuleType(f"engine_double_{name}")
        module.load = lambda model, device, name=name: (name, model, device)
        modules[name] = sys.modules[module.__name__] = module
    yield {
        "onnx": PredictorEngine(modules["onnx"].__name__, (".onnx",)),
        "paddle": PredictorEngine(modules["paddle"].__name__, (".pdmodel",)),
    }
    for module in modules.values():
        del sys.modules[module.__name__]


@pytest.fixture
def own_engines(engines):
    """Our own table, with the doubles' `load`."""
    ours = known_engines()
    return {name: replace(ours[name], module=engine.module) for name, engine in engines.items()}


def touch(folder, *names):
    for name in names:
        (folder / name).write_bytes(b"")
    return folder


@pytest.mark.parametrize(("file", "engine"), [("m.onnx", "onnx"), ("m.pdmodel", "paddle")])
def test_the_suffix_of_a_file_picks_the_engine(tmp_path, engines, file, engine):
    path = touch(tmp_path, file) / file
    name, model, _ = load_local_predictor(LocalModel(path), engines=engines)
    assert (name, model.engine, model.model_path) == (engine, engine, path)


def test_a_folder_represents_its_only_model_file(tmp_path, engines):
    touch(tmp_path, "vocab.txt", "m.onnx")
    _, model, _ = load_local_predictor(LocalModel(str(tmp_path)), engines=engines)
    assert model.model_path == tmp_path / "m.onnx"


def test_an_engine_that_is_named_settles_a_folder_with_two_kinds(tmp_path, engines):
    touch(tmp_path, "m.pdmodel", "m.onnx")
    name, _, _ = load_local_predictor(LocalModel(tmp_path, engine="paddle"), engines=engines)
    assert name == "paddle"


def test_an_engine_that_is_named_takes_a_file_of_any_name(tmp_path, engines):
    path = touch(tmp_path, "model.bin") / "model.bin"
    name, model, _ = load_local_predictor(LocalModel(path, engine="onnx"), engines=engines)
    assert (name, model.model_path) == ("onnx", path)


@pytest.mark.parametrize("files", [["a.onnx", "b.onnx"], ["m.onnx", "m.pdmodel"], ["vocab.txt"]])
def test_a_folder_without_exactly_one_model_is_refused_with_its_files(tmp_path, engines, files):
    touch(tmp_path, *files)
    with pytest.raises(InitError) as caught:
        load_local_predictor(LocalModel(tmp_path), engines=engines)
    for expected in (*files, str(tmp_path), "onnx (.onnx)", "paddle (.pdmodel)"):
        assert expected in str(caught.value)


def test_a_folder_full_of_files_is_not_listed_to_the_end(tmp_path, engines):
    touch(tmp_path, *(f"{number:03}.txt" for number in range(100)))
    with pytest.raises(InitError, match=r"000\.txt.* and 92 more"):
        load_local_predictor(LocalModel(tmp_path), engines=engines)


def test_an_empty_folder_is_refused(tmp_path, engines):
    with pytest.raises(InitError, match="no file at all"):
        load_local_predictor(LocalModel(tmp_path), engines=engines)


def test_a_file_of_no_engine_is_refused(tmp_path, engines):
    path = touch(tmp_path, "m.pt") / "m.pt"
    with pytest.raises(InitError, match=r"exactly one .*found m\.pt"):
        load_local_predictor(LocalModel(path), engines=engines)


def test_a_missing_path_is_refused_with_the_working_directory(tmp_path, engines, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InitError) as caught:
        load_local_predictor(LocalModel("nowhere/m.onnx"), engines=engines)
    assert "nowhere/m.onnx does not exist" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_an_unknown_engine_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(InitError, match=r"engine: 'paddle' is not there; there is onnx"):
        load_local_predictor(
            LocalModel(tmp_path, engine="paddle"),
            engines={"onnx": PredictorEngine("nothing", (".onnx",))},
        )


class ToyModel(LocalModel, frozen=True):
    """A model of an engine with a key of its own."""

    factor: Annotated[int, "Factor."] = 2


@pytest.fixture
def toy(engines, monkeypatch):
    """An engine that a script has registered."""
    monkeypatch.setattr(registry, "_registered", {})
    engine = replace(engines["onnx"], suffixes=(".toy",), Options=ToyModel)
    registry.register("engines", "toy", engine)
    return engine


@pytest.mark.parametrize("named", ["toy", None])
def test_an_engine_of_the_registry_runs_its_files(tmp_path, toy, named):
    path = touch(tmp_path, "m.toy") / "m.toy"
    _, model, _ = load_local_predictor(LocalModel(path, engine=named, options={"factor": 3}))
    assert model == ToyModel(path, engine="toy", factor=3)


def test_an_engine_gets_only_keys_that_it_has(tmp_path, toy):
    path = touch(tmp_path, "m.toy") / "m.toy"
    options = {"factor": 3, "precision": "fp16"}
    _, model, _ = load_local_predictor(LocalModel(path, options=options))
    assert model == ToyModel(path, engine="toy", factor=3)


def test_a_broken_plug_in_affects_only_models_that_may_need_it(tmp_path, toy):
    registry.register("engines", "broken", print)
    path = touch(tmp_path, "m.toy") / "m.toy"
    assert load_local_predictor(LocalModel(path, engine="toy"))[0] == "onnx"
    with pytest.raises(ConfigError, match="'broken' is no PredictorEngine, but <built-in"):
        load_local_predictor(LocalModel(path))


def test_the_device_of_the_worker_reaches_the_engine(tmp_path, engines):
    path = touch(tmp_path, "m.onnx") / "m.onnx"
    _, _, device = load_local_predictor(LocalModel(path, devices="0,3"), 1, engines)
    assert device == Device(DeviceType.GPU, 3)


@pytest.mark.parametrize(
    ("device_type", "devices", "expected"),
    [
        (-1, "", Device(DeviceType.CPU)),
        (-1, " ", Device(DeviceType.CPU)),
        (-1, "2", Device(DeviceType.GPU, 2)),
        (0, "2", Device(DeviceType.CPU)),
        (3, "", Device(DeviceType.ARM_CPU)),
        (1, "2, 5", Device(DeviceType.GPU, 2)),
        (2, "1", Device(DeviceType.TENSORRT, 1)),
    ],
)
def test_device_type_wins_over_devices(device_type, devices, expected):
    assert LocalModel("m", device_type=device_type, devices=devices).device() == expected


def test_gpus_are_assigned_to_the_workers_in_turn():
    model = LocalModel("m", devices="0,1,2")
    assert [model.device(worker).card for worker in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("device_type", "devices", "key"),
    [(1, "", "devices"), (9, "", "device_type"), (-1, "gpu0", "devices"), (-1, "0,", "devices")],
)
def test_a_device_that_cannot_be_is_refused_by_its_key(device_type, devices, key):
    with pytest.raises(InitError, match=key):
        LocalModel("m", device_type=device_type, devices=devices).device()


@pytest.mark.parametrize(
    ("files", "engine", "model_file"),
    [
        (["m.onnx"], "onnx", "m.onnx"),
        (["m.onnx", "m.onnx.data"], "onnx", "m.onnx"),
        (["m.pdmodel", "m.pdiparams"], "paddle", "m.pdmodel"),
        (["m.json", "m.pdiparams"], "paddle", "m.json"),
        (["__model__", "__params__"], "paddle", "__model__"),
        (["m.onnx", "config.json", "vocabulary.json"], "onnx", "m.onnx"),
        (["m.pdmodel", "m.pdiparams", "config.json"], "paddle", "m.pdmodel"),
        (["m.onnx", "other.pdmodel"], "onnx", "m.onnx"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else None,
)
def test_a_model_is_distinguished_from_files_next_to_it(
    tmp_path, own_engines, files, engine, model_file
):
    touch(tmp_path, *files)
    name, model, _ = load_local_predictor(LocalModel(tmp_path), engines=own_engines)
    assert (name, model.model_path) == (engine, tmp_path / model_file)


@pytest.mark.parametrize(
    "files",
    [
        ["m.onnx", "m.pdmodel", "m.pdiparams"],
        ["m.onnx", "m.json", "m.pdiparams"],
        ["m.pdiparams"],
    ],
    ids="+".join,
)
def test_two_models_or_none_are_refused(tmp_path, own_engines, files):
    touch(tmp_path, *files)
    with pytest.raises(InitError, match="exactly one model file"):
        load_local_predictor(LocalModel(tmp_path), engines=own_engines)


@pytest.mark.parametrize("model_file", ["m.json", "m.pdmodel"])
def test_a_model_without_its_weights_is_refused_with_their_name(tmp_path, own_engines, model_file):
    touch(tmp_path, model_file)
    text = f"{model_file} is there, but its weights are not: put m.pdiparams beside it"
    for path in (tmp_path, tmp_path / model_file):
        with pytest.raises(InitError, match=text):
            load_local_predictor(LocalModel(path), engines=own_engines)


@pytest.mark.parametrize(("engine", "model_file"), [("onnx", "m.onnx"), ("paddle", "m.pdmodel")])
def test_the_engine_key_chooses_between_two_models(tmp_path, own_engines, engine, model_file):
    touch(tmp_path, "m.onnx", "m.pdmodel", "m.pdiparams")
    model = LocalModel(tmp_path, engine=engine)
    name, result, _ = load_local_predictor(model, engines=own_engines)
    assert (name, result.model_path) == (engine, tmp_path / model_file)


def test_a_folder_named_like_a_model_is_not_a_model(tmp_path, own_engines):
    (tmp_path / "old.onnx").mkdir()
    touch(tmp_path, "m.onnx")
    _, model, _ = load_local_predictor(LocalModel(tmp_path), engines=own_engines)
    assert model.model_path == tmp_path / "m.onnx"
