"""The checks: each a function that returns what it found, or raises."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.networks import RESNET_50, TINY, write_resnet, write_small
from benchmarks.gpu.paces import bare_pace, served_pace, serving
from benchmarks.gpu.place import (
    MissingError,
    Place,
    cards,
    need_card,
    need_installed,
    need_module,
    need_paddle,
    need_provider,
)
from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.errors import InitError
from pipeline.testing import TestClient

ROOT = Path(__file__).resolve().parents[2]
_TOLERANCE = 2e-2  # of the largest: cards multiply in fewer bits (TF32)
_NO_CARD = "97"
_ROUNDS = 2


@dataclass(frozen=True)
class Check:
    """One row of the table. `limit_s`: how long it may take before it is ended."""

    name: str
    what: str
    needs: str
    run: Callable[[Place], str]
    limit_s: float = 300.0


class Ask(Op):
    """Hands on what it is asked to its model; says which process did it."""

    def preprocess(self, input_dicts: dict[str, Any]) -> dict[str, Any]:
        return input_dicts["@DAGExecutor"]

    def postprocess(self, input_dicts: dict[str, Any], fetch_data: dict[str, Any]) -> Any:
        return {**fetch_data, "pid": np.array([os.getpid()])}


def asked(op: dict[str, Any], feed: dict[str, np.ndarray], times: int = 1) -> list[Any]:
    """Return the answers of a server with one Op that is configured so."""
    server = PipelineServer("check")
    server.set_response_op(ResponseOp(Ask("model", RequestOp())))
    with TestClient(server, {"rpc_port": 0, "op": {"model": op}}) as client:
        calls = [
            client._client.predict(feed, asyn=True, pack_tensor_format=True) for _ in range(times)
        ]
        answers = [call.result(120) for call in calls]
    for answer in answers:
        answer.raise_for_error()
    return answers


def compared(actual: np.ndarray, expected: np.ndarray) -> str:
    """Return how far apart they are; AssertionError: too far."""
    apart = float(np.abs(actual - expected).max() / np.abs(expected).max())
    if not apart <= _TOLERANCE:
        raise AssertionError(f"the answer is {apart:.2g} of the largest value off the CPU's")
    return f"{apart:.1e} of the largest value off the CPU's"


def _small(folder: str) -> tuple[str, dict[str, np.ndarray]]:
    model = Path(folder, "small.onnx")
    write_small(model)
    return str(model), {"x": np.random.default_rng(2).random((2, 3, 8, 8), np.float32)}


def _onnx(place: Place, device_type: int, workers: str = "thread") -> str:
    """Compare a server's answer with a bare session's on the CPU.

    One server a process: what has used a card cannot fork workers that use it.
    """
    runtime = need_module("onnxruntime")
    with tempfile.TemporaryDirectory() as folder:
        model, feed = _small(folder)
        local = place.local(model, device_type=device_type)
        (answer,) = asked({"workers": workers, "local_service_conf": local}, feed)
        bare = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
        (expected,) = bare.run(None, feed)
    return compared(answer.as_numpy(bare.get_outputs()[0].name), expected)


def onnx_cuda(place: Place) -> str:
    """Run an ONNX model on the card, in a thread."""
    need_provider(place, "CUDAExecutionProvider")
    return _onnx(place, 1)


def onnx_cuda_processes(place: Place) -> str:
    """Run an ONNX model on the card, in a worker process."""
    need_provider(place, "CUDAExecutionProvider")
    return _onnx(place, 1, "process")


def onnx_tensorrt(place: Place) -> str:
    """Run an ONNX model on TensorRT."""
    need_provider(place, "TensorrtExecutionProvider")
    if not place.is_rehearsal:
        need_installed("tensorrt")
    return _onnx(place, 2)


def _paddle(place: Place, device_type: int) -> str:
    need_paddle(place)
    with tempfile.TemporaryDirectory() as folder:
        toys = ROOT / "tests" / "support" / "paddle_toys.py"
        subprocess.run([sys.executable, str(toys), "new", folder], check=True, capture_output=True)
        model = str(next(Path(folder).glob("convolution*.json")))
        feed = {"x": np.random.default_rng(3).random((1, 3, 16, 16), np.float32)}
        local = place.local(model, device_type=device_type)
        (answer,) = asked({"local_service_conf": local}, feed)
        (expected,) = asked({"local_service_conf": {"model_config": model}}, feed)
    name = next(name for name in answer if name != "pid")
    return compared(answer.as_numpy(name), expected.as_numpy(name))


def paddle_cuda(place: Place) -> str:
    """Run a Paddle model on the card."""
    return _paddle(place, 1)


def paddle_tensorrt(place: Place) -> str:
    """Run a Paddle model on TensorRT."""
    return _paddle(place, 2)


def round_robin(place: Place) -> str:
    """Have the process workers of one Op take the cards of `devices` in turn."""
    need_provider(place, "CUDAExecutionProvider")
    named = "0,0" if len(cards()) == 1 else "0,1"
    with tempfile.TemporaryDirectory() as folder:
        model, feed = _small(folder)
        local = place.local(model, cards=named)
        op = {"workers": "process", "concurrency": 2, "local_service_conf": local}
        answers = asked(op, feed, times=200)
    pids = {int(answer["pid"][0]) for answer in answers}
    if len(pids) != 2:
        raise AssertionError(f"{len(pids)} of 2 workers answered")
    one = "; the machine has one card, which both of them used" if named == "0,0" else ""
    return f"devices: {named}: both workers answered{one}"


def wrong_devices(place: Place) -> str:
    """Refuse a card that is not there, when the server starts."""
    need_module("onnxruntime")
    need_card(place)
    with tempfile.TemporaryDirectory() as folder:
        model, feed = _small(folder)
        local = {"model_config": model, "device_type": 1, "devices": _NO_CARD}
        try:
            asked({"local_service_conf": local}, feed)
        except InitError as error:
            first = str(error).partition("\n")[0]
            if _NO_CARD not in first:
                raise AssertionError(f"the refusal does not name the card: {first}") from None
            return f"refused: {first[:160]}"
    raise AssertionError(f"devices: {_NO_CARD} was taken")


def ocr(place: Place) -> str:
    """Read a page with PP-OCR's models on the card, as on the CPU."""
    need_provider(place, "CUDAExecutionProvider")
    for name in ("rapidocr_onnxruntime", "cv2"):  # of the former only its models
        need_installed(name)
    sys.path.insert(0, str(ROOT / "examples" / "ocr"))
    page = (ROOT / "examples" / "ocr" / "pictures" / "page.png").read_bytes()
    on_cpu, cpu_pace = _read(place, page, {})
    on_card, card_pace = _read(place, page, {} if place.is_rehearsal else {"devices": "0"})
    if on_card != on_cpu:
        different = sum(a != b for a, b in zip(on_card, on_cpu, strict=False))
        raise AssertionError(f"{different} of {len(on_cpu)} lines differ from the CPU's")
    return f"{len(on_card)} lines as on the CPU; {card_pace:.1f} pages/s, CPU {cpu_pace:.1f}"


