"""The test data of the onnx package, by every door of our servers; exits with 1 on a wrong answer.

Each model that onnxruntime runs on the CPU is asked in a repository (v2: JSON, binary, gRPC), as a
local predictor, and by an Op (the pipeline's gRPC, /api). An answer is right if it equals
onnxruntime's own. `--only PART`: models whose names contain it.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import grpc
import numpy as np
import onnx
import onnxruntime
from onnx.backend.test import loader

from pipeline import Op, PipelineClient, PipelineServer, RequestOp, ResponseOp
from pipeline.predictors.base import LocalModel, Predictor, load_local_predictor
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.v2.codec import SERVICE, add_tensor, tensors_to_arrays
from pipeline.proto.v2.raw import array_to_raw, datatype_of, known_dtype, raw_to_array

sys.path.insert(0, str(Path(__file__).resolve().parent / "triton"))
from run import free_ports, running

KINDS = ("node", "pytorch-operator", "pytorch-converted", "simple")
TIMEOUT_S = 60
Arrays = dict[str, np.ndarray]
Door = Callable[["Case"], Mapping[str, Any]]
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_THREADS = onnxruntime.SessionOptions()
_THREADS.intra_op_num_threads, _THREADS.log_severity_level = 1, 4


class Case(NamedTuple):
    """One model with inputs, and onnxruntime's answers; None: a random one."""

    name: str
    path: Path
    inputs: Arrays
    outputs: dict[str, np.ndarray | None]


def cases(folder: Path, only: str) -> Iterator[Case]:
    """Yield what onnxruntime runs; each model's files go when the next one is asked for."""
    for kind in KINDS:
        for test in loader.load_model_tests(kind=kind):
            if only not in test.name:
                continue
            path = folder / test.name / "1" / "model.onnx"
            try:
                inputs = _write(test, path)
                outputs = _answer(path, inputs)
            except Exception:  # onnxruntime's, or onnx's own
                shutil.rmtree(folder / test.name, ignore_errors=True)
                continue
            yield Case(test.name, path, inputs, outputs)
            shutil.rmtree(folder / test.name)


def _write(test: Any, path: Path) -> Arrays:
    path.parent.mkdir(parents=True)
    if test.model is not None:
        onnx.save(test.model, path)
        model, values = test.model, test.data_sets[0][0]
    else:
        shutil.copytree(test.model_dir, path.parent, dirs_exist_ok=True)
        model = onnx.load(path)
        files = sorted(Path(test.model_dir, "test_data_set_0").glob("input_*.pb"))
        values = [onnx.numpy_helper.to_array(onnx.load_tensor(file)) for file in files]
    weights = {weight.name for weight in model.graph.initializer}
    names = [slot.name for slot in model.graph.input if slot.name not in weights]
    pairs = zip(names, values, strict=False)
    return {name: np.asarray(value) for name, value in pairs if value is not None}


def _answer(path: Path, inputs: Arrays) -> dict[str, np.ndarray | None]:
    session = onnxruntime.InferenceSession(
        path, _THREADS, providers=["CPUExecutionProvider"], enable_fallback=0
    )
    names = [slot.name for slot in session.get_outputs()]
    runs = [session.run(None, inputs) for _ in range(3)]
    if not all(isinstance(value, np.ndarray) for value in runs[0]):
        raise TypeError("not tensors")
    answers = zip(names, *runs, strict=True)
    return {
        name: one if same(one, other) and same(one, third) else None
        for name, one, other, third in answers
    }


def same(expected: np.ndarray, found: Any) -> bool:
    """Return whether two arrays are equal; a scalar may come as one element."""
    found = np.asarray(found)
    shapes = {expected.shape, expected.shape or (1,)}
    if found.shape not in shapes:
        return False
    if expected.dtype.kind in "OSU":
        return _texts(expected) == _texts(found)
    is_float = expected.dtype.kind in "fcV"
    return found.dtype == expected.dtype and np.array_equal(
        expected.reshape(-1), found.reshape(-1), equal_nan=is_float
    )


def _plain(array: np.ndarray) -> np.ndarray:
    """Return an array whose texts are str, as JSON needs them."""
    if array.dtype.kind not in "OSU":
        return array
    return np.array(_texts(array), object).reshape(array.shape)


def _texts(array: np.ndarray) -> list[str]:
    return [x.decode() if isinstance(x, bytes) else str(x) for x in array.reshape(-1).tolist()]


# The doors ------------------------------------------------------------------------------------


class Refused(Exception):
    """A request or a load was refused with this text."""


