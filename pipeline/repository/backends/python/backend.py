"""PythonBackend: models in a file `model.py`, with a process for each instance."""

from __future__ import annotations

import ast
import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from pipeline.engine.graph import Graph, build_graph
from pipeline.engine.models import OutputChecks
from pipeline.errors import ConfigError, InitError
from pipeline.op import ResponseOp
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.proto.v2.config_json import as_json
from pipeline.repository.backends.base import Backend, ModelSource
from pipeline.repository.backends.python.environments import EXECUTION_ENV_PATH, Environments
from pipeline.repository.backends.python.loading import MODEL_CLASS
from pipeline.repository.backends.python.model_op import ModelSpec, model_op
from pipeline.repository.backends.ragged import ragged_inputs, reshaping_of
from pipeline.repository.model_config import parse_json
from pipeline.repository.op_settings import (
    cards_of,
    instance_names,
    instances_of,
    op_settings,
    sequence_controls,
)

_HOOK = "auto_complete_config"
_LIMIT_S = 60.0
_COMPLETE = f"{__package__}.complete"
_RUN_COMPLETE = f"""
from {_COMPLETE} import main
raise SystemExit(main(*sys.argv[1:]))
"""
_WORKERS = "workers"  # the parameter with the kind of workers
_KINDS = ("process", "thread")


class PythonBackend(Backend):
    """Backend of Python models, whose code runs only in worker processes.

    With `parameters: { key: "workers" value: { string_value: "thread" } }` the instances of a model
    are threads of the server: a request costs half as much, but a crash or a blocking call of the
    code affects the server.

    Args:
        code: the file with the class of all models, for Triton's Python-based backends; None: each
            model has its own.
    """

    output_checks: OutputChecks = frozenset()

    def __init__(self, code: Path | None = None) -> None:
        self._code = code
        self._environments = Environments()

    def _code_of(self, source: ModelSource) -> Path:
        return self._code or source.file

    async def complete(self, source: ModelSource) -> ModelConfig:
        """Return the configuration, completed by the model's `auto_complete_config`.

        It runs in its own process, for at most a minute.
        """
        file = self._code_of(source)
        if not file.is_file():
            raise InitError(
                f"Python model file not found in neither '{file}' nor "
                f"'{source.folder / source.config.default_model_filename}'"
            )
        interpreter = await asyncio.to_thread(self._environments.prepare, source)
        if source.is_complete or not await asyncio.to_thread(_has_hook, file):
            return source.config
        config = json.dumps(as_json(source.config)).encode()
        arguments = (source.name, str(source.version), str(file), str(source.path))
        if interpreter is None:
            command, variables = [sys.executable, "-m", _COMPLETE, *arguments], None
        else:
            command = interpreter.command(_RUN_COMPLETE, *arguments)
            variables = interpreter.variables()
        try:
            done = await asyncio.to_thread(
                subprocess.run,
                command,
                input=config,
                env=variables,
                capture_output=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            text = f"model '{source.name}': {_HOOK} takes longer than {_LIMIT_S:.0f} s"
            raise InitError(text) from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise InitError(lines[-1] if lines else f"{_HOOK} ended with {done.returncode}")
        return parse_json(done.stdout.rpartition(b"\n")[2], f"{_HOOK} of '{source.name}'")

    def settings(self, source: ModelSource) -> dict[str, Any]:
        """Return the Op's settings; in a thread, a decoupled model gets one request at a time.

        Sequence controls are inputs of each request.

        Raises:
            ConfigError: the model has states, which Triton's Python models do not have either; or
                an unknown kind of workers.
        """
        config = source.config
        kind = _workers(config)
        settings: dict[str, Any] = {"workers": kind}
        if config.HasField("sequence_batching"):
            controls = config.sequence_batching.control_input
            if config.sequence_batching.state:
                raise ConfigError(
                    f"model '{config.name}': state: Python models keep what they need themselves, "
                    "by correlation_id"
                )
            if config.sequence_batching.iterative_sequence and not controls:
                # Each request is its own sequence; it returns if the model reschedules it.
                most = max(1, config.max_batch_size)
                return settings | {"batching": "full", "batch_size": most, "sequence": {}}
            settings["sequence"] = {**op_settings(config)["sequence"], "controls": []}
        elif config.model_transaction_policy.decoupled and kind != _KINDS[0]:
            settings |= {"batch_size": 1, "batching": "full", "dynamic_batching": {}}
        return settings

    def graph(self, source: ModelSource) -> Graph:
        """Return a graph whose Op runs the model."""
        config = source.config
        cards = cards_of(config)
        spec = ModelSpec(
            source.name,
            source.version,
            str(source.folder),
            str(self._code_of(source)),
            str(source.path),
            json.dumps(as_json(config)),
            tuple(output.name for output in config.output),
            "GPU" if cards else "CPU",
            tuple(cards),
            sequence_controls(config),
            tuple(sorted(ragged_inputs(config))),
            reshaping_of(config),
            config.max_batch_size == 0,
            config.model_transaction_policy.decoupled,
            config.sequence_batching.iterative_sequence,
            tuple(instance_names(config)),
        )
        op = model_op(spec)
        op.pipeline_interpreter = self._environments.of(source)
        if op.pipeline_interpreter is not None and _workers(config) != _KINDS[0]:
            raise ConfigError(
                f"model '{config.name}': parameters: {EXECUTION_ENV_PATH}: the interpreter is that "
                f"of processes: {_WORKERS} is to be process, not {_workers(config)}"
            )
        return build_graph(ResponseOp(op))


PYTHON = PythonBackend()
"""The backend itself."""


def _workers(config: ModelConfig) -> str:
    """Return the kind of workers of a model's instances. Raises ConfigError."""
    kind = config.parameters[_WORKERS].string_value if _WORKERS in config.parameters else _KINDS[0]
    if kind not in _KINDS:
        raise ConfigError(
            f"model '{config.name}': parameters: {_WORKERS}: expected process or thread, found "
            f"{kind!r}"
        )
    if kind != _KINDS[0] and instances_of(config) > 1:
        raise ConfigError(
            f"model '{config.name}': parameters: {_WORKERS}: a model in threads of the server has "
            f"one instance, not {instances_of(config)}"
        )
    return kind


_PARSING = threading.Lock()  # CPython 3.11 has one depth counter for all parsers


def _has_hook(file: Path) -> bool:
    """Return whether a model has the hook, or may have it because its class is imported.

    A file that is not Python fails when it is loaded.
    """
    try:
        with _PARSING:
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return False
    defined = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    own = [node for node in defined if isinstance(node, ast.ClassDef) and node.name == MODEL_CLASS]
    return not own or bool(own[0].bases) or any(node.name == _HOOK for node in defined)
