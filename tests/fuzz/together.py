"""`python -m fuzz.together`: random models, asked by several callers at once; checks each answer.

The models differ in what decides whether requests may share a message, a batch or a memory block:
the batch dimension, shapes, types, batching, workers, ensembles. Each caller expects the answer
that its request would have alone. The server's loop is held up again and again, so that requests
come together.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from copy import copy
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import numpy as np
import onnx
from repositories import control, serving

from fuzz.campaign import campaign, parser_of
from fuzz.mutants import TOGETHER_MUTANTS
from pipeline.engine.convoy import Convoy
from pipeline.engine.convoy_way import SharedMessages
from pipeline.proto import inference_v2_pb2 as v2

_CALLERS = 8
_REQUESTS = 40  # of each caller
_TIMEOUT_S = 60.0
_HELD_S, _FREE_S = 0.004, 0.002  # the server's loop, in turn
_TYPES: dict[str, Any] = {
    "FP32": np.float32, "FP64": np.float64, "INT8": np.int8, "INT64": np.int64,
    "UINT8": np.uint8, "BOOL": np.bool_, "FP16": np.float16, "BYTES": np.object_,
}  # fmt: skip
_MODEL = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.dims = [[int(size) for size in slot["dims"]] for slot in config["input"]]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        made = []
        for number, dims in enumerate(self.dims):
            value = pb_utils.get_input_tensor_by_name(request, f"IN{number}").as_numpy()
            made.append(pb_utils.Tensor(f"OUT{number}", changed(value, dims)))
        return pb_utils.InferenceResponse(made)

def changed(value, dims):
    if dims[-1] < 0:  # the shape of the answer depends on the values
        value = np.repeat(value, 1 + (value.flat[0] in (1, 2, b"7")), axis=-1)
    if value.dtype == bool:
        return ~value
    if value.dtype == object:
        each = [text + b"!" for text in value.reshape(-1)]
        return np.array(each, object).reshape(value.shape)
    return value + value.dtype.type(1)
"""
_CODE: dict[str, Any] = {}
exec(_MODEL.replace("import triton_python_backend_utils as pb_utils", ""), _CODE)


_BLS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        names = [f"OUT{number}" for number in range(len(request.inputs()))]
        call = pb_utils.InferenceRequest(
            model_name="%s", requested_output_names=names, inputs=request.inputs()
        )
        response = call.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        return pb_utils.InferenceResponse(response.output_tensors())
