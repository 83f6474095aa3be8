"""ONNX models built in place, and a double of onnxruntime for machines without a card."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from pipeline.predictors.base import Device, DeviceType
from pipeline.predictors.onnx import OnnxModel

HOST = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
ONEDNN = "DnnlExecutionProvider"
ASCEND = "CANNExecutionProvider"
ARM = "ACLExecutionProvider"

CPU = Device(DeviceType.CPU)
FLOAT = TensorProto.FLOAT
value_info = helper.make_tensor_value_info


def build(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    initializers: Sequence[Any] = (),
    opsets: Mapping[str, int] = types.MappingProxyType({"": 21}),
    ir_version: int = 10,
) -> Any:
    """An ONNX model."""
    graph = helper.make_graph(nodes, "toy", inputs, outputs, list(initializers))
    opset_imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=opset_imports, ir_version=ir_version)


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    initializers: Sequence[Any] = (),
) -> OnnxModel:
    """An ONNX model in a file, to be run by one thread."""
    onnx.save(build(nodes, inputs, outputs, initializers), path)
    return OnnxModel(path, thread_num=1)


def identity(path: Path, element_type: int, shape: Any = ("n", 2)) -> OnnxModel:
    """A model whose output y is its input x."""
    return save(
        path,
        [helper.make_node("Identity", ["x"], ["y"])],
        [value_info("x", element_type, shape)],
        [value_info("y", element_type, shape)],
    )


class FakeOptions:
    """Takes the attributes and entries that a SessionOptions is given."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value


class FakeBinding:
    """An IOBinding that keeps what was bound; its outputs are the inputs of the same names."""

    def __init__(self) -> None:
        self.inputs: dict[str, np.ndarray] = {}
        self.outputs: list[tuple[str, str, int]] = []
        self.has_run = False

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        assert array.flags.c_contiguous
        self.inputs[name] = array

    def bind_output(self, name: str, device: str, card: int) -> None:
        self.outputs.append((name, device, card))

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        assert self.has_run
        return [self.inputs[name].copy() for name, _, _ in self.outputs]


class FakeSession:
    """A session that keeps how it was made; it may have landed on other providers.

    Its outputs are its inputs. `placement` is the operators that each provider runs; None: an
    onnxruntime that does not tell.
    """

    def __init__(
        self,
        made_with: Mapping[str, Any],
        landed: Sequence[str],
        placement: Mapping[str, Sequence[str]] | None,
        input_types: Mapping[str, str],
    ) -> None:
        self.__dict__.update(made_with)
        self.landed = landed
        self.input_types = input_types
        self.bindings: list[FakeBinding] = []
        self.plain_runs: list[dict[str, np.ndarray]] = []
        if placement is not None:
            subgraphs = [fake_subgraph(name, kinds) for name, kinds in placement.items()]
            self.get_provider_graph_assignment_info = lambda: subgraphs

    def get_providers(self) -> Sequence[str]:
        return self.landed

    def get_inputs(self) -> list[types.SimpleNamespace]:
        return [
            types.SimpleNamespace(name=name, type=kind, shape=["n"])
            for name, kind in self.input_types.items()
        ]

    get_outputs = get_inputs

    def get_overridable_initializers(self) -> list[types.SimpleNamespace]:
        return []

    def run(self, names: Sequence[str], arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        self.plain_runs.append(dict(arrays))
        return [arrays[name] for name in names]

    def io_binding(self) -> FakeBinding:
        self.bindings.append(FakeBinding())
        return self.bindings[-1]

    def run_with_iobinding(self, binding: FakeBinding) -> None:
        binding.has_run = True


def fake_subgraph(provider: str, kinds: Sequence[str]) -> types.SimpleNamespace:
    """What onnxruntime tells of one provider's nodes."""
    nodes = [types.SimpleNamespace(op_type=kind) for kind in kinds]
    return types.SimpleNamespace(ep_name=provider, get_nodes=lambda: nodes)


class FakeRuntime:
    """onnxruntime on a machine with these providers, whose sessions land on those."""

    SessionOptions = FakeOptions
    __version__ = "1.99.0"

    def __init__(
        self,
        available: Sequence[str],
        landed: Sequence[str] | None = None,
        placement: Mapping[str, Sequence[str]] | None = None,
        input_types: Mapping[str, str] = types.MappingProxyType({"x": "tensor(float)"}),
    ) -> None:
        self.available = available
        self.landed = available if landed is None else landed
        self.placement = placement
        self.input_types = input_types
        self.session: Any = None

    def get_available_providers(self) -> Sequence[str]:
        return self.available

    def InferenceSession(self, path: str, options: FakeOptions, **made_with: Any) -> FakeSession:
        made = {"path": path, "options": options, **made_with}
        self.session = FakeSession(made, self.landed, self.placement, self.input_types)
        return self.session