class Repository:
    """The doors of a repository server in the mode `explicit`."""

    def __init__(self, http_port: int, grpc_port: int) -> None:
        self._url = f"http://127.0.0.1:{http_port}/v2"
        self._infer = grpc.insecure_channel(f"127.0.0.1:{grpc_port}").unary_unary(
            f"/{SERVICE}/ModelInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        self._refusal: str | None = None
        self._ranks: dict[str, int] = {}

    def load(self, case: Case) -> None:
        """Load a model; its doors raise what the load was refused with."""
        self._refusal = None
        try:
            self._post(f"repository/models/{case.name}/load")
            with _DIRECT.open(f"{self._url}/models/{case.name}", timeout=TIMEOUT_S) as answer:
                slots = json.load(answer)["inputs"]
            self._ranks = {slot["name"]: len(slot["shape"]) for slot in slots}
        except Refused as error:
            self._refusal = str(error)

    def unload(self, case: Case) -> None:
        self._post(f"repository/models/{case.name}/unload")

    def json(self, case: Case) -> Arrays:
        inputs = [
            {**self._head(name, array), "data": _plain(array).reshape(-1).tolist()}
            for name, array in self._inputs(case).items()
        ]
        answer = json.loads(self._post(f"models/{case.name}/infer", {"inputs": inputs})[0])
        return {slot["name"]: _array(slot) for slot in answer["outputs"]}

    def binary(self, case: Case) -> Arrays:
        raws = {name: array_to_raw(array) for name, array in self._inputs(case).items()}
        inputs = [
            {**self._head(name, array), "parameters": {"binary_data_size": len(raws[name])}}
            for name, array in self._inputs(case).items()
        ]
        head = {"inputs": inputs, "parameters": {"binary_data_output": True}}
        body, length = self._post(f"models/{case.name}/infer", head, b"".join(raws.values()))
        answer, at, arrays = json.loads(body[:length]), length, {}
        for slot in answer["outputs"]:
            size = slot["parameters"]["binary_data_size"]
            raw = body[at : at + size]
            arrays[slot["name"]] = raw_to_array(slot["datatype"], slot["shape"], raw)
            at += size
        return arrays

    def grpc(self, case: Case) -> Arrays:
        request = pb.ModelInferRequest(model_name=case.name)
        for name, array in self._inputs(case).items():
            add_tensor(request.inputs, request.raw_input_contents, name, array)
        try:
            answer = self._infer(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise Refused(error.details()) from None
        return tensors_to_arrays(answer.outputs, answer.raw_output_contents)

    def _inputs(self, case: Case) -> Arrays:
        """Return the inputs; one element for a scalar, as the model's metadata say."""
        if self._refusal is not None:
            raise Refused(self._refusal)
        return {
            name: array.reshape(1) if array.ndim == 0 and self._ranks.get(name) == 1 else array
            for name, array in case.inputs.items()
        }

    @staticmethod
    def _head(name: str, array: np.ndarray) -> dict[str, Any]:
        return {"name": name, "shape": array.shape, "datatype": datatype_of(array.dtype)}

    def _post(self, path: str, head: Any = None, tail: bytes = b"") -> tuple[bytes, int]:
        body = b"" if head is None else json.dumps(head).encode()
        headers = {"Inference-Header-Content-Length": str(len(body))} if tail else {}
        request = urllib.request.Request(f"{self._url}/{path}", body + tail, headers)
        try:
            with _DIRECT.open(request, timeout=TIMEOUT_S) as answer:
                length = answer.headers.get("Inference-Header-Content-Length")
                body = answer.read()
                return body, int(length or len(body))
        except urllib.error.HTTPError as error:
            raise Refused(json.loads(error.read())["error"]) from None


def _array(slot: Mapping[str, Any]) -> np.ndarray:
    dtype = known_dtype(slot["datatype"])
    return np.array(slot["data"], dtype).reshape(slot["shape"])


class Asked(Op):
    """Runs the predictor of the current case on inputs of the dtypes and shapes of `inputs`."""

    predictor: ClassVar[Predictor | None] = None
    inputs: ClassVar[Arrays] = {}

    def preprocess(self, input_dicts: Any) -> Any:
        (given,) = input_dicts.values()
        feed = {}
        for name, like in self.inputs.items():
            value = given[name]
            array = np.asarray([value] if isinstance(value, str | bytes) else value)
            feed[name] = array.astype(like.dtype).reshape(like.shape)
        assert self.predictor is not None
        return dict(self.predictor.predict(feed))


class Service:
    """The doors of a pipeline's server with one Op, and the predictor itself."""

    def __init__(self, server: PipelineServer) -> None:
        self._url = f"http://127.0.0.1:{server.http_port}/api/asked"
        self._client = PipelineClient()
        self._client.connect([f"127.0.0.1:{server.rpc_port}"])
        self._refusal = ""

    def load(self, case: Case) -> None:
        Asked.inputs, Asked.predictor = case.inputs, None
        try:
            Asked.predictor = load_local_predictor(
                LocalModel(case.path, engine="onnx", thread_num=1)
            )
        except Exception as error:
            self._refusal = str(error)

    def unload(self, case: Case) -> None:
        if Asked.predictor is not None:
            Asked.predictor.close()

    def local(self, case: Case) -> Mapping[str, Any]:
        try:
            return self._predictor().predict(case.inputs)
        except Exception as error:
            raise Refused(str(error)) from None

    def wire(self, case: Case) -> Mapping[str, Any]:
        self._predictor()
        try:
            answer = self._client.predict(dict(case.inputs), pack_tensor_format=True)
        except Exception as error:  # the client refuses a value
            raise Refused(str(error)) from None
        if answer.err_no:
            raise Refused(answer.err_msg)
        if not case.inputs:
            raise Refused("a request without tensors is answered in text, which says no dtype")
        # uint32 and uint64 travel as int64.
        return {
            name: answer[name].astype(like.dtype)
            if like is not None and like.dtype in (np.uint32, np.uint64)
            else answer[name]
            for name, like in case.outputs.items()
        }

    def api(self, case: Case) -> Mapping[str, Any]:
        self._predictor()
        fields = {name: _plain(array).tolist() for name, array in case.inputs.items()}
        request = urllib.request.Request(self._url, json.dumps(fields).encode())
        try:
            with _DIRECT.open(request, timeout=TIMEOUT_S) as answer:
                values = json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(json.load(error)["error"]["message"]) from None
        return {
            name: values[name] if like is None else _of_json(values[name], like)
            for name, like in case.outputs.items()
        }

    def _predictor(self) -> Predictor:
        if Asked.predictor is None:
            raise Refused(self._refusal)
        return Asked.predictor


def _of_json(value: Any, like: np.ndarray) -> np.ndarray:
    """Return an array of JSON's lists, which do not say a dtype; null is NaN or an infinity."""
    if like.dtype.kind in "OSU":
        return np.array(value, object).reshape(like.shape)
    array = np.array(value, object).reshape(like.shape)
    lost = np.equal(array, None)
    array[lost] = like[lost]
    return array.astype(like.dtype)


# The suite ------------------------------------------------------------------------------------


def outcome(door: Door, case: Case) -> str:
    """Return "right", "wrong: ..." or the text of the refusal."""
    try:
        found = door(case)
    except Refused as error:
        return str(error)
    except Exception as error:
        return f"wrong: {type(error).__name__}: {error}"
    for name, expected in case.outputs.items():
        if name not in found:
            return f"wrong: no {name}"
        if expected is not None and not same(expected, found[name]):
            return f"wrong: {name}: {np.asarray(found[name])!r} instead of {expected!r}"
    return "right"


def shortened(text: str, case: Case) -> str:
    """Return a refusal without names, numbers and paths, to count equal ones."""
    text = text.replace(str(case.path), "PATH").replace(case.name, "MODEL")
    text = re.sub(r"'[^']*'", "'..'", text)
    return re.sub(r"-?\b\d+\b", "N", text)[:200]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    refusals: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    server = PipelineServer("asked")
    server.set_response_op(ResponseOp(Asked("model", RequestOp())))
    server.prepare_server(yml_dict={"rpc_port": 0, "http_port": 0, "host": "127.0.0.1"})
    with tempfile.TemporaryDirectory() as name, server:
        folder, ports = Path(name), free_ports()
        (folder / "models").mkdir()
        command = ["-m", "pipeline", "repository", f"--model-repository={folder / 'models'}"]
        command += [f"--http-port={ports[0]}", f"--grpc-port={ports[1]}", "--allow-metrics=false"]
        command += ["--model-control-mode=explicit"]
        with running(command, ports, folder):
            repository, service = Repository(*ports), Service(server)
            doors: dict[str, Door] = {
                "v2 JSON": repository.json,
                "v2 binary": repository.binary,
                "v2 gRPC": repository.grpc,
                "local predictor": service.local,
                "pipeline's gRPC": service.wire,
                "/api": service.api,
            }
            for case in cases(folder / "models", options.only):
                repository.load(case)
                service.load(case)
                for door, ask in doors.items():
                    text = outcome(ask, case)
                    kind = text if text == "right" else text.partition(":")[0]
                    counts[door]["refused" if kind not in ("right", "wrong") else kind] += 1
                    if kind == "wrong":
                        print(f"WRONG {case.name} by {door}: {text[:600]}", flush=True)
                    elif kind != "right":
                        refusals[door, shortened(text, case)].append(case.name)
                service.unload(case)
                repository.unload(case)
    for (door, text), names in sorted(refusals.items(), key=lambda pair: -len(pair[1])):
        print(f"{door}: {len(names)} refused ({', '.join(names[:3])}): {text}")
    print("\n| door | right | refused | wrong |\n|---|---|---|---|")
    for door, count in counts.items():
        print(f"| {door} | {count['right']} | {count['refused']} | {count['wrong']} |")
    return 1 if not counts or any(count["wrong"] for count in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
