"""The model repository that the genuine Triton and ours are given: `write(folder)`."""

from __future__ import annotations

from pathlib import Path

_HEAD = """
import sys
sys.path.insert(0, {site!r})
import json
import numpy as np
import triton_python_backend_utils as pb_utils


def value(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


class TritonPythonModel:
"""
_ADD_SUB = """
    def execute(self, requests):
        found = []
        for request in requests:
            a, b = value(request, "INPUT0"), value(request, "INPUT1")
            sums = pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)
            found.append(pb_utils.InferenceResponse(list(sums)))
        return found
"""
_SAME = """
    def execute(self, requests):
        found = []
        for request in requests:
            given = [(t.name().replace("IN_", "OUT_"), t.as_numpy()) for t in request.inputs()]
            tensors = [pb_utils.Tensor(name, array) for name, array in given]
            found.append(pb_utils.InferenceResponse(tensors))
        return found
"""
_VERSION = """
    def initialize(self, args):
        self.version = int(args["model_version"])

    def execute(self, requests):
        version = np.array([self.version], np.int32)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("VERSION", version)]) for _ in requests
        ]
"""
_REPEAT = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in value(request, "IN").reshape(-1):
                array = np.array([number], np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_ERRORS = """
    def initialize(self, args):
        names = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS"
        self.codes = [getattr(pb_utils.TritonError, name) for name in names.split()]

    def execute(self, requests):
        found = []
        for request in requests:
            code = int(value(request, "CODE").reshape(-1)[0])
            error = pb_utils.TritonError("asked for " + str(code), self.codes[code])
            found.append(pb_utils.InferenceResponse(error=error))
        return found
"""
_PARAMETERS = """
    def execute(self, requests):
        found = []
        for request in requests:
            said = json.loads(request.parameters())
            text = json.dumps([request.request_id(), request.correlation_id(), said], sort_keys=1)
            array = np.array([text.encode()], object)
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("SAID", array)]))
        return found
"""
_SUMS = """
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        found = []
        for request in requests:
            key = value(request, "CORRID").reshape(-1)[0]
            if value(request, "START").reshape(-1)[0]:
                self.sums[key] = 0
            self.sums[key] += int(value(request, "IN").reshape(-1)[0])
            array = np.full_like(value(request, "IN"), self.sums[key])
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return found
"""
_BROKEN = """
    def initialize(self, args):
        raise OSError("no such weights")
"""
_CONTROLS = """
  control_input [
    { name: "START" control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }] },
    { name: "CORRID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] }
  ]"""
_STEP = """
    {{ model_name: "{0}" model_version: -1
      input_map [{1}] output_map [{2}] }}"""
TYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "STRING"),
)
"""The types of the inputs of `types`, each of which is optional."""


def _tensor(kind: str, name: str, dtype: str, *dims: int, more: str = "") -> str:
    return f'{kind} [{{ name: "{name}" data_type: TYPE_{dtype} dims: {list(dims)} {more} }}]\n'


def _pairs(dtype: str, *dims: int) -> str:
    return "".join(
        _tensor(kind, f"{kind.upper()}{number}", dtype, *dims)
        for kind in ("input", "output")
        for number in (0, 1)
    )


def _map(**names: str) -> str:
    return ", ".join(f'{{ key: "{key}" value: "{value}" }}' for key, value in names.items())


def _steps(*steps: tuple[str, str, str]) -> str:
    return "ensemble_scheduling { step [" + ",".join(_STEP.format(*step) for step in steps) + "]}"


_NUMBERS = _tensor("input", "IN", "INT32", 1) + _tensor("output", "OUT", "INT32", 1)
_CHAIN = _steps(
    ("add_batched", _map(INPUT0="A", INPUT1="B"), _map(OUTPUT0="sum")),
    ("add_batched", _map(INPUT0="sum", INPUT1="B"), _map(OUTPUT0="C", OUTPUT1="D")),
)
_OUTER = _steps(
    ("chain", _map(A="A", B="B"), _map(C="inner")),
    ("add_batched", _map(INPUT0="inner", INPUT1="A"), _map(OUTPUT0="C")),
)
_REFUSED = _steps(("errors", _map(CODE="CODE"), _map(OUT="OUT")))
_AB = _tensor("input", "A", "INT32", 4) + _tensor("input", "B", "INT32", 4)
_C = _tensor("output", "C", "INT32", 4)