def _read(place: Place, page: bytes, local: dict[str, str]) -> tuple[list[str], float]:
    """Return the lines of a page, and the pages a second of one client."""
    import yaml

    client_module, serving_module = need_module("client"), need_module("serving")
    config = yaml.safe_load(serving_module.CONFIG.read_text())
    models = need_module("models")
    for op in config["op"].values():
        op["local_service_conf"] |= local
        path = op["local_service_conf"]["model_config"]
        op["local_service_conf"]["model_config"] = models.find_model(path, ROOT)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.yml")
        file.write_text(yaml.safe_dump(config))
        with serving_module.running(file) as service, client_module.PipelineClient() as client:
            client.connect([service.endpoint])
            lines = [line["text"] for line in client_module.ask_grpc(client, page)]
            count, began = 0, time.monotonic()
            while time.monotonic() < began + place.seconds:
                client_module.ask_grpc(client, page)
                count += 1
            return lines, count / (time.monotonic() - began)


def resnet50(batch: int) -> Callable[[Place], str]:
    """Return a check that serves ResNet-50 in batches of this size, beside the bare session."""

    def run(place: Place) -> str:
        need_provider(place, "CUDAExecutionProvider")
        need_module("onnx")
        bare, ours, latencies = [], [], []
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder, "resnet50.onnx")
            write_resnet(model, TINY if place.is_rehearsal else RESNET_50)
            for _ in range(1 if place.is_rehearsal else _ROUNDS):
                bare.append(bare_pace(model, batch, place))
                with serving(model, batch, place) as port:
                    pace, latency_ms = served_pace(port, batch, place)
                ours.append(pace)
                latencies.append(latency_ms)
        ratio = sum(ours) / sum(bare)
        return (
            f"{max(ours):.0f} pictures/s (median {min(latencies):.1f} ms), bare session "
            f"{max(bare):.0f}: {ratio:.2f} of it"
        )

    return run


_ORT, _TRT = "onnxruntime-gpu", "onnxruntime-gpu, tensorrt"
CHECKS: tuple[Check, ...] = (
    Check("onnx_cuda", "an ONNX model on CUDA answers as on the CPU", _ORT, onnx_cuda),
    Check("onnx_cuda_processes", "the same in a worker process", _ORT, onnx_cuda_processes),
    Check("onnx_tensorrt", "the same model on TensorRT", _TRT, onnx_tensorrt),
    Check("paddle_cuda", "a Paddle model on CUDA", "paddlepaddle-gpu", paddle_cuda),
    Check("paddle_tensorrt", "the same on TensorRT", "paddlepaddle-gpu", paddle_tensorrt),
    Check("round_robin", "workers take the cards of `devices` in turn", _ORT, round_robin),
    Check("wrong_devices", "a card that is not there is refused", _ORT, wrong_devices),
    Check("ocr", "PP-OCR reads a page as on the CPU", f"{_ORT}, rapidocr-onnxruntime", ocr),
    *(
        Check(f"resnet50_{size}", f"ResNet-50, batches of {size}", f"{_ORT}, onnx", resnet50(size))
        for size in (1, 8, 32)
    ),
)

__all__ = ["CHECKS", "Check", "MissingError", "Place"]
