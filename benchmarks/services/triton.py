"""A peer: Triton with Python models: an echo, and the diamond as an ensemble of three.

With a folder as its argument it serves the models of that repository instead.

The server is the one that nvidia-pytriton carries. It is installed, without what it depends on,
into a folder of its own of the user's cache, and needs this Python's shared library where the
system's linker finds it (Debian: libpython3.11).
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from tempfile import mkdtemp

from benchmarks.services.installed import PYTHON, folder_of
from benchmarks.services.ports import GRPC_PORT, HTTP_PORT

_PACKAGES = ("nvidia-pytriton==0.7.0", "numpy==1.26.4")

_MODEL = """
import sys
sys.path.insert(0, {site!r})
import triton_python_backend_utils as triton

class TritonPythonModel:
    def execute(self, requests):
        return [triton.InferenceResponse([triton.Tensor({output!r}, self.answer(*(
            triton.get_input_tensor_by_name(request, name).as_numpy() for name in {inputs!r}
        )))]) for request in requests]

    def answer(self, {arguments}):
        return {answer}
"""
_NUMBERS, _ONE = {"x": 16}, {"sum": 1}
_MODELS = {  # inputs, outputs: their names and lengths; what is computed
    "echo": (_NUMBERS, {"x": 16}, "x"),
    "a": (_NUMBERS, _ONE, "x.sum(keepdims=True)"),
    "b": (_NUMBERS, _ONE, "x.sum(keepdims=True)"),
    "combine": ({"a": 1, "b": 1}, {"result": 1}, "a + b"),
}
_STEPS = """
  {{ model_name: "{0}" model_version: -1
     input_map {{ key: "x" value: "x" }} output_map {{ key: "sum" value: "{0}" }} }},"""
_ENSEMBLE = f"""
ensemble_scheduling {{ step [{_STEPS.format("a")}{_STEPS.format("b")}
  {{ model_name: "combine" model_version: -1
     input_map {{ key: "a" value: "a" }} input_map {{ key: "b" value: "b" }}
     output_map {{ key: "result" value: "result" }} }}
] }}"""


def installed() -> Path:
    """The folder with the server's packages, made when it is not there."""
    site = folder_of("triton", "pytriton", "--no-deps", *_PACKAGES)
    server = site / "pytriton/tritonserver"
    stub = server / "backends/python/triton_python_backend_stub"
    if not stub.exists():
        shutil.copy(server / "python_backend_stubs" / PYTHON / stub.name, stub)
    return site


def write_models(repository: Path, site: Path) -> None:
    """Write the repository of models that Triton reads."""
    for name, (inputs, outputs, answer) in _MODELS.items():
        (output,) = outputs
        code = _MODEL.format(
            site=str(site),
            inputs=[*inputs],
            arguments=", ".join(inputs),
            output=output,
            answer=answer,
        )
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(code)
        _write_config(folder.parent, 'backend: "python"', inputs, outputs)
    ensemble = repository / "diamond_v2"
    (ensemble / "1").mkdir(parents=True)
    _write_config(ensemble, 'platform: "ensemble"' + _ENSEMBLE, _NUMBERS, {"result": 1})


def _write_config(folder: Path, kind: str, inputs: dict[str, int], outputs: dict[str, int]) -> None:
    tensors = "\n".join(
        f'{side} [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ {size} ] }} ]'
        for side, names in (("input", inputs), ("output", outputs))
        for name, size in names.items()
    )
    (folder / "config.pbtxt").write_text(f"{kind}\n{tensors}\n")


def main() -> None:
    site = installed()
    if sys.argv[1:]:
        repository = Path(sys.argv[1])
    else:
        repository = Path(mkdtemp(dir=os.environ.get("SERVING_HOME")))  # removed by who started us
        write_models(repository, site)
    server = site / "pytriton/tritonserver"
    os.execve(
        server / "bin/tritonserver",
        [
            "tritonserver",
            f"--model-repository={repository}",
            f"--backend-directory={server / 'backends'}",
            *("--http-address=127.0.0.1", f"--http-port={HTTP_PORT}"),
            *("--grpc-address=127.0.0.1", f"--grpc-port={GRPC_PORT}"),
            "--allow-metrics=false",
        ],
        # Not this environment's Python: the stub's library finds its own.
        {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(site / "nvidia_pytriton.libs")},
    )


if __name__ == "__main__":
    main()
