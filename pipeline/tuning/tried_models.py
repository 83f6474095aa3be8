"""Trials of models of a repository: one server, which reloads a model for each of them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import text_format

from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import ModelConfig, ModelInstanceGroup
from pipeline.proto.v2.config_json import as_json
from pipeline.repository.model_config import TEXT_FILE, parse_json, read_model_config
from pipeline.repository.polled_model import find_models
from pipeline.system.processes import Family, family_of
from pipeline.tuning.load import LoadRequest, replay
from pipeline.tuning.settings import OpMeasurement, OpSettings, Settings, Trial
from pipeline.tuning.tried_server import (
    TrialError,
    TriedOp,
    running,
    timed,
    trial_of,
)

_ASKED = re.compile(r"/v2/models/([^/]+)(?:/versions/[^/]+)?/(?:infer|generate)")
_ALONE = "sequence_batching"  # whose batches are not gathered
_TIMEOUT_S = 120.0
_DURATIONS = ("compute_input", "compute_infer", "compute_output")

Counted = Mapping[str, Any]
"""Statistics of a model, as v2 has them."""


class ModelsServer:
    """A server of repositories for trials, in mode explicit; to be entered.

    Args:
        repositories: their folders.
        models: that the load asks, and that are loaded first.
    """

    def __init__(self, repositories: Sequence[Path], models: Sequence[str]) -> None:
        self._repositories = repositories
        self._models = models
        self._stack = contextlib.ExitStack()
        self.port: int = 0

    def __enter__(self) -> ModelsServer:
        command = [
            *(sys.executable, "-m", "pipeline", "repository"),
            *(f"--model-repository={repository}" for repository in self._repositories),
            *("--model-control-mode=explicit", "--http-port=0", "--allow-grpc=false"),
            *("--allow-metrics=false", "--edge=embedded", "--http-address=127.0.0.1"),
            *(f"--load-model={model}" for model in self._models),
        ]
        self._child, self.port, _ = self._stack.enter_context(running(command, _TIMEOUT_S))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def family(self) -> Family:
        """Return what its processes use."""
        return family_of(self._child.pid)

    def config(self, model: str) -> ModelConfig:
        """Return the configuration of a model that is loaded. Raises TrialError."""
        return parse_json(self._ask("GET", f"/v2/models/{model}/config"), model)

    def load(self, model: str, config: ModelConfig) -> None:
        """Load a model as a configuration says. Raises TrialError: it cannot be."""
        body = {"parameters": {"config": msgspec.json.encode(as_json(config)).decode()}}
        self._ask("POST", f"/v2/repository/models/{model}/load", msgspec.json.encode(body))

    def counted(self, model: str) -> Counted:
        """Return the statistics of the version of a model that is asked. Raises TrialError."""
        statistics = msgspec.json.decode(self._ask("GET", f"/v2/models/{model}/stats"))
        latest: Counted = max(
            statistics["model_stats"], key=lambda version: int(version["version"])
        )
        return latest

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S)
        try:
            with contextlib.closing(connection):
                connection.request(method, path, body)
                answer = connection.getresponse()
                text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise TrialError(f"{path}: {error}") from error
        if answer.status != 200:
            raise TrialError(text.decode("utf-8", "replace"))
        return text


def asked_models(requests: Sequence[LoadRequest]) -> list[str]:
    """Return the models that a load asks, each once. Raises ConfigError: none of a repository."""
    matches = (_ASKED.match(request.path) for request in requests)
    models = list(dict.fromkeys(match[1] for match in matches if match is not None))
    if not models:
        raise ConfigError("no request of the load asks a model at /v2/models/<name>/infer")
    return models


def tried_models(server: ModelsServer, models: Sequence[str]) -> dict[str, ModelConfig]:
    """Return the models that are run when these are asked, with their configurations."""
    configs: dict[str, ModelConfig] = {}
    left = list(models)
    while left:
        config = server.config(left.pop(0))
        if config.HasField("ensemble_scheduling"):
            left += [step.model_name for step in config.ensemble_scheduling.step]
        else:
            configs.setdefault(config.name, config)
    return configs


def tried_op(config: ModelConfig) -> TriedOp:
    """Return a model as an Op whose settings are tried."""
    held = ""
    if config.HasField(_ALONE):
        held = "it has sequences"
    elif config.model_transaction_policy.decoupled:
        held = "it answers in parts"
    elif len(config.instance_group) > 1:
        held = "it has several instance groups"
    batching = config.dynamic_batching
    return TriedOp(
        config.name,
        max(1, sum(group.count for group in config.instance_group)),
        config.max_batch_size if config.HasField("dynamic_batching") else 1,
        batching.max_queue_delay_microseconds / 1e3,
        config.backend == "python",
        config.max_batch_size > 1,
        held,
    )


def changed(config: ModelConfig, settings: OpSettings) -> ModelConfig:
    """Return a configuration with other settings; what it says besides stays."""
    change = ModelConfig()
    change.CopyFrom(config)
    if not change.instance_group:
        change.instance_group.add(kind=ModelInstanceGroup.KIND_CPU)
    change.instance_group[0].count = settings.concurrency
    if settings.batch_size > 1:
        batching = change.dynamic_batching
        del batching.preferred_batch_size[:]
        batching.preferred_batch_size.append(settings.batch_size)
        batching.max_queue_delay_microseconds = int(settings.delay_ms * 1e3)
        change.max_batch_size = max(config.max_batch_size, settings.batch_size)
    elif change.HasField("dynamic_batching"):
        change.ClearField("dynamic_batching")
    return change


@dataclass(frozen=True, slots=True)
class ModelsBench:
    """All that is the same in each trial of models. Times in s."""

    server: ModelsServer
    configs: Mapping[str, ModelConfig]  # of the models, in the order of the settings
    requests: Sequence[LoadRequest]
    clients: int
    warm_up_s: float = 0.3
    seconds: float = 2.0

    def trial(self, settings: Settings) -> Trial:
        """Load the models with these settings and ask them; return what they did."""
        return timed(settings, self._measured)

    def _measured(self, settings: Settings) -> Trial:
        server = self.server
        for config, of_model in zip(self.configs.values(), settings, strict=True):
            server.load(config.name, changed(config, of_model))
        asyncio.run(replay(server.port, self.requests, self.clients, self.warm_up_s))
        counted = [server.counted(name) for name in self.configs]
        before = server.family()
        load = asyncio.run(replay(server.port, self.requests, self.clients, self.seconds))
        after = server.family()

        def ops() -> dict[str, OpMeasurement]:
            return {
                name: measured(earlier, server.counted(name), len(load.times_s), load.seconds)
                for name, earlier in zip(self.configs, counted, strict=True)
            }

        return trial_of(settings, load, before, after, ops)


def measured(before: Counted, after: Counted, answered: int, seconds: float) -> OpMeasurement:
    """Return what a model did between two looks at its statistics."""
    earlier = dict(_batches(before))
    points, busy_ns, ran = [], 0, 0
    for size, (count, took_ns) in _batches(after):
        was_count, was_ns = earlier.get(size, (0, 0))
        count, took_ns = count - was_count, took_ns - was_ns
        if count > 0:
            points.append((float(size), took_ns / count / 1e6, float(count)))
            busy_ns, ran = busy_ns + took_ns, ran + count
    asked = after["inference_stats"]["success"]["count"]
    asked -= before["inference_stats"]["success"]["count"]
    return OpMeasurement(asked / max(1, answered), busy_ns / 1e9 / seconds, tuple(points))


def _batches(counted: Counted) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield of each size of batches how many there were, and their time in ns."""
    for batch in counted["batch_stats"]:
        took_ns = sum(batch[name]["ns"] for name in _DURATIONS)
        yield batch["batch_size"], (batch["compute_infer"]["count"], took_ns)


def advised_files(
    repositories: Sequence[Path],
    configs: Mapping[str, ModelConfig],
    before: Settings,
    best: Settings,
) -> dict[str, str]:
    """Return the text of config.pbtxt of each model whose settings are others now."""
    files = {}
    for (name, full), old, new in zip(configs.items(), before, best, strict=True):
        if old == new:
            continue
        folders = find_models(name, repositories, is_namespaced=False)
        own = read_model_config(folders[0]) if folders else None
        config = changed(full if own is None else own, new)
        files[f"{name}/{TEXT_FILE}"] = text_format.MessageToString(config)
    return files