MODELS: dict[str, tuple[str, str]] = {
    "add": (_ADD_SUB, _pairs("FP32", 4)),
    "add_batched": (_ADD_SUB, "max_batch_size: 8 dynamic_batching {}\n" + _pairs("INT32", 4)),
    "any_size": (
        _SAME,
        "max_batch_size: 4\n"
        + _tensor("input", "IN_A", "FP32", -1, 2)
        + _tensor("output", "OUT_A", "FP32", -1, 2),
    ),
    "types": (
        _SAME,
        "".join(_tensor("input", f"IN_{each}", each, -1, more="optional: true") for each in TYPES)
        + "".join(_tensor("output", f"OUT_{each}", each, -1) for each in TYPES),
    ),
    "texts": (
        _SAME,
        "max_batch_size: 4\n"
        + _tensor("input", "IN_T", "STRING", 2)
        + _tensor("output", "OUT_T", "STRING", 2),
    ),
    "repeat": (
        _REPEAT,
        "model_transaction_policy { decoupled: true }\n"
        + _tensor("input", "IN", "INT32", -1)
        + _tensor("output", "OUT", "INT32", 1),
    ),
    "versions": (
        _VERSION,
        "version_policy: { latest { num_versions: 2 }}\n"
        + _tensor("input", "IN", "INT32", 1)
        + _tensor("output", "VERSION", "INT32", 1),
    ),
    "errors": (
        _ERRORS,
        "max_batch_size: 2\n"
        + _tensor("input", "CODE", "INT32", 1)
        + _tensor("output", "OUT", "INT32", 1),
    ),
    "parameters": (
        _PARAMETERS,
        _tensor("input", "IN", "INT32", 1) + _tensor("output", "SAID", "STRING", 1),
    ),
    "direct": (
        _SUMS,
        "max_batch_size: 2\n" + _NUMBERS + "sequence_batching { direct {}" + _CONTROLS + "}",
    ),
    "oldest": (
        _SUMS,
        "max_batch_size: 2\n" + _NUMBERS + "sequence_batching { oldest {}" + _CONTROLS + "}",
    ),
    "labelled": (
        _SAME,
        "max_batch_size: 2\n"
        + _tensor("input", "IN_X", "FP32", 3)
        + _tensor("output", "OUT_X", "FP32", 3, more='label_filename: "labels.txt"'),
    ),
    "chain": ("", "max_batch_size: 8\n" + _AB + _C + _tensor("output", "D", "INT32", 4) + _CHAIN),
    "outer": ("", "max_batch_size: 8\n" + _AB + _C + _OUTER),
    "refused": (
        "",
        "max_batch_size: 2\n"
        + _tensor("input", "CODE", "INT32", 1)
        + _tensor("output", "OUT", "INT32", 1)
        + _REFUSED,
    ),
    "broken": (_BROKEN, _NUMBERS),
    "wrong": (_SAME, "max_batch_size: -1\n" + _NUMBERS),
}
"""Name -> code, "" of an ensemble, and configuration."""
NOT_LOADED = ("broken", "wrong")
"""Models that cannot be loaded."""


def write(folder: Path, site: str = ".") -> None:
    """Write the repository, whose models find numpy in `site`, if it is not there otherwise."""
    head = _HEAD.format(site=site)
    for name, (code, config) in MODELS.items():
        backend = 'backend: "python"\n' if code else 'platform: "ensemble"\n'
        for version in ("1", "2", "3") if name == "versions" else ("1",):
            (folder / name / version).mkdir(parents=True)
            if code:
                (folder / name / version / "model.py").write_text(head + code, encoding="utf-8")
        (folder / name / "config.pbtxt").write_text(backend + config, encoding="utf-8")
    (folder / "labelled" / "labels.txt").write_text("cat\ndog\nbird\n", encoding="utf-8")
