"""Model repositories made in place, a server of one, and a maker that loads nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from doubles import http
from google.protobuf import text_format
from model_files import save_model

from pipeline.engine.models import ALL_CHECKS
from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import TYPE_FP32, ModelConfig
from pipeline.repository.control import ControlSettings
from pipeline.repository.server import RepositorySettings, new_service
from pipeline.system.event_loop import LoopThread

SERVER = {"rpc_port": 0, "http_port": 0, "stop_grace_period": 5000}

IDENTITY = """
backend: "identity"
max_batch_size: %d
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
%s
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [ {
  model_name: "%s" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" }
  output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }
"""


def add_identity(
    repository: Path, name: str, *versions: int, most: int = 8, more: str = ""
) -> Path:
    """A model whose output is its input."""
    folder = _folder(repository, name, versions)
    (folder / "config.pbtxt").write_text(IDENTITY % (most, more))
    return folder


def add_ensemble(repository: Path, name: str, of: str) -> Path:
    """An ensemble of one step."""
    folder = _folder(repository, name, (1,))
    (folder / "config.pbtxt").write_text(ENSEMBLE % of)
    return folder


def add_pipeline(
    repository: Path,
    name: str,
    most: int,
    steps: Iterable[tuple[str, Mapping[str, str], Mapping[str, str]]],
    *ends: str,
) -> Path:
    """An ensemble of steps (model, its inputs, its outputs); `ends`: its input, its outputs."""
    config = ModelConfig(platform="ensemble", max_batch_size=most)
    for slots, names in ((config.input, ends[:1]), (config.output, ends[1:])):
        for each in names:
            slots.add(name=each, data_type=TYPE_FP32, dims=[-1])
    for model, takes, gives in steps:
        config.ensemble_scheduling.step.add(
            model_name=model, model_version=-1, input_map=takes, output_map=gives
        )
    folder = _folder(repository, name, (1,))
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))
    return folder


def add_onnx(repository: Path, name: str, config: str = "") -> Path:
    """A model of a file: y = x + x and z = x - x."""
    folder = _folder(repository, name, ())
    save_model(folder / "1", with_conf=False)
    if config:
        (folder / "config.pbtxt").write_text(config)
    return folder


def _folder(repository: Path, name: str, versions: tuple[int, ...]) -> Path:
    folder = repository / name
    folder.mkdir(parents=True, exist_ok=True)
    for version in versions:
        (folder / str(version)).mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def serving(repository, mode="explicit", server=None, **more):
    """A running server of a repository; `server`: keys of config.yml."""
    control = ControlSettings((repository,), mode, **more)
    service = new_service(RepositorySettings(control, {**SERVER, **(server or {})}))
    with contextlib.closing(LoopThread()) as thread:
        try:
            thread.run(service.start())
            yield service
        finally:
            thread.run(service.stop())


def infer(server, model, values, name="INPUT0", version="", rows=1):
    """(status, the outputs by name or the text of the error) of a request over HTTP."""
    where = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
    shape = [rows, len(values) // rows]
    sent = {"inputs": [{"name": name, "datatype": "FP32", "shape": shape, "data": values}]}
    status, _, answer = http(server, "POST", f"{where}/infer", sent)
    if status != 200:
        return status, answer["error"]
    return status, {each["name"]: each["data"] for each in answer["outputs"]}


def control(server, name, what, **parameters):
    """(status, the text of the error) of loading or unloading a model."""
    status, _, answer = http(
        server, "POST", f"/v2/repository/models/{name}/{what}", {"parameters": parameters}
    )
    return status, answer and answer["error"]


class ServedDouble:
    """A version of a model that was loaded."""

    op = None

    class graph:
        ops = ()

    def __init__(self, source):
        self.names = source.name, ()
        self.version = str(source.version)
        self.model_config = source.config
        self.labels = {}
        self.output_checks = ALL_CHECKS
        self.source = source


class MakerDouble:
    """Loads at once what is not among `broken`, and ends it when the test lets it.

    Of what is broken, `failures` loads fail.
    `made`, `ended` and `waiting` have "name:version" of each.
    """

    def __init__(self):
        self.made, self.ended, self.waiting = [], [], []
        self.broken: set[str] = set()
        self.failures = 1000
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.may_load = asyncio.Event()
        self.may_load.set()

    async def make(self, source):
        key = f"{source.name}:{source.version}"
        self.waiting.append(key)
        await self.may_load.wait()
        self.waiting.remove(key)
        if self.failures and (source.name in self.broken or key in self.broken):
            self.failures -= 1
            raise ConfigError("it is broken")
        self.made.append(key)
        return ServedDouble(source)

    async def change(self, served, source):
        return False

    async def end(self, served):
        await self.may_end.wait()
        self.ended.append(f"{served.names[0]}:{served.version}")


PYTHON = """
backend: "python"
max_batch_size: %d
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
%s
"""


def add_python(
    repository: Path, name: str, code: str, config: str | None = "", most: int = 8
) -> Path:
    """A model of Python code; without `config` it has no configuration of its own."""
    folder = _folder(repository, name, (1,))
    (folder / "1" / "model.py").write_text(code)
    if config is not None:
        (folder / "config.pbtxt").write_text(PYTHON % (most, config))
    return folder
