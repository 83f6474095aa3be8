"""The models that the examples of tritonclient ask for, in Python: `write(folder, names)`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_HEAD = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def value(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def give(self, **arrays):
        tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
        return pb_utils.InferenceResponse(tensors)
"""
_ADD_SUB = """
    @staticmethod
    def auto_complete_config(config):
        # Whoever loads `simple` with a configuration of his own says nothing of its tensors.
        if not config.as_dict()["input"]:
            for number in "01":
                slot = {"data_type": "TYPE_INT32", "dims": [16]}
                config.add_input({"name": "INPUT" + number, **slot})
                config.add_output({"name": "OUTPUT" + number, **slot})
        return config

    def answer(self, request):
        a, b = value(request, "INPUT0"), value(request, "INPUT1")
        return self.give(OUTPUT0=a + b, OUTPUT1=a - b)
"""
_TEXTS = """
    def answer(self, request):
        a, b = value(request, "INPUT0").astype(int), value(request, "INPUT1").astype(int)
        found = [np.char.encode(each.astype(str)).astype(object) for each in (a + b, a - b)]
        return self.give(OUTPUT0=found[0], OUTPUT1=found[1])
"""
_SAME = """
    def answer(self, request):
        return self.give(OUTPUT0=value(request, "INPUT0"))
"""
_FIRST = """
    def answer(self, request):
        found = value(request, "INPUT") + value(request, "START")
        if pb_utils.get_input_tensor_by_name(request, "CORRID") is not None:
            found = found + value(request, "END") * value(request, "CORRID").astype(np.int32)
        return self.give(OUTPUT=found)
"""
_SUMS = """
    def initialize(self, args):
        self.sums = {}

    def answer(self, request):
        key = value(request, "CORRID").reshape(-1)[0]
        if value(request, "START").reshape(-1)[0]:
            self.sums[key] = 0
        self.sums[key] += value(request, "INPUT")
        found = self.sums[key]
        if value(request, "END").reshape(-1)[0]:
            found = self.sums.pop(key) + np.int32(key)
        return self.give(OUTPUT=np.asarray(found, np.int32))
"""
_REPEAT = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number, delay in zip(value(request, "IN"), value(request, "DELAY")):
                time.sleep(delay / 10000)
                sender.send(self.give(OUT=np.array([number], np.int32)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_BRIGHTNESS = """
    def answer(self, request):
        shares = np.zeros({shape}, np.float32)
        shares.reshape(-1)[:3] = np.abs(value(request, "{name}")).mean() + np.arange(3)
        return self.give(**{{"{output}": shares}})
"""
_PIXELS = """
    def answer(self, request):
        texts = value(request, "INPUT").reshape(-1)
        found = np.zeros((len(texts), 3, 224, 224), np.float32)
        for row, text in zip(found, texts):
            row += len(text) % 255
        return self.give(OUTPUT=found)
"""


def _tensor(kind: str, name: str, dtype: str, *dims: int, more: str = "") -> str:
    return f'{kind} [{{ name: "{name}" data_type: TYPE_{dtype} dims: {list(dims)} {more} }}]\n'


def _pairs(dtype: str) -> str:
    slots = [(kind, f"{kind.upper()}{number}") for kind in ("input", "output") for number in (0, 1)]
    return _BATCHED + "".join(_tensor(kind, name, dtype, 16) for kind, name in slots)


def _sums(kind: str) -> str:
    flags = ", ".join(
        f'{{ name: "{name}" control '
        f"[{{ kind: CONTROL_SEQUENCE_{name} int32_false_true: [0, 1] }}] }}"
        for name in ("START", "END", "READY")
    )
    return (
        f"{_NUMBER}sequence_batching {{ oldest {{ max_candidate_sequences: 1024 }} control_input ["
        f'{flags}, {{ name: "CORRID" control [{{ kind: CONTROL_SEQUENCE_CORRID '
        f"data_type: TYPE_{kind} }}] }}] }}"
    )


_BATCHED = "max_batch_size: 8\n"
_NUMBER = _BATCHED + _tensor("input", "INPUT", "INT32", 1) + _tensor("output", "OUTPUT", "INT32", 1)
_START = """sequence_batching { control_input [
  { name: "START" control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }] },
  { name: "READY" control [{ kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] }] }] }"""
_LABELLED = 'label_filename: "labels.txt"'
_CHAIN = """ensemble_scheduling { step [
  { model_name: "preprocess_inception" model_version: -1
    input_map [{ key: "INPUT" value: "INPUT" }] output_map [{ key: "OUTPUT" value: "pixels" }] },
  { model_name: "batched_inception" model_version: -1
    input_map [{ key: "x" value: "pixels" }] output_map [{ key: "y" value: "OUTPUT" }] }] }"""

MODELS: dict[str, tuple[str, str]] = {
    "simple": (_ADD_SUB, _pairs("INT32") + "dynamic_batching {}"),
    "simple_int8": (_ADD_SUB, _pairs("INT8")),
    "simple_string": (_TEXTS, _pairs("STRING")),
    "simple_identity": (
        _SAME,
        _BATCHED
        + _tensor("input", "INPUT0", "STRING", -1)
        + _tensor("output", "OUTPUT0", "STRING", -1),
    ),
    "simple_sequence": (_FIRST, _NUMBER + _START),
    "simple_dyna_sequence": (_FIRST, _sums("UINT64")),
    "simple_string_dyna_sequence": (_SUMS, _sums("STRING")),
    "repeat_int32": (
        _REPEAT,
        "model_transaction_policy { decoupled: true }\n"
        + "".join(_tensor("input", *each, -1) for each in (("IN", "INT32"), ("DELAY", "UINT32")))
        + _tensor("input", "WAIT", "UINT32", 1)
        + _tensor("output", "OUT", "INT32", 1),
    ),
    "densenet_onnx": (
        _BRIGHTNESS.format(shape=(1000,), name="data_0", output="fc6_1"),
        _tensor("input", "data_0", "FP32", 3, 224, 224, more="format: FORMAT_NCHW")
        + _tensor("output", "fc6_1", "FP32", 1000, more=_LABELLED),
    ),
    "batched_inception": (
        _BRIGHTNESS.format(shape='(len(value(request, "x")), 1001)', name="x", output="y"),
        _BATCHED
        + _tensor("input", "x", "FP32", 3, 224, 224, more="format: FORMAT_NCHW")
        + _tensor("output", "y", "FP32", 1001, more=_LABELLED),
    ),
    "preprocess_inception": (
        _PIXELS,
        _BATCHED
        + _tensor("input", "INPUT", "STRING", 1)
        + _tensor("output", "OUTPUT", "FP32", 3, 224, 224),
    ),
    "preprocess_inception_ensemble": (
        "",
        _BATCHED
        + _tensor("input", "INPUT", "STRING", 1)
        + _tensor("output", "OUTPUT", "FP32", 1001, more=_LABELLED)
        + _CHAIN,
    ),
}
"""Name -> code, "" of an ensemble, and configuration; what they compute is what the examples
check, and the models of pictures are stand-ins of the same shapes."""


def write(folder: Path, names: Iterable[str] = tuple(MODELS)) -> None:
    for name in names:
        code, config = MODELS[name]
        (folder / name / "1").mkdir(parents=True)
        if code:
            (folder / name / "1" / "model.py").write_text(_HEAD + code, encoding="utf-8")
        backend = 'backend: "python"\n' if code else 'platform: "ensemble"\n'
        (folder / name / "config.pbtxt").write_text(backend + config, encoding="utf-8")
        labels = "".join(f"label {number}\n" for number in range(1001))
        (folder / name / "labels.txt").write_text(labels, encoding="utf-8")