"""
_ONNX_TYPES = {"FP32": 1, "INT64": 7, "FP64": 11, "FP16": 10, "BOOL": 9, "BYTES": 8}
_SERVER = {"cache": {"local": {"size": 2**20}}}


class Model:
    """A model; or one that asks another model: an ensemble of it twice, or one in Python.

    Requests to a model that `joins` go together, if its first axis has the samples.

    Attributes:
        most: its `max_batch_size`.
        slots: datatype and dims of each input; the outputs have the same.
        forms: shapes of the inputs of a request.
        changes: how often each value is changed.
    """

    def __init__(self, rng: random.Random, name: str, joins: bool) -> None:
        self.name = name
        self.most = rng.choice((0, 1, 2, 8))
        self.backend = "python" if joins else rng.choice(("python", "onnxruntime", "identity"))
        types = [*(_ONNX_TYPES if self.backend == "onnxruntime" else _TYPES)]
        if joins:
            types.remove("BYTES")
        self.slots = [(rng.choice(types), _dims(rng)) for _ in range(rng.choice((1, 1, 2)))]
        self.changes = int(self.backend == "python")
        # two requests of one form in a row are what lets others join them
        self.forms = [self._form(rng) for _ in range(2)]
        self._code, self._asks = _MODEL, ""
        batching = ("", "", "dynamic_batching { }", _DELAYED % 500, _DELAYED % 5000)
        self._more = [rng.choice(batching)]
        if self.backend == "python" and not joins and rng.random() < 0.5:
            self._more.append(_IN_A_THREAD)  # one instance
        else:
            self._more.append(f"instance_group {{ count: {rng.choice((1, 1, 2))} }}")
        if not joins and rng.random() < 0.3:
            self._more.append("response_cache { enable: true }")
        may_be_ragged = self.most and self.backend == "python" and not joins
        self._is_ragged = bool(may_be_ragged) and rng.random() < 0.3

    def _form(self, rng: random.Random) -> list[tuple[int, ...]]:
        rows = () if not self.most else (rng.randint(1, min(3, self.most)),)
        size = rng.randint(1, 3)
        return [rows + tuple(size if one < 0 else one for one in dims) for _, dims in self.slots]

    def twice(self, rng: random.Random) -> Model:
        """Return an ensemble of this model and this model, perhaps without a batch dimension."""
        model = copy(self)
        model.name, model._asks, model.changes = f"{self.name}_twice", self.name, 2 * self.changes
        model.backend = "ensemble"
        if self.most and rng.random() < 0.3:
            model.most = 0
            model.slots = [(datatype, (-1, *dims)) for datatype, dims in self.slots]
        return model

    def asking(self) -> Model:
        """Return a model in Python that asks this one."""
        model = copy(self)
        model.name, model._asks, model.backend = f"{self.name}_asked", self.name, "python"
        model._code, model._more = _BLS % self.name, self._more[:1]
        return model

    def write(self, repository: Path) -> None:
        folder = repository / self.name / "1"
        folder.mkdir(parents=True)
        lines = [f"max_batch_size: {self.most}"]
        for number, (datatype, dims) in enumerate(self.slots):
            kind = "STRING" if datatype == "BYTES" else datatype
            slot = f"data_type: TYPE_{kind} dims: {list(dims)}"
            ragged = " allow_ragged_batch: true" if self._is_ragged and not self._asks else ""
            lines.append(f'input {{ name: "IN{number}" {slot}{ragged} }}')
            lines.append(f'output {{ name: "OUT{number}" {slot} }}')
        if self.backend == "ensemble":
            lines += ['platform: "ensemble"', f"ensemble_scheduling {{ {self._steps()} }}"]
        else:
            lines += [f'backend: "{self.backend}"', *self._more]
        if self.backend == "python":
            (folder / "model.py").write_text(self._code)
        if self.backend == "onnxruntime":
            self._write_onnx(folder)
        (folder.parent / "config.pbtxt").write_text("\n".join(lines))

    def _write_onnx(self, folder: Path) -> None:
        info, rows = onnx.helper.make_tensor_value_info, ["n"] if self.most else []
        ends: dict[str, list[Any]] = {"IN": [], "OUT": []}
        for number, (datatype, dims) in enumerate(self.slots):
            shape = rows + [f"d{number}_{at}" if d < 0 else d for at, d in enumerate(dims)]
            for end, infos in ends.items():
                infos.append(info(f"{end}{number}", _ONNX_TYPES[datatype], shape))
        nodes = [
            onnx.helper.make_node("Identity", [f"IN{number}"], [f"OUT{number}"])
            for number in range(len(self.slots))
        ]
        graph = onnx.helper.make_graph(nodes, "same", ends["IN"], ends["OUT"])
        opset = [onnx.helper.make_opsetid("", 21)]
        model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
        onnx.save(model, folder / "model.onnx")

    def _steps(self) -> str:
        steps = []
        for reads, writes in (("IN", "between"), ("between", "OUT")):
            maps = [
                f'input_map {{ key: "IN{n}" value: "{reads}{n}" }} '
                f'output_map {{ key: "OUT{n}" value: "{writes}{n}" }}'
                for n in range(len(self.slots))
            ]
            name = f'model_name: "{self._asks}" model_version: -1'
            steps.append(f"step {{ {name} {' '.join(maps)} }}")
        return " ".join(steps)

    def inputs(self, rng: random.Random) -> list[np.ndarray[Any, Any]]:
        shapes = rng.choice(self.forms)
        return [_values(rng, *slot) for slot in zip(self.slots, shapes, strict=True)]

    def expected(self, inputs: Sequence[Any]) -> list[Any]:
        for _ in range(self.changes):
            pairs = zip(inputs, self.slots, strict=True)
            inputs = [_CODE["changed"](value, dims) for value, (_, dims) in pairs]
        return list(inputs)


_DELAYED = "dynamic_batching { max_queue_delay_microseconds: %d }"
_IN_A_THREAD = 'parameters { key: "workers" value { string_value: "thread" } }'


def _dims(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice((-1, 1, 2, 3, 16)) for _ in range(rng.choice((1, 1, 2, 3))))


def _values(
    rng: random.Random, slot: tuple[str, tuple[int, ...]], shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    datatype, count = slot[0], int(np.prod(shape))
    if datatype == "BYTES":
        texts = [str(rng.randrange(10**6)).encode() for _ in range(count)]
        return np.array(texts, object).reshape(shape)
    numbers = [rng.randrange(2 if datatype == "BOOL" else 100) for _ in range(count)]
    return np.array(numbers, _TYPES[datatype]).reshape(shape)


def packed(value: np.ndarray[Any, Any]) -> bytes:
    """Return a tensor as the protocol's bytes."""
    if value.dtype != object:
        return value.tobytes()
    return b"".join(len(text).to_bytes(4, "little") + text for text in value.reshape(-1))


