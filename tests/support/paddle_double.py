"""A double of the paddle module, for machines that we have not got."""

from __future__ import annotations

import itertools
import types

import numpy as np
import orjson

PRECISIONS = types.SimpleNamespace(Float32="fp32", Half="fp16", Bfloat16="bf16", Int8="int8")


class FakeConfig:
    """Keeps the calls that it is given; answers as a build that heeds them, or does not."""

    def __init__(self, heeds, *files):
        self.heeds, self.files = heeds, files
        self.calls = []
        self.card = None

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls.append((name, *arguments, *named.items()))
            if name in ("enable_use_gpu", "set_xpu_device_id"):
                self.card = arguments[1] if name == "enable_use_gpu" else arguments[0]

        return call

    def use_gpu(self):
        return self.heeds and self.card is not None

    use_xpu = use_gpu

    def gpu_device_id(self):
        return self.card

    xpu_device_id = gpu_device_id

    def onednn_enabled(self):
        return self.heeds

    tensorrt_engine_enabled = onednn_enabled

    def called(self, name):
        """The arguments of the only call of `name`; None: there was none."""
        found = [call[1:] for call in self.calls if call[0] == name]
        assert len(found) < 2
        return found[0] if found else None


class FakeHandle:
    def __init__(self, predictor, name):
        self.predictor, self.name = predictor, name

    def copy_from_cpu(self, value):
        self.predictor.values[self.name] = value

    def set_lod(self, lod):
        self.predictor.lods[self.name] = lod

    def type(self):
        value = self.predictor.values[self.name]
        return types.SimpleNamespace(name=np.asarray(value).dtype.name.upper())

    def copy_to_cpu(self):
        return self.predictor.values[self.name]

    def lod(self):
        return self.predictor.lods.get(self.name, [])


class FakePredictor:
    """Doubles `x` into `y`, with its LoD; `run` is also told to `watch`, with the predictor."""

    def __init__(self, watch=lambda predictor: None, numbers=None):
        self.numbers = numbers or itertools.count()
        self.number = next(self.numbers)
        self.watch = watch
        self.values, self.lods = {}, {}
        self.cleared = 0

    def get_input_names(self):
        return ["x"]

    def get_output_names(self):
        return ["y"]

    def get_input_handle(self, name):
        return FakeHandle(self, name)

    get_output_handle = get_input_handle

    def clone(self):
        return FakePredictor(self.watch, self.numbers)

    def clear_intermediate_tensor(self):
        self.values.pop("y")  # it was copied before, or it is gone
        self.cleared += 1

    def run(self):
        self.watch(self)
        self.values["y"] = np.asarray(self.values["x"]) * 2
        self.lods["y"] = self.lods.get("x", [])


class FakePaddle:
    """Paddle as built for these devices, on a machine with so many cards of each."""

    __version__ = "3.9.9"

    def __init__(self, cuda=None, xpu=None, npu=None, tensorrt=None, library=True, heeds=True):
        self.is_compiled_with_cuda = lambda: cuda is not None
        self.is_compiled_with_rocm = lambda: False
        self.is_compiled_with_xpu = lambda: xpu is not None
        plugins = [] if npu is None else ["npu"]
        self.device = types.SimpleNamespace(
            cuda=types.SimpleNamespace(device_count=lambda: cuda),
            xpu=types.SimpleNamespace(device_count=lambda: xpu),
            get_all_custom_device_type=lambda: plugins,
            get_available_custom_device=lambda: [f"npu:{n}" for n in range(npu or 0)],
        )
        version = tensorrt or (0, 0, 0)
        self.configs = []
        self.predictor = FakePredictor()
        self.inference = types.SimpleNamespace(
            PrecisionType=PRECISIONS,
            Config=lambda *files: self._keep(FakeConfig(heeds, *files)),
            create_predictor=lambda config: self.predictor,
            get_trt_compile_version=lambda: version,
            get_trt_runtime_version=lambda: version if library else (0, 0, 0),
        )

    def _keep(self, config):
        self.configs.append(config)
        return config


def operator(name, variable, dtype="0.t_f32", dims=(-1, 2)):
    """An operator of a `.json` program that brings an input in or an output out."""
    return {
        "#": f"1.{name}",
        "A": [{"N": "name", "AT": {"#": "0.a_str", "D": variable}}],
        "O": [{"%": 1, "TT": {"#": "0.t_dtensor", "D": [{"#": dtype}, list(dims), "NCHW", [], 0]}}],
    }


def parameter(name, dims):
    """An operator of a `.json` program that stands for a weight."""
    tensor = {"#": "0.t_dtensor", "D": [{"#": "0.t_f32"}, list(dims), "NCHW", [], 0]}
    return {"#": "p", "A": [0, 1, 1, name], "O": {"%": 2, "TT": tensor}}


def json_program(*operators):
    block = {"#": "block_0", "args": [], "ops": list(operators)}
    regions = [{"#": "region_0", "blocks": [block]}]
    header = {"magic": "pir", "trainable": True, "version": 4}
    return orjson.dumps({"base_code": header, "program": {"regions": regions}})