def unpacked(data: bytes, datatype: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the tensor of the protocol's bytes."""
    if datatype != "BYTES":
        return np.frombuffer(data, _TYPES[datatype]).reshape(shape)
    texts, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        texts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return np.array(texts, object).reshape(shape)


class Caller:
    """A connection for each protocol."""

    def __init__(self, rng: random.Random, server: Any) -> None:
        self._rng = rng
        self._http = HTTPConnection("127.0.0.1", server.http_port, timeout=_TIMEOUT_S)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}")
        self._infer = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            v2.ModelInferRequest.SerializeToString,
            v2.ModelInferResponse.FromString,
        )

    def close(self) -> None:
        self._http.close()
        self._channel.close()

    def ask(self, model: Model, number: int) -> str:
        """Ask a model; return what is wrong with the answer."""
        inputs = model.inputs(self._rng)
        has_json = all(datatype != "FP16" for datatype, _ in model.slots)
        way = self._rng.choice([self.by_grpc, self.by_bytes, *([self.by_json] if has_json else [])])
        answers = way(model, inputs, f"{number}")
        wanted = model.expected(inputs)
        asked = f"{model.name} {way.__name__} {[value.tolist() for value in inputs]}"
        if isinstance(answers, str):
            return f"{asked}: {answers}"
        for name, expected in enumerate(wanted):
            answer = answers.get(f"OUT{name}")
            if answer is None or answer.shape != expected.shape or (answer != expected).any():
                return f"{asked}: OUT{name} is {answer if answer is None else answer.tolist()}"
        return ""

    def by_grpc(self, model: Model, inputs: Sequence[Any], key: str) -> Any:
        request = v2.ModelInferRequest(model_name=model.name, id=key)
        for number, ((datatype, _), value) in enumerate(zip(model.slots, inputs, strict=True)):
            request.inputs.add(name=f"IN{number}", datatype=datatype, shape=value.shape)
            request.raw_input_contents.append(packed(value))
        try:
            response = self._infer(request, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            return f"{error.code()}: {error.details()}"
        if response.id != key:
            return f"the answer to {response.id}, not {key}"
        return {
            slot.name: unpacked(data, slot.datatype, slot.shape)
            for slot, data in zip(response.outputs, response.raw_output_contents, strict=True)
        }

    def by_json(self, model: Model, inputs: Sequence[Any], key: str) -> Any:
        tensors = [
            {**self._head(number, slot[0], value), "data": _listed(value)}
            for number, (slot, value) in enumerate(zip(model.slots, inputs, strict=True))
        ]
        return self._post(model, {"id": key, "inputs": tensors}, b"", key)

    def by_bytes(self, model: Model, inputs: Sequence[Any], key: str) -> Any:
        tensors = [
            {
                **self._head(number, slot[0], value),
                "parameters": {"binary_data_size": len(packed(value))},
            }
            for number, (slot, value) in enumerate(zip(model.slots, inputs, strict=True))
        ]
        head = {"id": key, "inputs": tensors, "parameters": {"binary_data_output": True}}
        return self._post(model, head, b"".join(map(packed, inputs)), key)

    def _head(self, number: int, datatype: str, value: Any) -> dict[str, Any]:
        return {"name": f"IN{number}", "datatype": datatype, "shape": list(value.shape)}

    def _post(self, model: Model, head: dict[str, Any], tail: bytes, key: str) -> Any:
        text = json.dumps(head).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))} if tail else {}
        self._http.request("POST", f"/v2/models/{model.name}/infer", text + tail, headers)
        response = self._http.getresponse()
        body = response.read()
        length = int(response.headers.get("Inference-Header-Content-Length", len(body)))
        answer, tail = json.loads(body[:length]), body[length:]
        if response.status != HTTPStatus.OK:
            return f"{response.status}: {answer}"
        if answer["id"] != key:
            return f"the answer to {answer['id']}, not {key}"
        outputs = {}
        for slot in answer["outputs"]:
            if "data" in slot:
                outputs[slot["name"]] = _from_list(**slot)
            else:
                size = slot["parameters"]["binary_data_size"]
                data, tail = tail[:size], tail[size:]
                outputs[slot["name"]] = unpacked(data, slot["datatype"], slot["shape"])
        return outputs


def _listed(value: np.ndarray[Any, Any]) -> list[Any]:
    flat = value.reshape(-1).tolist()
    return [each.decode() if isinstance(each, bytes) else each for each in flat]


def _from_list(
    name: str, datatype: str, shape: Sequence[int], data: Sequence[Any], **more: Any
) -> np.ndarray[Any, Any]:
    values = [each.encode() if isinstance(each, str) else each for each in data]
    return np.array(values, _TYPES[datatype]).reshape(shape)


@contextlib.contextmanager
def _loaded(models: Sequence[Model], edge: str, findings: list[str]) -> Iterator[Any]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        for model in models:
            model.write(Path(name))
        with serving(Path(name), server={**_SERVER, "edge": edge}) as server:
            for model in models:
                status, text = control(server, model.name, "load")
                if status != HTTPStatus.OK:
                    config = (Path(name) / model.name / "config.pbtxt").read_text()
                    findings.append(f"load: {status}, {text}: {config}")
            yield server


@contextlib.contextmanager
def _holding_up(server: Any) -> Iterator[None]:
    """Hold the server's loop up, in turns; let models be quick, so that they share messages."""
    entries, is_over = server.models.entries(), threading.Event()
    loop = entries[0].served.engine._loop
    for entry in entries:
        for node in entry.served.engine.executor.nodes.values():
            for around in node.filters:
                if isinstance(around, SharedMessages):
                    around._mean_ns = 1000.0

    def hold_up() -> None:
        while not is_over.wait(_FREE_S):
            loop.call_soon_threadsafe(time.sleep, _HELD_S)
            is_over.wait(_HELD_S)

    holder = threading.Thread(target=hold_up)
    holder.start()
    try:
        yield
    finally:
        is_over.set()
        holder.join()


def run(seed: int) -> list[str]:
    """Return the defects that the case of a seed shows."""
    return counted(seed)[0]


def counted(seed: int) -> tuple[list[str], int]:
    """Return the same, and how many requests went together with others."""
    findings: list[str] = []
    joined = 0

    def make(enter: Any) -> Any:
        def counting(self: Convoy, *given: Any) -> None:
            nonlocal joined
            joined += len(self)
            enter(self, *given)

        return counting

    rng = random.Random(f"together {seed}")
    models = [Model(rng, "a", joins=True), Model(rng, "b", joins=False)]
    models += [rng.choice(models).twice(rng), rng.choice(models).asking()]
    edge = rng.choice(("embedded", "embedded", "gateway"))
    counting = mock.patch.object(Convoy, "enter", make(Convoy.enter))
    with counting, _loaded(models, edge, findings) as server:
        if not findings:
            with _holding_up(server):
                _storm(seed, server, models, findings)
    return findings, joined


def _storm(seed: int, server: Any, models: Sequence[Model], findings: list[str]) -> None:
    """Have all callers ask each model in turn, together."""
    together = threading.Barrier(_CALLERS)

    def call(place: int) -> None:
        rng = random.Random(f"together {seed} caller {place}")
        with contextlib.closing(Caller(rng, server)) as caller:
            for model in models:
                together.wait(_TIMEOUT_S)
                asked = [caller.ask(model, number) for number in range(_REQUESTS)]
                findings.extend(filter(None, asked))

    def guarded(place: int) -> None:
        try:
            call(place)
        except Exception:  # a server that does not answer: a finding
            findings.append(traceback.format_exc(limit=4))
            together.abort()

    callers = [threading.Thread(target=guarded, args=(place,)) for place in range(_CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()


def main() -> int:
    parser = parser_of("together", __doc__, TOGETHER_MUTANTS)
    given = parser.parse_args()
    joined: list[int] = []

    def run_and_count(seed: int) -> list[str]:
        findings, count = counted(seed)
        joined.append(count)
        return findings

    with TOGETHER_MUTANTS.get(given.mutant, contextlib.nullcontext)():
        status = campaign(parser.prog, given, run_and_count)
    print(f"{sum(joined)} requests went together with others")
    return status if any(joined) else 1


if __name__ == "__main__":
    sys.exit(main())
